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
void note_idle(Reader& read, Notices& notices) {
  for (const auto& [name, setting] : read.options().settings()) {
    const OptionSpec& spec = *find_option(name);
    const bool* flag = std::get_if<bool>(&setting.value);
    if (spec.idle.empty() || (flag != nullptr && !*flag)) continue;
    notices.push_back(fmt::format("{} has no effect here: {}", setting.where, spec.idle));
    read.use(name);
  }
}

/// Why an option has no effect, and what to do, as far as its row says.
std::string reason_of(const OptionSpec& spec, const Options& options) {
  if (spec.section == Section::Model && is_given_network(options))
    return fmt::format(": {} is the whole network: remove the option", *options.text("model"));
  return spec.needs.empty() ? "" : fmt::format(": it needs {}", spec.needs);
}

/// An option that nothing read is an error on the command line, unless its trainer accepts it
/// there or --smoke took the data away, a notice in a file (which may serve several command lines),
/// and normal in the environment and for defaults of a dialect.
void check_all_used(const Reader& read, Notices& notices) {
  for (const auto& [name, setting] : read.options().settings()) {
    const OptionSpec& spec = *find_option(name);
    const bool off = spec.type == ValueType::Flag && !std::get<bool>(setting.value);
    if (spec.section == Section::Command || off || setting.origin == Origin::Environment ||
        setting.origin == Origin::Dialect || read.used(name) || name == "no-validation")
      continue;
    if (name == "warmup-epochs" && read.given("iterations")) continue;  // has its own notice
    const std::string message =
        fmt::format("{} has no effect here{}", setting.where, reason_of(spec, read.options()));
    const bool replaced = spec.section == Section::Data && read.options().flag("smoke");
    if (setting.origin == Origin::CommandLine && !spec.harmless && !replaced)
      fail(ErrorKind::Usage, "{}", message);
    notices.push_back(message);
  }
}

/// One core decodes images for several cores that train on them, but not for a GPU.
int loader_threads(const DataRequest& request, const MachineFacts& machine) {
  constexpr int kMost = 16;
  const bool pictures = request.dataset == kImageNet && request.source == train::ImageSource::Files;
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

Resolution resolve(const Options& options, const DatasetFacts& data, const MachineFacts& machine) {
  Reader read(options);
  const DataRequest request = data_request(read, DataNeed::Name);
  const models::Task task = task_of(request.dataset);
  Resolution result;
  TrainConfig& config = result.config;
  check_families(options, result.notices);
  resolve_model(read, data, task, config, result.notices);
  const FamilyRecipe recipe = family_recipe(config.model.model, task);
  config.data.loader_threads = loader_threads(request, machine);
  resolve_data(read, request, data, config);
  // The tensors are the same, and there is less to copy.
  if (machine.copies_images && !config.data.image_type && !read.given("hostside-norm"))
    config.data.image_type = DType::U8;
  resolve_batch(read, recipe, config);
  resolve_length(read, recipe, config);
  resolve_optimiser(read, recipe, config);
  resolve_rate(read, recipe, config, result.notices);
  resolve_numerics(read, config, result.notices);
  config.stop_after = options.integer("stop-after");
  resolve_validation(read, config, result.notices);
  config.verbosity = verbosity_of(options);
  result.layout = resolve_layout(read, machine, config, result.notices);
  check_layout(read, config);
  resolve_checkpoints(read, config, result.notices);
  resolve_logs(read, config, result.notices);
  result.place = resolve_place(read);
  note_idle(read, result.notices);
  check_all_used(read, result.notices);
  config.resolved_toml = to_toml(read.effective());
  return result;
}

}  // namespace millrace::cli
