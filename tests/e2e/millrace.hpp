// SPDX-License-Identifier: Apache-2.0
//
// Runs millrace on a small generated data set that all tests of a program share.
#pragma once

#include <map>
#include <regex>

#include "support/process.hpp"

namespace millrace::test {

// NOLINTBEGIN(google-explicit-constructor)
/// Words of a command line. Literals are split at spaces; strings and paths are one word each:
/// {"restore --restore-path", run, "--ranks 2"}.
struct Words : std::vector<std::string> {
  struct Part {
    Part(const char* line) {
      std::istringstream stream(line);
      for (std::string word; stream >> word;) words.push_back(word);
    }
    Part(const std::string& word) : words{word} {}
    Part(const std::filesystem::path& path) : words{path.string()} {}
    std::vector<std::string> words;
  };

  Words() = default;
  Words(const char* line) : Words({Part(line)}) {}
  Words(std::initializer_list<Part> parts) {
    for (const Part& part : parts) insert(end(), part.words.begin(), part.words.end());
  }
};
// NOLINTEND(google-explicit-constructor)

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// `name=value` pairs, as `env` takes them.
using Environment = Words;

inline ProcessResult millrace(const Words& words, Capture capture = Capture::Both) {
  return run_process(MILLRACE_BINARY, words, capture);
}

/// With these variables.
inline ProcessResult millrace_with(const Environment& variables, const Words& words) {
  return run_process("/usr/bin/env", variables + Words{std::string(MILLRACE_BINARY)} + words);
}

/// 640 training and 200 test images, created once.
inline const std::filesystem::path& small_data() {
  static const TemporaryDirectory directory;
  static const std::filesystem::path data = [] {
    std::filesystem::path made = directory / "cifar-10-batches-bin";
    const ProcessResult result =
        millrace({"data generate", made.string(), "--train-images 640 --test-images 200"});
    EXPECT_EQ(result.code, 0) << result.output;
    return made;
  }();
  return data;
}

/// Arguments of `train` for a ResNet-8 on this data set.
inline Words small_training() {
  return {"train --dataset cifar-10 --data-dir", small_data().string(), "--model-size 8"};
}

/// The same with 10 iterations per epoch and additional arguments. Uses one thread, so that tests
/// can run in parallel: waiting threads spin.
inline Words usual_training(const std::filesystem::path& run, const Words& more = {}) {
  return small_training() +
         Words{
             "--batch-size 32 --gradients-to-accumulate 2 --warmup-epochs 0 --optimiser momentum "
             "--base-learning-rate -11 --seed 5 --threads-per-device 1 --run-dir",
             run} +
         more;
}
inline ProcessResult train(const std::filesystem::path& run, const Words& more = {}) {
  return millrace(usual_training(run, more));
}

/// Continues a run.
inline ProcessResult restore(const std::filesystem::path& run, const Words& more = {}) {
  return millrace(Words{"restore --restore-path", run} + more);
}

/// Expects that the command ends with this code and prints all parts.
inline void expect_end(const ProcessResult& result, int code,
                       const std::vector<std::string>& parts = {}) {
  EXPECT_EQ(result.code, code) << result.output;
  expect_in(result.output, parts);
}

/// Whether the long forms of the tests run.
inline bool whole() { return std::getenv("MILLRACE_LONG_TESTS") != nullptr; }

/// Folder of data sets that are not part of the project.
inline std::filesystem::path shared_data() {
  const char* given = std::getenv("MILLRACE_TEST_DATA");
  return given != nullptr ? std::filesystem::path(given)
                          : std::filesystem::path(MILLRACE_SOURCE_DIR) / "../shared/data";
}

/// The bytes in the lines of a run that match a pattern with one number, by rank.
inline std::map<int, std::int64_t> bytes_in(const std::string& output, const std::string& line) {
  std::map<int, std::int64_t> sizes;
  const std::regex pattern("(?:Rank (\\d+): )?" + line);
  for (std::sregex_iterator match(output.begin(), output.end(), pattern), end; match != end;
       ++match)
    sizes[(*match)[1].matched ? std::stoi((*match)[1]) : 0] = std::stoll((*match)[2]);
  return sizes;
}

/// High-water marks of resident memory of the processes of a run.
inline std::map<int, std::int64_t> peaks_in(const std::string& output) {
  return bytes_in(output, "Process peak: [^,]*, (\\d+) of");
}

/// What these processes said that they would take at most.
inline std::map<int, std::int64_t> predicted_in(const std::string& output) {
  return bytes_in(output, "Process peak: [^,]*, \\d+ of (\\d+) bytes");
}

inline std::string digest_of(const std::filesystem::path& run) {
  const ProcessResult result = millrace({"inspect", run.string(), "--digest"});
  EXPECT_EQ(result.code, 0) << result.output;
  return result.output;
}

}  // namespace millrace::test
