// SPDX-License-Identifier: Apache-2.0
#include "train/resolve.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"

namespace millrace::training {
namespace {

using Ops = std::vector<models::OpId>;

Json json_of(const Ops& ops) {
  Json list = Json::list();
  for (const models::OpId op : ops) list.push_back(op.value);
  return list;
}

Ops ops_in(const Json& list) {
  Ops ops;
  for (const Json& op : list.items()) ops.push_back({static_cast<std::int32_t>(op.as_int64())});
  return ops;
}

Resolution resolve(const Patch& given, const DatasetFacts& data, const MachineFacts& machine,
                   std::optional<partition::Decided> decided) {
  run::Completed completed = run::complete(given, data, machine);
  const models::Graph graph = network_of(completed.run);
  partition::LayoutFacts facts = decided ? partition::LayoutFacts{.machine = machine}
                                         : layout_facts(graph, completed.run, machine);
  if (decided && !completed.run.layout.schedule_file.empty()) facts.actions = decided->actions;
  facts.decided = std::move(decided);
  partition::Choice choice =
      partition::choose(graph, std::move(completed.run), facts, sizer_of(graph));
  Resolution result{.config = std::move(choice.run),
                    .layout = std::move(choice.layout),
                    .notices = std::move(completed.notices)};
  std::move(choice.notices.begin(), choice.notices.end(), std::back_inserter(result.notices));
  run::complete_layout(given, machine, result.config, result.notices);
  // The run may be restored from another place.
  std::string& file = result.config.layout.schedule_file;
  if (!file.empty()) file = std::filesystem::absolute(file).lexically_normal().string();
  return result;
}

}  // namespace

Resolution resolve(const Patch& given, const DatasetFacts& data, const MachineFacts& machine) {
  return resolve(given, data, machine, std::nullopt);
}

std::string handed_over(const run::Run& decided) {
  Json stages = Json::list();
  for (const pipeline::ChosenSegments& stage : decided.chosen_segments)
    stages.push_back(Json::list({json_of(stage.segments), json_of(stage.kept)}));
  const pipeline::PipelinePlan& plan = decided.pipeline;
  const pipeline::Schedule compute =
      without_communication(plan.is_joint() ? plan.joint : plan.schedule);
  Json shares = Json::list();
  for (const std::int32_t share : plan.ranks.shares)
    if (plan.is_joint()) shares.push_back(share);
  return Json::object({{"fields", to_toml(decided)},
                       {"cut_by_memory", decided.layout.cut_by_memory ? 1 : 0},
                       {"schedule", compute.name},
                       {"actions", to_csv(compute)},
                       {"segments", std::move(stages)},
                       {"splits", join(decided.splits, " ")},
                       {"shares", std::move(shares)}})
      .dump();
}

Resolution taken_over(const std::string& text, const Patch& given, const DatasetFacts& data,
                      const MachineFacts& machine) {
  const Json json = Json::parse(text);
  partition::Decided parts;
  parts.actions = pipeline::parse_schedule(json.at("actions").text(), json.at("schedule").text());
  parts.cut_by_memory = json.at("cut_by_memory").as_int64() == 1;
  parts.splits = split_list(json.at("splits").text(), ' ');
  for (const Json& share : json.at("shares").items())
    parts.shares.push_back(static_cast<std::int32_t>(share.as_int64()));
  for (const Json& stage : json.at("segments").items())
    parts.segments.push_back(
        {.segments = ops_in(stage.items()[0]), .kept = ops_in(stage.items()[1])});
  Patch decided = parse_config(json.at("fields").text(), "the run of rank 0");
  decided.network = given.network;
  // The stages of a plan are recorded.
  for (const auto& [field_name, setting] : given.settings())
    if (const run::Field& field = *find_field(field_name); !field.get && field_name != "plan")
      decided.set(field, setting);
  Resolution taken = resolve(decided, data, machine, std::move(parts));
  taken.config.asked_layout = asked_run(given).layout;
  return taken;
}

}  // namespace millrace::training
