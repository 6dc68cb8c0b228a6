// SPDX-License-Identifier: Apache-2.0
#include "run/complete.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "run/complete_parts.hpp"

namespace millrace::run {
namespace {

/// Reports options that never have an effect here but occur in recipes. They are not refused.
void note_idle(const Patch& given, Notices& notices) {
  for (const auto& [name, setting] : given.settings()) {
    const Field& spec = *find_field(name);
    const bool* flag = std::get_if<bool>(&setting.value);
    if (spec.idle.empty() || (flag != nullptr && !*flag)) continue;
    notices.push_back(fmt::format("{} has no effect here: {}", setting.where, spec.idle));
  }
}

/// Why an option has no effect, and what to do, as far as its row says.
std::string reason_of(const Field& spec, const Patch& options) {
  if (spec.section == Section::Model && spec.heading.empty() && is_given_network(options))
    return fmt::format(": {} is the whole network: remove the option", *options.text("model"));
  return spec.needs.empty() ? "" : fmt::format(": it needs {}", spec.needs);
}

/// Whether what an option does not do is told elsewhere.
bool has_own_notice(std::string_view name, const Run& config) {
  if (name == "warmup-epochs") return config.length.iterations.has_value();
  return name.starts_with("sharding-") && config.pipeline.ranges.size() > 1;
}

/// An option without an effect is an error on the command line, unless its trainer accepts it
/// there or `smoke` took the data away, a notice in a file (which may serve several command lines),
/// and normal in the environment and for defaults of a dialect.
void check_effects(const Patch& given, const Run& config, Notices& notices) {
  for (const auto& [name, setting] : given.settings()) {
    const Field& spec = *find_field(name);
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
int loader_threads(const DataConfig& data, const MachineFacts& machine) {
  constexpr int kMost = 16;
  const bool pictures = holds_photos(data.dataset) && data.source == ImageSource::Files;
  if (!pictures || !machine.has_gpu) return 1;
  return std::clamp(threads_of_rank(machine, machine.local_ranks), 1, kMost);
}

}  // namespace

Verbosity verbosity_of(const Patch& options) {
  const bool quiet = options.flag("quiet");
  if (quiet && options.flag("verbose"))
    fail(ErrorKind::Usage, "{} and {} contradict each other: give one of them",
         options.find("quiet")->where, options.find("verbose")->where);
  if (quiet) return Verbosity::Quiet;
  return options.flag("verbose") ? Verbosity::Verbose : Verbosity::Normal;
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

Completed complete(const Patch& given, const DatasetFacts& data, const MachineFacts& machine) {
  Completed result;
  check_families(given, result.notices);
  result.run = asked_run(given);
  Run& run = result.run;
  complete_model(given, data, run, result.notices);
  if (given.find("pipeline-num-parallel") == nullptr)
    run.data.loader_threads = loader_threads(run.data, machine);
  complete_data(data, machine, run);
  complete_batch(run);
  complete_length(run);
  complete_optimiser(given, run);
  complete_rate(given, run, result.notices);
  complete_numerics(given, run);
  run.stop_after = given.integer("stop-after");
  complete_validation(given, run, result.notices);
  run.verbosity = verbosity_of(given);
  complete_trace(given, run, result.notices);
  if (given.flag("smoke") && machine.ranks > 1)
    fail(ErrorKind::Usage,
         "{} processes were started, but `smoke` runs one replica in one process: start it without "
         "a launcher (mpirun -np 1), or leave `smoke` out",
         machine.ranks);
  return result;
}

RunPlace complete_layout(const Patch& given, const MachineFacts& machine, Run& run,
                         Notices& notices) {
  check_hosts(given, machine, run, notices);
  check_layout(given, run);
  complete_checkpoints(given, run, notices);
  complete_logs(given, run, notices);
  RunPlace place = complete_place(given, run);
  note_idle(given, notices);
  check_effects(given, run, notices);
  return place;
}

}  // namespace millrace::run
