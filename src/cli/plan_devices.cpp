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
  partition::LayoutSearch search{
      .devices = static_cast<std::int32_t>(*options.integer("devices")),
      .total_batch = *options.integer("total-batch"),
      .memory_limit = device_memory(options.text("device-memory").value_or("")),
      .shards_optimizer = options.flag("shard-optimizer")};
  if (needs != nullptr) {
    search.assumed_rest = needs->assumed;
    search.varies = train::kBaseVaries;
    search.measure = [&](const partition::FoundLayout& layout) {
      const std::vector<std::string> words = split_list(options_text(layout), ' ');
      return needs->measure(parse_arguments(Command::Train, words, 0)).need;
    };
  }
  const std::vector<partition::FoundLayout> found = search_layouts(graph, request, search);
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
