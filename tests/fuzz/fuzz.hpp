// SPDX-License-Identifier: Apache-2.0
//
// Fuzzing: a reader of untrusted bytes is fed files that are nearly right, millions of them, and
// must end each in a result or in an Error. A target (<name>_fuzz.cpp) says what to do with one
// input and gives a few good ones to begin with. Two drivers run it:
//
//   driver.cpp     mutates the good inputs blindly; ctest runs it for seconds, under the sanitizers
//                  for what it is worth:     fuzz_<name>_test [--seconds N] [--seed N] [FILE ..]
//   libfuzzer.cpp  libFuzzer (preset fuzz), which follows the coverage and keeps what it finds:
//                  fuzz_<name>_test CORPUS_FOLDER; an empty folder is filled with the good inputs
//
// With FILEs the driver only runs those, as libFuzzer does. The input of a crash is left in
// fuzz_<name>.last of the current folder by the driver, in crash-* by libFuzzer.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace millrace::fuzz {

using Bytes = std::vector<std::byte>;

/// Treats one input; anything but returning is a bug found.
void run_one(std::span<const std::byte> input);

/// Small inputs that are well formed.
[[nodiscard]] std::vector<Bytes> seeds();

}  // namespace millrace::fuzz
