// SPDX-License-Identifier: Apache-2.0
//
// Runs millrace on a small generated data set that all tests of a program share.
#pragma once

#include <string>
#include <vector>

#include "support/process.hpp"

namespace millrace::test {

using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// `name=value` pairs, as `env` takes them.
using Environment = Words;

inline ProcessResult millrace(const Words& words, Capture capture = Capture::Both) {
  return run_process(MILLRACE_BINARY, words, capture);
}

/// 640 training and 200 test images, created once.
inline const std::filesystem::path& small_data() {
  static const TemporaryDirectory directory;
  static const std::filesystem::path data = [] {
    std::filesystem::path made = directory / "cifar-10-batches-bin";
    const ProcessResult result = millrace(
        {"data", "generate", made.string(), "--train-images", "640", "--test-images", "200"});
    EXPECT_EQ(result.code, 0) << result.output;
    return made;
  }();
  return data;
}

/// Arguments of `train` for a ResNet-8 on this data set.
inline Words small_training() {
  return {"train",        "--dataset", "cifar-10", "--data-dir", small_data().string(),
          "--model-size", "8"};
}

/// The same with 10 iterations per epoch and additional arguments. Uses one thread, so that tests
/// can run in parallel: waiting threads spin.
inline ProcessResult train(const std::filesystem::path& run, const Words& more) {
  const Words usual = {"--batch-size",
                       "32",
                       "--gradients-to-accumulate",
                       "2",
                       "--warmup-epochs",
                       "0",
                       "--optimiser",
                       "momentum",
                       "--base-learning-rate",
                       "-11",
                       "--seed",
                       "5",
                       "--threads-per-device",
                       "1",
                       "--run-dir",
                       run.string()};
  return millrace(small_training() + usual + more);
}

/// The columns of a CSV file that do not contain times, as lines.
inline std::string timeless_columns(const std::filesystem::path& csv) {
  std::ifstream file(csv);
  std::string line;
  std::vector<bool> keep;
  std::string result;
  while (std::getline(file, line)) {
    std::vector<std::string> cells(1);
    for (const char c : line) {
      if (c == ',') {
        cells.emplace_back();
      } else {
        cells.back() += c;
      }
    }
    if (keep.empty()) {
      for (const std::string& name : cells) {
        keep.push_back(name.find("time") == std::string::npos && name != "img_per_sec" &&
                       name != "latency");
      }
    }
    for (std::size_t i = 0; i < cells.size() && i < keep.size(); ++i) {
      if (keep[i]) result += cells[i] + ",";
    }
    result += '\n';
  }
  return result;
}

inline std::string digest_of(const std::filesystem::path& run) {
  const ProcessResult result = millrace({"inspect", run.string(), "--digest"});
  EXPECT_EQ(result.code, 0) << result.output;
  return result.output;
}

}  // namespace millrace::test
