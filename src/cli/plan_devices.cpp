// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/resolve_parts.hpp"
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

train::DeviceUse use_of(const partition::FoundLayout& layout, const ProcessNeeds& needs) {
  const std::vector<std::string> words = split_list(training_options(layout), ' ');
  return needs.measure(parse_arguments(Command::Train, words, 0));
}

/// The layouts of the search that a run fits into. What its processes need besides their stages is
/// assumed at first; where that was too little, the search is done again with what was measured.
std::vector<partition::FoundLayout> layouts_that_fit(const models::Graph& graph,
                                                     const partition::PlanRequest& request,
                                                     partition::LayoutSearch search,
                                                     const ProcessNeeds& needs) {
  constexpr int kRounds = 4;
  search.rest = needs.assumed;
  for (int round = 1;; ++round) {
    std::vector<partition::FoundLayout> found = search_layouts(graph, request, search);
    if (search.memory_limit == 0) return found;
    std::int64_t rest = search.rest;
    const auto fits = [&](std::int64_t need) {
      return need + train::kBaseVaries <= search.memory_limit;
    };
    for (partition::FoundLayout& layout : found) {
      const train::DeviceUse use = use_of(layout, needs);
      layout.with_process = use.need;
      if (!fits(use.need)) rest = std::max(rest, use.rest + train::kBaseVaries);
    }
    std::erase_if(found, [&](const auto& layout) { return !fits(layout.with_process); });
    const bool settled = rest == search.rest;
    if (!found.empty() && (settled || round == kRounds)) return found;
    // Sizes of a search are approximate: what has not fitted is kept out by its excess.
    search.rest = settled ? rest + train::kBaseVaries : rest;
  }
}

}  // namespace

Options without_layout(Options options) {
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

int print_layouts(const Options& options, const models::Graph& graph,
                  const partition::PlanRequest& request, const ProcessNeeds* needs,
                  const DatasetFacts& facts) {
  Reader read(options);
  const partition::LayoutSearch search{
      .devices = static_cast<std::int32_t>(*options.integer("devices")),
      .total_batch = *options.integer("total-batch"),
      .memory_limit = device_memory(read),
      .rest = 0,
      .shards_optimizer = options.flag("shard-optimizer")};
  const std::vector<partition::FoundLayout> found =
      needs != nullptr ? layouts_that_fit(graph, request, search, *needs)
                       : search_layouts(graph, request, search);
  const partition::TrainingLength length{.images = facts.train_size,
                                         .epochs = options.real("epochs").value_or(90.0)};
  const std::string format = options.text("format").value_or("text");
  if (format == "json") {
    fmt::print("{}", to_json(found, length));
    return 0;
  }
  if (format != "text")
    fail(ErrorKind::Usage, "--format {}: a search has only text and json", format);
  fmt::print(
      "{}, {} images an update on {} devices in {}; costs: {}; messages: {:.1f} us, {:.2f} "
      "GB/s\n{}\nThe first: {}\n",
      graph.name, search.total_batch, search.devices, name_of(request.program.type),
      request.cost_model, 1e6 * request.link.latency, 1e-9 * request.link.bytes_per_second,
      to_text(found, length), training_options(found.front()));
  return 0;
}

}  // namespace millrace::cli
