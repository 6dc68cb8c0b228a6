// SPDX-License-Identifier: Apache-2.0
//
// Log files of a run as a restored run reads them. The first byte of an input is the iteration; the
// rest is training.csv, validation.csv and metrics.jsonl, separated by bytes of value 1.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "io/atomic_file.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/temporary_directory.hpp"
#include "train/metrics_log.hpp"

namespace millrace::fuzz {
namespace {

constexpr std::array<const char*, 3> kFiles = {"training.csv", "validation.csv", "metrics.jsonl"};

run::Run config_in(const std::filesystem::path& folder) {
  run::Run config;
  config.run_directory = folder;
  config.data.train_size = 32;
  config.iterations_per_epoch = 4;
  config.iterations = 12;
  return config;
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  static const test::TemporaryDirectory folder;
  std::string_view rest(reinterpret_cast<const char*>(input.data()) + 1, input.size() - 1);
  for (const char* const name : kFiles) {
    const std::string_view text = rest.substr(0, rest.find('\1'));
    rest.remove_prefix(std::min(text.size() + 1, rest.size()));
    std::ofstream(folder / name) << text;
  }
  const run::Run config = config_in(folder.path());
  const auto iteration = std::to_integer<std::int64_t>(input[0]);
  {
    training::MetricsLog log(config, iteration, {});
    log.add({.loss = 1.0, .correct = 1, .learning_rate = 0.1, .seconds = 0.5});
    (void)log.report(iteration + 1);
  }
  require(training::MetricsLog(config, iteration + 1, {}).take_notices().empty(),
          "repaired files are complete");
}

std::vector<Bytes> seeds() {
  const test::TemporaryDirectory folder;
  const run::Run config = config_in(folder.path());
  {
    training::MetricsLog log(config);
    for (std::int64_t i = 1; i <= 6; ++i) {
      log.add({.loss = 1.5, .correct = 2, .correct_top5 = 3, .learning_rate = 0.1, .seconds = 0.5});
      if (i % 2 == 0) (void)log.report(i);
    }
    log.report(training::ValidationResult{.iteration = 4, .images = 8, .batches = 2, .loss = 1.0});
  }
  Bytes files;
  for (const char* const name : kFiles) {
    const Bytes file = io::read_file(folder / name, 1 << 20);
    files.insert(files.end(), file.begin(), file.end());
    files.push_back(std::byte{1});
  }
  return {tagged(3, files), tagged(6, files)};
}

}  // namespace millrace::fuzz
