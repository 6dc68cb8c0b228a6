// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/planning.hpp"
#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/layout_search.hpp"
#include "train/memory.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

/// The fields that the search finds.
constexpr auto kFound = std::to_array<std::string_view>(
    {"shards", "replicas", "ranks", "batch-size", "pipeline-depth", "gradients-to-accumulate",
     "chunks", "plan", "pipeline-schedule", "device-mapping", "pipeline-splits", "recompute",
     "recompute-layers", "xla-recompute"});

}  // namespace

Patch without_layout(Patch options) {
  if (options.integer("devices").has_value() != options.integer("total-batch").has_value())
    fail(ErrorKind::Usage,
         "--devices N and --total-batch N go together: they ask for the best layout of N devices "
         "for updates of N images");
  if (!options.integer("devices")) return options;
  for (const std::string_view name : kFound)
    if (const Setting* typed = options.typed(name))
      fail(ErrorKind::Usage, "{} has no effect with --devices, which searches for it: leave it out",
           typed->where);
  if (options.value("cost-model") == Value(std::string("profile")))
    fail(ErrorKind::Usage,
         "--cost-model profile measures one micro-batch, but --devices searches for it: measure "
         "the machine with millrace bench --machine-file FILE, and give --device FILE");
  for (const std::string_view name : kFound) options.erase(name);
  // Those belong to all layouts, and none is there before the search.
  options.erase("device-memory");
  for (const std::string_view name : run::kOptionsOfReplicas) options.erase(name);
  return options;
}

namespace {

/// Text, or JSON, of the layouts that were found.
void print_layouts(const Patch& options, const models::Graph& graph,
                   const partition::PlanRequest& request, const partition::LayoutSearch& search,
                   std::int64_t images) {
  const std::vector<partition::FoundLayout> found = search_layouts(graph, request, search);
  partition::TrainingLength length{.images = images};
  length.epochs = options.real("epochs").value_or(length.epochs);
  const std::string format = options.text("format").value_or("text");
  if (format == "json") {
    fmt::print("{}", respelled(with_notes(to_json(found, length),
                                          unknown_to_plan(options, search.devices)),
                               Patch()));
    return;
  }
  if (format != "text")
    fail(ErrorKind::Usage, "--format {}: a search has only text and json", format);
  fmt::print(
      "{}, {} an update on {} in {}; costs: {}; messages: {:.1f} us, {:.2f} "
      "GB/s\n{}\nThe first: {}\n{}",
      graph.name, counted(search.total_batch, "image"), counted(search.devices, "device"),
      name_of(request.program.type), request.cost_model, 1e6 * request.link.latency,
      1e-9 * request.link.bytes_per_second, to_text(found, length),
      respelled(training_fields(found.front()), Patch()), unknown_to_plan(options, search.devices));
}

}  // namespace

void plan_devices(const Patch& given, const Patch& options, const Datasets& sets,
                  const Resolution& resolution, const models::Graph& graph,
                  partition::PlanRequest request, const comm::World& world) {
  partition::LayoutSearch search{
      .devices = static_cast<std::int32_t>(*given.integer("devices")),
      .total_batch = *given.integer("total-batch"),
      .memory_limit = device_memory(given.text("device-memory").value_or("")),
      .shards_optimizer = given.flag("shard-optimizer")};
  request.schedule = {};
  const training::TrainInputs inputs{
      .train = sets.train, .validation = sets.validation, .command_line = {}, .notices = {}};
  // Nobody knows what the kernels of another machine pack, or what its processes need besides.
  if (!given.text("device")) {
    request.sizer = training::search_sizer(graph, resolution.config);
    search.assumed_rest = training::sizer_of(graph).rest(resolution.config);
    search.varies = training::kBaseVaries;
    search.measure = [&](const partition::FoundLayout& layout) {
      const Resolution run =
          resolve(options_to_plan(merge(patch_of(layout), options)), sets.facts, this_machine());
      return training::device_use(forecast_processes(saving(run.config), inputs, world)).need;
    };
  }
  print_layouts(given, graph, request, search, sets.facts.train_size);
}

}  // namespace millrace::cli
