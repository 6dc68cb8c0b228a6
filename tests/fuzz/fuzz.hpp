// SPDX-License-Identifier: Apache-2.0
//
// Fuzzing: a reader of untrusted bytes gets millions of nearly valid files; each must end in a
// result or an Error. A target (<name>_fuzz.cpp) defines how to process one input and a few good
// seeds. Two drivers run it:
//
//   driver.cpp     runs the known inputs, as every ctest does, or files: fuzz_<name>_test [FILE ..]
//   libfuzzer.cpp  libFuzzer (preset fuzz), which follows the coverage and keeps what it finds:
//                  fuzz_<name>_test CORPUS_FOLDER; an empty folder is filled with the known inputs
//
// Known inputs are the seeds and corpus/<name>.tar.gz: a minimized selection of what libFuzzer
// found in ten minutes, up to 512 bytes each. The build unpacks them into tests/fuzz/corpus of the
// build folder. To add the results of a campaign and pack the corpus again:
//   cd build/fuzz
//   ./fuzz_<name>_test -merge=1 -max_len=512 tests/fuzz/corpus/<name> CORPUS_FOLDER
//   cmake --build . --target pack_fuzz_<name>
//
// After a crash, the input is in fuzz_<name>_test.last of the current folder (driver) or in crash-*
// (libFuzzer).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "tests/support/file_bytes.hpp"

namespace millrace::fuzz {

using Bytes = std::vector<std::byte>;

/// Ends the process like a crash: a promise of the target is broken.
inline void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

/// Runs an action on untrusted bytes, which may end in an Error of this kind.
template <class Action>
void fails_only_as(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    require(error.kind() == kind, error.what());
  }
}

[[nodiscard]] inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// An input whose first byte says what to do with the rest.
[[nodiscard]] inline Bytes tagged(unsigned tag, std::span<const std::byte> rest) {
  Bytes input;
  input.reserve(1 + rest.size());
  input.push_back(static_cast<std::byte>(tag));
  for (const std::byte byte : rest) input.push_back(byte);
  return input;
}

/// Processes one input. Anything except returning is a bug.
void run_one(std::span<const std::byte> input);

/// Small well-formed inputs.
[[nodiscard]] std::vector<Bytes> seeds();

/// The folder of this target's corpus. The build writes it into a source of its own, so that the
/// drivers are compiled once for all targets.
extern const char* const kCorpus;

/// The seeds, and the corpus of this target sorted by file name.
[[nodiscard]] inline std::vector<Bytes> known_inputs() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> inputs = seeds();
  for (const std::filesystem::path& file : files) inputs.push_back(test::file_bytes(file));
  return inputs;
}

}  // namespace millrace::fuzz
