// SPDX-License-Identifier: Apache-2.0
//
// The parts of the option table, each in its own file, and the constants that their rows use.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.hpp"
#include "core/text.hpp"

namespace millrace::cli {

/// Rows of one or a few neighbouring sections.
[[nodiscard]] std::span<const OptionSpec> model_options();
[[nodiscard]] std::span<const OptionSpec> data_options();
[[nodiscard]] std::span<const OptionSpec> train_options();
[[nodiscard]] std::span<const OptionSpec> rate_options();      ///< optimizer and learning rate
[[nodiscard]] std::span<const OptionSpec> output_options();    ///< validation, checkpoints, logs
[[nodiscard]] std::span<const OptionSpec> pipeline_options();  ///< and replicas
[[nodiscard]] std::span<const OptionSpec> device_options();
[[nodiscard]] std::span<const OptionSpec> command_options();  ///< of one invocation

namespace option_words {

/// "a|b|c": the choices that a table of the program offers, by the member that names them.
template <class Row>
[[nodiscard]] std::string choices_of(std::span<const Row> rows, std::string_view Row::*name) {
  std::vector<std::string_view> names;
  for (const Row& row : rows) names.push_back(row.*name);
  return join(names, "|");
}

constexpr CommandSet set_of(Command command) { return static_cast<CommandSet>(command); }

inline constexpr CommandSet kTrain = set_of(Command::Train);
inline constexpr CommandSet kBench = set_of(Command::Bench);
inline constexpr CommandSet kPlan = set_of(Command::Plan);
/// Commands that resolve a whole training. `restore` also takes the options that it must not
/// change, so that it can refuse them by name.
inline constexpr CommandSet kTrainings =
    kTrain | set_of(Command::Restore) | set_of(Command::Import);
/// A benchmark has no length, validation schedule, logs or checkpoints.
inline constexpr CommandSet kRuns = kTrainings | kBench | kPlan;
inline constexpr CommandSet kRunsAndValidate = kRuns | set_of(Command::Validate);
inline constexpr CommandSet kContinues = kTrain | set_of(Command::Restore);
inline constexpr CommandSet kPlacesRun = kTrain;
inline constexpr CommandSet kReads = set_of(Command::Restore) | set_of(Command::Validate);

/// The data tools that read images.
inline constexpr CommandSet kDataTools = set_of(Command::DataIndex) | set_of(Command::DataCheck) |
                                         set_of(Command::DataStats) | set_of(Command::DataConvert);

inline constexpr auto kResNet = static_cast<FamilySet>(Family::ResNet);
inline constexpr auto kResNeXt = static_cast<FamilySet>(Family::ResNeXt);
inline constexpr auto kSqueezeNet = static_cast<FamilySet>(Family::SqueezeNet);
inline constexpr auto kEfficientNet = static_cast<FamilySet>(Family::EfficientNet);
inline constexpr FamilySet kResidual = kResNet | kResNeXt;
inline constexpr FamilySet kNormed = kResidual | kEfficientNet;

inline constexpr Mathematics kChanges = Mathematics::Changes;
inline constexpr double kMaxCount = 2147483647.0;
inline constexpr double kMaxSeed = 9007199254740991.0;  // exact as a double

constexpr Range at_least(double low) { return {.low = low, .high = kMaxCount}; }
constexpr Range above_zero() { return {.low = 0.0, .low_end = Range::Low::Excluded}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range from_zero_below(double high) {
  return {.low = 0.0, .high = high, .high_end = Range::High::Excluded};
}

}  // namespace option_words
}  // namespace millrace::cli
