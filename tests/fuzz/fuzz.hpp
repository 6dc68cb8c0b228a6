// SPDX-License-Identifier: Apache-2.0
//
// Fuzzing: a reader of untrusted bytes is fed files that are nearly right, millions of them, and
// must end each in a result or in an Error. A target (<name>_fuzz.cpp) says what to do with one
// input and gives a few good ones to begin with. Two drivers run it:
//
//   driver.cpp     runs the known inputs (so does every ctest), then mutates them blindly for as
//                  long as it is told:       fuzz_<name>_test [--seconds N] [--seed N] [FILE ..]
//   libfuzzer.cpp  libFuzzer (preset fuzz), which follows the coverage and keeps what it finds:
//                  fuzz_<name>_test CORPUS_FOLDER; an empty folder is filled with the known inputs
//
// Known inputs are the good ones and those in corpus/<name>.tar.gz: what libFuzzer found in ten
// minutes, of up to 512 bytes each, thinned out. The build unpacks them into tests/fuzz/corpus of
// the build folder. What a campaign found is added, and packed again, by
//   cd build/fuzz
//   ./fuzz_<name>_test -merge=1 -max_len=512 tests/fuzz/corpus/<name> CORPUS_FOLDER
//   cmake --build . --target pack_fuzz_<name>
//
// With FILEs the driver only runs those, as libFuzzer does. The input of a crash is left in
// fuzz_<name>.last of the current folder by the driver, in crash-* by libFuzzer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "tests/support/file_bytes.hpp"

namespace millrace::fuzz {

using Bytes = std::vector<std::byte>;

/// Treats one input; anything but returning is a bug found.
void run_one(std::span<const std::byte> input);

/// Small inputs that are well formed.
[[nodiscard]] std::vector<Bytes> seeds();

/// The seeds, and the corpus of this target in the order of its files' names.
[[nodiscard]] inline std::vector<Bytes> known_inputs() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(MILLRACE_FUZZ_CORPUS))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> inputs = seeds();
  for (const std::filesystem::path& file : files) inputs.push_back(test::file_bytes(file));
  return inputs;
}

}  // namespace millrace::fuzz
