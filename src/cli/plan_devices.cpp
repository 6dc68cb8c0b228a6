// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/planning.hpp"
#include "cli/resolve_parts.hpp"
#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/layout_search.hpp"

namespace millrace::cli {
namespace {

/// What the search finds.
constexpr std::array kFound = {"shards",
                               "replicas",
                               "ranks",
                               "batch-size",
                               "pipeline-depth",
                               "gradients-to-accumulate",
                               "chunks",
                               "plan",
                               "pipeline-schedule",
                               "device-mapping",
                               "pipeline-splits",
                               "recompute",
                               "recompute-layers",
                               "xla-recompute"};

/// The options of `train` that lead to a layout.
std::string options_text(const partition::FoundLayout& layout) {
  return respelled(training_fields(layout), Patch());
}

train::DeviceUse use_of(const partition::FoundLayout& layout, const ProcessNeeds& needs) {
  const std::vector<std::string> words = split_list(options_text(layout), ' ');
  return needs.measure(parse_arguments(Command::Train, words, 0));
}

/// What processes need besides their stages, learned from the layouts that were measured.
class MeasuredRests {
 public:
  explicit MeasuredRests(std::int64_t assumed) : assumed_(assumed) {}

  /// Of a layout that was not measured: what is assumed for a smaller micro-batch, which needs
  /// less, is rather too little, so that it is tried and measured.
  [[nodiscard]] std::int64_t of(std::int32_t devices, std::int64_t batch) const {
    constexpr double kLess = 0.9;
    const auto found = rests_.find({devices, batch});
    if (found != rests_.end()) return found->second;
    std::optional<std::int64_t> least;
    for (const auto& [layout, rest] : rests_)
      if (layout.first == devices) least = std::min(least.value_or(rest), rest);
    return least ? static_cast<std::int64_t>(kLess * static_cast<double>(*least)) : assumed_;
  }

  /// The sizes of a search are approximate, so that the rest is what was measured without them.
  void learn(const partition::FoundLayout& layout) {
    const std::int64_t rest =
        layout.with_process + train::kBaseVaries - partition::largest_device(layout.plan);
    const auto [at, added] =
        rests_.try_emplace({layout.request.schedule.devices, layout.plan.batch}, rest);
    if (!added) at->second = std::max(at->second, rest);
  }

 private:
  std::int64_t assumed_;
  std::map<std::pair<std::int32_t, std::int64_t>, std::int64_t> rests_;
};

/// The layouts of the search that a run fits into. What is found is measured, and what does not fit
/// is left out by the next search, until all fit.
std::vector<partition::FoundLayout> layouts_that_fit(const models::Graph& graph,
                                                     const partition::PlanRequest& request,
                                                     partition::LayoutSearch search,
                                                     const ProcessNeeds& needs) {
  constexpr int kRounds = 16;
  MeasuredRests rests(needs.assumed);
  search.rest = [&](std::int32_t devices, std::int64_t batch) { return rests.of(devices, batch); };
  const auto fits = [&](const partition::FoundLayout& layout) {
    return layout.with_process + train::kBaseVaries <= search.memory_limit;
  };
  for (int round = 1;; ++round) {
    std::vector<partition::FoundLayout> found = search_layouts(graph, request, search);
    if (search.memory_limit == 0) return found;
    for (partition::FoundLayout& layout : found) {
      layout.with_process = use_of(layout, needs).need;
      rests.learn(layout);
    }
    if (std::ranges::all_of(found, fits)) return found;
    if (round < kRounds) continue;
    std::erase_if(found, [&](const auto& layout) { return !fits(layout); });
    if (!found.empty()) return found;
  }
}

}  // namespace

Patch without_layout(Patch options) {
  if (options.integer("devices").has_value() != options.integer("total-batch").has_value())
    fail(ErrorKind::Usage,
         "--devices N and --total-batch N go together: they ask for the best layout of N devices "
         "for updates of N images");
  if (!options.integer("devices")) return options;
  for (const char* name : kFound)
    if (const Setting* typed = options.typed(name))
      fail(ErrorKind::Usage, "{} has no effect with --devices, which searches for it: leave it out",
           typed->where);
  if (options.value("cost-model") == Value(std::string("profile")))
    fail(ErrorKind::Usage,
         "--cost-model profile measures one micro-batch, but --devices searches for it: measure "
         "the machine with millrace bench --machine-file FILE, and give --device FILE");
  for (const char* name : kFound) options.erase(name);
  // Those belong to all layouts, and none is there before the search.
  options.erase("device-memory");
  options.erase("shard-optimizer");
  return options;
}

int print_layouts(const Patch& options, const models::Graph& graph,
                  const partition::PlanRequest& request, const ProcessNeeds* needs,
                  const DatasetFacts& facts) {
  const partition::LayoutSearch search{
      .devices = static_cast<std::int32_t>(*options.integer("devices")),
      .total_batch = *options.integer("total-batch"),
      .memory_limit = device_memory(options.text("device-memory").value_or("")),
      .rest = {},
      .shards_optimizer = options.flag("shard-optimizer")};
  const std::vector<partition::FoundLayout> found =
      needs != nullptr ? layouts_that_fit(graph, request, search, *needs)
                       : search_layouts(graph, request, search);
  const partition::TrainingLength length{.images = facts.train_size,
                                         .epochs = options.real("epochs").value_or(90.0)};
  const std::string format = options.text("format").value_or("text");
  if (format == "json") {
    fmt::print("{}", respelled(with_notes(to_json(found, length),
                                          unknown_to_plan(options, search.devices)),
                               Patch()));
    return 0;
  }
  if (format != "text")
    fail(ErrorKind::Usage, "--format {}: a search has only text and json", format);
  fmt::print(
      "{}, {} an update on {} in {}; costs: {}; messages: {:.1f} us, {:.2f} "
      "GB/s\n{}\nThe first: {}\n{}",
      graph.name, counted(search.total_batch, "image"), counted(search.devices, "device"),
      name_of(request.program.type), request.cost_model, 1e6 * request.link.latency,
      1e-9 * request.link.bytes_per_second, to_text(found, length), options_text(found.front()),
      unknown_to_plan(options, search.devices));
  return 0;
}

}  // namespace millrace::cli
