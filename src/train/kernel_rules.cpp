// SPDX-License-Identifier: Apache-2.0
#include "train/kernel_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/environment.hpp"
#include "ops/backend.hpp"

namespace millrace::train {
namespace {

std::string why_unfit(const TrainConfig& config) {
  return config.kernels.table ? ops::why_unfit_here(*config.kernels.table) : std::string();
}

/// Rows whose kernels only `allow-nondeterministic` permits.
std::int64_t varying_rows(const KernelTable& table) {
  return std::ranges::count_if(table.rows,
                               [](const auto& row) { return !row.second.best.deterministic; });
}

std::string describe_table(const KernelRules& rules, const std::filesystem::path& file,
                           std::string_view unfit) {
  if (!unfit.empty())
    return fmt::format("Kernel table {} is not used: {}; the library chooses the kernels",
                       file.string(), unfit);
  const KernelTable& table = *rules.table;
  std::string line =
      fmt::format("Kernel table {}: {} passes measured on {} with {}, number {}", file.string(),
                  table.rows.size(), table.device, table.library, identity(table));
  const std::int64_t varying = varying_rows(table);
  if (varying > 0 && !rules.allow_nondeterministic)
    line +=
        fmt::format("; {} of them are not used, as they need `allow-nondeterministic`", varying);
  return line;
}

}  // namespace

std::string rules_in_environment(const KernelRules& rules, std::string_view unfit) {
  std::string text;
  if (rules.table && unfit.empty())
    text += fmt::format("; kernel table {}", identity(*rules.table));
  if (rules.allow_nondeterministic) text += "; sums may vary from run to run";
  return text;
}

std::vector<std::string> describe_kernel_rules(const KernelRules& rules,
                                               const std::filesystem::path& file,
                                               std::string_view unfit) {
  std::vector<std::string> lines;
  if (rules.table) lines.push_back(describe_table(rules, file, unfit));
  if (rules.allow_nondeterministic)
    lines.emplace_back(
        "Sums of convolutions may have another order from run to run (`allow-nondeterministic`): "
        "results repeat to rounding, not bit for bit");
  return lines;
}

std::vector<Fact> facts_of_kernels(const KernelRules& rules, const std::string& here,
                                   const std::string& unfit) {
  std::vector<Fact> facts;
  if (!rules.allow_nondeterministic)
    facts.push_back({"device with its libraries", here.empty() ? "cores" : here,
                     "run all ranks on GPUs of one kind with the same libraries, or give "
                     "`allow-nondeterministic`, as their sums have another order"});
  if (rules.table)
    facts.push_back({"kernel table", unfit.empty() ? "in use" : "not used, as " + unfit,
                     "run all ranks on GPUs of one kind with the same cuDNN, or give "
                     "`kernel-table` none"});
  return facts;
}

std::string environment_of(const TrainConfig& config) {
  const std::string here = ops::describe_device_here();
  std::string text = device::describe_environment() + (here.empty() ? "" : "; " + here) +
                     rules_in_environment(config.kernels, why_unfit(config));
  // With less scratch, libraries have other kernels, whose sums have another order.
  if (!config.scratch_caps.empty())
    text += fmt::format("; scratch of at most {} bytes", fmt::join(config.scratch_caps, ", "));
  return text;
}

std::vector<std::string> describe_kernel_rules(const TrainConfig& config) {
  return describe_kernel_rules(config.kernels, config.kernel_table, why_unfit(config));
}

void require_same_kernels(const TrainConfig& config, const comm::World& world) {
  require_alike(world,
                facts_of_kernels(config.kernels, ops::describe_device_here(), why_unfit(config)));
}

}  // namespace millrace::train
