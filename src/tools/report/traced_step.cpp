// SPDX-License-Identifier: Apache-2.0
#include "tools/report/traced_step.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::report {
namespace {

/// A slice of the trace, in microseconds.
struct Slice {
  std::int64_t device = 0;
  double begin = 0.0;
  double end = 0.0;
  std::string category;
  std::string action;
};

/// The slices of the last step so far, and the names of the devices of replica 0.
struct Found {
  std::map<std::int64_t, std::string> names;
  std::int64_t step = -1;
  std::vector<Slice> slices;
  bool whole = false;  ///< there are updates as a whole, without their actions
};

/// Errors: JsonError if the line is no event of ours.
void add_event(Found& found, const Json& event) {
  const std::string& phase = event.at("ph").text();
  if (phase == "M") {
    const std::string& name = event.at("args").at("name").text();
    if (name.starts_with("replica 0 ")) found.names[event.at("pid").as_int64()] = name;
  }
  if (phase != "X" || !found.names.contains(event.at("pid").as_int64())) return;
  const std::string& category = event.at("cat").text();
  found.whole = found.whole || category == "step";
  if (category == "step" || category == "kernel") return;  // kernels lie in the passes
  const std::int64_t step = event.at("args").at("step").as_int64();
  if (step < found.step) return;  // ranks follow each other, each with all its steps
  if (step > found.step) found.slices.clear();
  found.step = step;
  const double begin = event.at("ts").as_double();
  found.slices.push_back({.device = event.at("pid").as_int64(),
                          .begin = begin,
                          .end = begin + event.at("dur").as_double(),
                          .category = category,
                          .action = event.at("args").at("action").text()});
}

/// One event a line, which bounds the memory.
Found read_events(const std::filesystem::path& file) {
  Found found;
  io::LineReader lines(file);
  while (std::optional<std::string_view> line = lines.next()) {
    if (line->ends_with(',')) line->remove_suffix(1);
    const std::optional<Json> event = Json::try_parse(*line);
    if (!event || !event->contains("ph")) continue;  // the frame around the events
    try {
      add_event(found, *event);
    } catch (const JsonError&) {
      fail(ErrorKind::Data, "{}:{}: is not an event of a millrace trace", file.string(),
           lines.lines());
    }
  }
  return found;
}

double& part_of(DeviceShares& shares, std::string_view category) {
  if (category == "forward") return shares.forward;
  if (category == "backward") return shares.backward;
  if (category == "update") return shares.update;
  if (category == "send" || category == "receive") return shares.messages;
  return category == "reduce" ? shares.reduce : shares.wait;
}

bool is_work(std::string_view category) {
  return category == "forward" || category == "backward" || category == "update";
}

/// The forward and backward passes of each device. A trace leaves out what is too short to be seen.
std::vector<std::set<pipeline::Action>> passes_of(const pipeline::TimeLine& line) {
  std::vector<std::set<pipeline::Action>> passes(line.devices.size());
  for (std::size_t device = 0; device < passes.size(); ++device)
    for (const pipeline::Interval& interval : line.devices[device])
      if (pipeline::is_compute(interval.action.kind)) passes[device].insert(interval.action);
  return passes;
}

/// The number of micro-batches.
std::int32_t micro_batches_of(const std::vector<std::set<pipeline::Action>>& passes) {
  std::int32_t number = 0;
  for (const std::set<pipeline::Action>& device : passes)
    for (const pipeline::Action& action : device) number = std::max(number, action.micro_batch + 1);
  return number;
}

}  // namespace

bool has_layout_of(const pipeline::TimeLine& planned, const TracedStep& traced) {
  if (planned.devices.empty()) return traced.devices.size() == 1;
  const auto expected = passes_of(planned);
  const auto found = passes_of(traced.line);
  return std::ranges::equal(
             expected, found,
             [](const auto& all, const auto& seen) { return std::ranges::includes(all, seen); }) &&
         micro_batches_of(expected) == micro_batches_of(found);
}

TracedStep read_trace(const std::filesystem::path& file) {
  const Found found = read_events(file);
  if (found.slices.empty() && found.whole)
    fail(ErrorKind::Data,
         "{}: shows updates as a whole; --gc-profile IPU_PROFILE shows the schedule",
         file.string());
  if (found.slices.empty())
    fail(ErrorKind::Data, "{}: has no step: a run writes its trace when it ends", file.string());
  constexpr double kVisible = 1e-4;  // of the step
  double first = std::numeric_limits<double>::max();
  double last = 0.0;
  for (const Slice& slice : found.slices) {
    first = std::min(first, slice.begin);
    last = std::max(last, slice.end);
  }
  TracedStep step{.number = found.step};
  std::map<std::int64_t, std::size_t> rows;
  for (const auto& [device, name] : found.names) {
    rows[device] = step.devices.size();
    step.devices.push_back({.name = name});
  }
  step.line.devices.resize(rows.size());
  step.line.busy.resize(rows.size());
  step.line.makespan = 1e-6 * (last - first);
  for (const Slice& slice : found.slices) {
    const std::size_t row = rows.at(slice.device);
    const double time = slice.end - slice.begin;
    part_of(step.devices[row], slice.category) += time / (last - first);
    if (slice.category == "send" || slice.category == "receive") continue;
    if (is_work(slice.category)) step.line.busy[row] += 1e-6 * time;
    if (slice.category == "wait" || time < kVisible * (last - first)) continue;
    pipeline::Action action = pipeline::parse_action(slice.action, file.string());
    if (slice.category == "reduce") action = {pipeline::ActionKind::Reduce, action.stage};
    step.line.devices[row].push_back(
        {action, 1e-6 * (slice.begin - first), 1e-6 * (slice.end - first)});
  }
  return step;
}

}  // namespace millrace::report
