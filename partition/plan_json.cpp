// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "partition/plan.hpp"

namespace millrace::partition {
namespace {

constexpr std::string_view kFormat = "millrace plan";
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::array kTypes = {DType::F32, DType::BF16, DType::F16};

/// Members of one JSON object. Errors name the file, the place in it and the key. Unknown keys are
/// errors.
class Fields {
 public:
  Fields(const Json& object, std::string_view label, std::string where)
      : object_(object), label_(label), where_(std::move(where)) {
    if (!object.is_object()) fail(ErrorKind::Config, "{}: {}is not an object", label_, where_);
  }

  [[noreturn]] void bad(std::string_view key, std::string_view what) const {
    fail(ErrorKind::Config, "{}: {}{} {}", label_, where_, key, what);
  }
  const Json& member(const char* key) {
    asked_.emplace_back(key);
    const Json* const found = object_.find(key);
    if (found == nullptr) bad(key, "is missing");
    return *found;
  }
  std::string text(const char* key) {
    const Json& value = member(key);
    if (!value.is_text()) bad(key, "is not a string");
    return value.text();
  }
  std::int64_t count(const char* key, std::int64_t least, std::int64_t most = kMost) {
    const Json& value = member(key);
    const bool whole = value.is_unsigned() && value.as_uint64() <= static_cast<std::uint64_t>(most);
    if (!whole || value.as_int64() < least)
      bad(key, fmt::format("is {}, expected a whole number from {}{}", value.dump(), least,
                           most == kMost ? "" : fmt::format(" to {}", most)));
    return value.as_int64();
  }
  std::int32_t small_count(const char* key, std::int64_t least) {
    return static_cast<std::int32_t>(count(key, least, std::numeric_limits<std::int32_t>::max()));
  }
  double number(const char* key) {
    const Json& value = member(key);
    if (!value.is_number() || value.as_double() < 0.0)
      bad(key, fmt::format("is {}, expected a number from 0", value.dump()));
    return value.as_double();
  }
  std::span<const Json> list(const char* key) {
    const Json& value = member(key);
    if (!value.is_list()) bad(key, "is not a list");
    return value.items();
  }
  void expect_no_others() const {
    for (const auto& [key, value] : object_.members()) {
      if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
      const std::string nearest = nearest_match(key, asked_);
      bad(key, nearest.empty() ? "is not a key of a plan"
                               : fmt::format("is not a key of a plan; did you mean {}?", nearest));
    }
  }

 private:
  const Json& object_;
  std::string_view label_;
  std::string where_;
  std::vector<std::string> asked_;
};

Json process_to_json(const ProcessMemory& process) {
  Json devices = Json::list();
  for (const DeviceMemory& d : process.devices)
    devices.push_back(Json::object({{"replica", d.replica},
                                    {"device", d.device},
                                    {"state", d.state},
                                    {"activations", d.activations},
                                    {"kernels", d.kernels},
                                    {"sums", d.sums},
                                    {"images", d.images},
                                    {"total", d.total()}}));
  return Json::object({{"rank", process.rank},
                       {"devices", std::move(devices)},
                       {"base", process.base},
                       {"margin", process.margin},
                       {"messages", process.messages},
                       {"loader", process.loader},
                       {"checkpoints", process.checkpoints},
                       {"other", process.other},
                       {"peak", process.peak()}});
}

ProcessMemory read_process(const Json& object, std::string_view label, std::size_t at) {
  const std::string where = fmt::format("processes[{}]: ", at);
  Fields fields(object, label, where);
  ProcessMemory process;
  process.rank = fields.small_count("rank", 0);
  for (const Json& item : fields.list("devices")) {
    Fields of(item, label, where + "devices: ");
    process.devices.push_back({.replica = of.small_count("replica", 0),
                               .device = of.small_count("device", 0),
                               .state = of.count("state", 0),
                               .activations = of.count("activations", 0),
                               .kernels = of.count("kernels", 0),
                               .sums = of.count("sums", 0),
                               .images = of.count("images", 0)});
    (void)of.count("total", 0);
    of.expect_no_others();
  }
  process.base = fields.count("base", 0);
  // Before there was a margin, plans said what the kernel library takes.
  process.margin = fields.count(object.find("library") != nullptr ? "library" : "margin", 0);
  process.messages = fields.count("messages", 0);
  process.loader = fields.count("loader", 0);
  process.checkpoints = fields.count("checkpoints", 0);
  process.other = fields.count("other", 0);
  (void)fields.count("peak", 0);
  fields.expect_no_others();
  return process;
}

Json stage_to_json(const Plan& plan, std::size_t s) {
  const pipeline::StageCost& cost = plan.costs.at(s);
  return Json::object({{"device", plan.device_of[s]},
                       {"forward", cost.forward},
                       {"backward_input", cost.backward_input},
                       {"backward_weight", cost.backward_weight},
                       {"update", cost.update},
                       {"stash_bytes", cost.stash_bytes},
                       {"memory_bytes", plan.memory.at(s)}});
}

void read_stage(Plan& plan, const Json& object, std::string_view label, std::size_t s) {
  Fields fields(object, label, fmt::format("stages[{}]: ", s));
  plan.device_of.push_back(fields.small_count("device", 0));
  pipeline::StageCost cost;
  cost.forward = fields.number("forward");
  cost.backward_input = fields.number("backward_input");
  cost.backward_weight = fields.number("backward_weight");
  cost.update = fields.number("update");
  cost.stash_bytes = fields.number("stash_bytes");
  plan.costs.push_back(cost);
  plan.memory.push_back(fields.count("memory_bytes", 0));
  fields.expect_no_others();
}

DType read_type(Fields& fields) {
  const std::string name = fields.text("type");
  for (const DType type : kTypes)
    if (name_of(type) == name) return type;
  fields.bad("type", fmt::format("is {}, expected float32, bfloat16 or float16", name));
}

std::vector<std::string> read_splits(Fields& fields) {
  std::vector<std::string> splits;
  for (const Json& split : fields.list("splits")) {
    if (!split.is_text()) fields.bad("splits", "has an entry that is not a string");
    splits.push_back(split.text());
  }
  return splits;
}

Json parse(std::string_view text, std::string_view label) {
  try {
    return Json::parse(text);
  } catch (const JsonError& error) {
    if (error.byte() == 0) fail(ErrorKind::Config, "{}: is not a plan: {}", label, error.what());
    fail(ErrorKind::Config, "{}: invalid or incomplete JSON at byte {}", label, error.byte());
  }
}

}  // namespace

std::string to_json(const Plan& plan) {
  Json stages = Json::list();
  for (std::size_t s = 0; s < plan.stages(); ++s) stages.push_back(stage_to_json(plan, s));
  Json processes = Json::list();
  for (const ProcessMemory& process : plan.processes) processes.push_back(process_to_json(process));
  const Json json = Json::object({{"format", kFormat},
                                  {"version", 1},
                                  {"model", plan.model},
                                  {"batch_size", plan.batch},
                                  {"type", name_of(plan.type)},
                                  {"micro_batches", plan.micro_batches},
                                  {"schedule", plan.schedule},
                                  {"splits", plan.splits},
                                  {"seconds", plan.seconds},
                                  {"bound", plan.bound},
                                  {"bubble", plan.bubble},
                                  {"cost_model", plan.cost_model},
                                  {"stages", std::move(stages)},
                                  {"processes", std::move(processes)}});
  return json.dump(2) + "\n";
}

Plan parse_plan(std::string_view text, std::string_view label) {
  const Json json = parse(text, label);
  Fields fields(json, label, "");
  if (const std::string format = fields.text("format"); format != kFormat)
    fields.bad("format", fmt::format("is {}, expected {}", format, kFormat));
  (void)fields.count("version", 1, 1);
  Plan plan;
  plan.model = fields.text("model");
  plan.batch = fields.count("batch_size", 1);
  plan.type = read_type(fields);
  plan.micro_batches = fields.small_count("micro_batches", 1);
  plan.schedule = fields.text("schedule");
  plan.splits = read_splits(fields);
  plan.seconds = fields.number("seconds");
  plan.bound = fields.number("bound");
  plan.bubble = fields.number("bubble");
  plan.cost_model = fields.text("cost_model");
  const std::span<const Json> stages = fields.list("stages");
  if (stages.size() != plan.splits.size() + 1)
    fields.bad("stages", fmt::format("has {} entries, but there are {} splits; expected one more",
                                     stages.size(), plan.splits.size()));
  for (std::size_t s = 0; s < stages.size(); ++s) read_stage(plan, stages[s], label, s);
  // Plans of earlier versions have no such list.
  if (json.contains("processes"))
    for (const Json& process : fields.list("processes"))
      plan.processes.push_back(read_process(process, label, plan.processes.size()));
  if (json.contains("notes")) (void)fields.list("notes");  // for people
  if (json.contains("failures")) (void)fields.member("failures");
  fields.expect_no_others();
  return plan;
}

}  // namespace millrace::partition
