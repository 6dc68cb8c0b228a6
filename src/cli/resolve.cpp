// SPDX-License-Identifier: Apache-2.0
#include "cli/resolve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"

namespace millrace::cli {
namespace {

using train::TrainConfig;

/// Reports options that never have an effect here but occur in recipes. They are not refused.
void note_idle(const Options& given, Notices& notices) {
  for (const auto& [name, setting] : given.settings()) {
    const OptionSpec& spec = *find_option(name);
    const bool* flag = std::get_if<bool>(&setting.value);
    if (spec.idle.empty() || (flag != nullptr && !*flag)) continue;
    notices.push_back(fmt::format("{} has no effect here: {}", setting.where, spec.idle));
  }
}

/// Why an option has no effect, and what to do, as far as its row says.
std::string reason_of(const OptionSpec& spec, const Options& options) {
  if (spec.section == Section::Model && is_given_network(options))
    return fmt::format(": {} is the whole network: remove the option", *options.text("model"));
  return spec.needs.empty() ? "" : fmt::format(": it needs {}", spec.needs);
}

/// Whether what an option does not do is told elsewhere.
bool has_own_notice(std::string_view name, const TrainConfig& config) {
  if (name == "warmup-epochs") return config.length.iterations.has_value();
  return name.starts_with("sharding-") && config.pipeline.ranges.size() > 1;
}

/// An option without an effect is an error on the command line, unless its trainer accepts it
/// there or --smoke took the data away, a notice in a file (which may serve several command lines),
/// and normal in the environment and for defaults of a dialect.
void check_effects(const Options& given, const TrainConfig& config, Notices& notices) {
  for (const auto& [name, setting] : given.settings()) {
    const OptionSpec& spec = *find_option(name);
    const bool off = spec.type == ValueType::Flag && !std::get<bool>(setting.value);
    const bool typed = setting.origin == Origin::CommandLine;
    if (spec.section == Section::Command || !spec.idle.empty() || off ||
        setting.origin == Origin::Environment || setting.origin == Origin::Dialect ||
        has_effect(spec, config) || has_own_notice(name, config))
      continue;
    if (spec.for_other_data && !typed) continue;
    const std::string message =
        fmt::format("{} has no effect here{}", setting.where, reason_of(spec, given));
    const bool replaced = spec.section == Section::Data && given.flag("smoke");
    if (typed && !spec.harmless && !replaced) fail(ErrorKind::Usage, "{}", message);
    notices.push_back(message);
  }
}

/// One core decodes images for several cores that train on them, but not for a GPU.
int loader_threads(const train::DataConfig& data, const MachineFacts& machine) {
  constexpr int kMost = 16;
  const bool pictures = data.dataset == kImageNet && data.source == train::ImageSource::Files;
  if (!pictures || !machine.has_gpu) return 1;
  return std::clamp(threads_of_rank(machine, machine.local_ranks), 1, kMost);
}

}  // namespace

train::Verbosity verbosity_of(const Options& options) {
  const bool quiet = options.flag("quiet");
  if (quiet && options.flag("verbose"))
    fail(ErrorKind::Usage, "{} and {} contradict each other: give one of them",
         options.find("quiet")->where, options.find("verbose")->where);
  if (quiet) return train::Verbosity::Quiet;
  return options.flag("verbose") ? train::Verbosity::Verbose : train::Verbosity::Normal;
}

int threads_of_rank(const MachineFacts& machine, int local_ranks) {
  return machine.threads > 0 ? machine.threads
                             : std::max(1, machine.cores / std::max(1, local_ranks));
}

std::int64_t checked_product(std::int64_t a, std::int64_t b, std::string_view what) {
  if (a > std::numeric_limits<std::int64_t>::max() / b)
    fail(ErrorKind::Config, "{}: {} x {} does not fit into 64 bits", what, a, b);
  return a * b;
}

Resolution resolve(const Options& given, const DatasetFacts& data, const MachineFacts& machine) {
  Resolution result;
  check_families(given, result.notices);
  result.config = asked_config(given);
  TrainConfig& config = result.config;
  resolve_model(given, data, config, result.notices);
  if (given.find("pipeline-num-parallel") == nullptr)
    config.data.loader_threads = loader_threads(config.data, machine);
  resolve_data(data, machine, config);
  resolve_batch(given, config);
  resolve_length(config);
  resolve_optimiser(given, config);
  resolve_rate(given, config, result.notices);
  resolve_numerics(given, config);
  config.stop_after = given.integer("stop-after");
  resolve_validation(given, config, result.notices);
  config.verbosity = verbosity_of(given);
  resolve_trace(given, config, result.notices);
  if (given.flag("smoke") && machine.ranks > 1)
    fail(ErrorKind::Usage,
         "{} processes were started, but --smoke runs one replica in one process: start it without "
         "a launcher (mpirun -np 1), or leave --smoke out",
         machine.ranks);
  result.layout = resolve_layout(machine, config, result.notices);
  check_hosts(given, machine, config, result.notices);
  check_layout(given, config);
  resolve_checkpoints(given, config, result.notices);
  resolve_logs(given, config, result.notices);
  result.place = resolve_place(given, config);
  note_idle(given, result.notices);
  check_effects(given, config, result.notices);
  config.resolved_toml = to_toml(recorded_values(config));
  return result;
}

}  // namespace millrace::cli
