// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/checkpoint.hpp"
#include "train/averaging.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// The newest `count` checkpoints of a run (0: all), without the last `discarded`; oldest first.
/// The weights of ckpt-0 are untrained, so that it never counts.
std::vector<fs::path> chosen(const fs::path& run, std::int64_t count, std::int64_t discarded) {
  io::require_recorded_directory(run);
  std::error_code ignored;
  if (!fs::is_directory(run / "checkpoints", ignored))
    fail(ErrorKind::Checkpoint,
         "{}: has no checkpoints folder: give the directory of a run with saved checkpoints",
         run.string());
  std::vector<fs::path> paths = io::list_checkpoints(run);
  std::erase_if(paths, [](const fs::path& path) { return path.filename() == "ckpt-0"; });
  const std::int64_t left = std::ssize(paths) - discarded;
  if (left < 1 || count > left)
    fail(ErrorKind::Usage,
         "{}: has {} checkpoints of trained weights, too few to average {} after discarding the "
         "last {}: give a smaller --count or --discard-last",
         run.string(), paths.size(), count > 0 ? count : 1, discarded);
  paths.resize(static_cast<std::size_t>(left));
  if (count > 0) paths.erase(paths.begin(), paths.end() - count);
  return paths;
}

training::AverageRule rule_of(const Patch& options, std::size_t count) {
  training::AverageRule rule;
  rule.decay = options.value<double>("decay");
  const bool exponential = options.text("mode") == "exponential";
  if (exponential) rule.mode = training::AverageMode::Exponential;
  rule.name = options.text("filename")
                  .value_or(exponential ? fmt::format("exponential-{}", rule.decay)
                                        : fmt::format("mean-of-{}", count));
  // The name of a folder below the run's averages, not a path.
  if (rule.name.empty() || rule.name.starts_with('.') || rule.name.find('/') != std::string::npos)
    fail(ErrorKind::Usage,
         "--filename '{}': invalid name: it must not contain / or start with a dot", rule.name);
  return rule;
}

void check_decay(const Patch& options) {
  const std::optional<double> decay = options.real("decay");
  if (decay && options.text("mode") != "exponential")
    fail(ErrorKind::Usage,
         "--decay {} has no effect on --mode mean, which weighs all checkpoints equally: give "
         "--mode exponential, or leave it out",
         *decay);
}

/// Saves the average and says so. A training that runs meanwhile may remove a checkpoint before it
/// is read; then the choice is made again.
void average(const fs::path& run, const Patch& options) {
  constexpr int kAttempts = 10;
  const auto is_gone = [](const fs::path& checkpoint) {
    std::error_code ignored;
    return !fs::exists(checkpoint, ignored);
  };
  for (int attempt = 1;; ++attempt) {
    const std::vector<fs::path> checkpoints = chosen(run, options.integer("count").value_or(0),
                                                     options.value<std::int64_t>("discard-last"));
    try {
      const fs::path written =
          training::average_checkpoints(checkpoints, rule_of(options, checkpoints.size()), run);
      fmt::print("Saved {} to {}\n", training::describe_average(checkpoints),
                 printable(written.string()));
      return;
    } catch (const Error&) {
      if (attempt == kAttempts || std::ranges::none_of(checkpoints, is_gone)) throw;
    }
  }
}

}  // namespace

int command_average(const Invocation& invocation) {
  const Patch& options = invocation.options;
  check_decay(options);
  average(invocation.arguments.at(0), options);
  return 0;
}

}  // namespace millrace::cli
