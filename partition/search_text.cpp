// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "core/json.hpp"
#include "core/text.hpp"
#include "partition/layout_search.hpp"

namespace millrace::partition {
namespace {

double images_of(const FoundLayout& layout) {
  return static_cast<double>(layout.plan.batch) * layout.plan.micro_batches *
         layout.request.replicas;
}
double rate_of(const FoundLayout& layout) { return images_of(layout) / layout.plan.seconds; }

double waiting_of(const FoundLayout& layout) {
  return 1.0 - (layout.parts.compute + layout.parts.update) / layout.plan.seconds;
}

std::string duration(double seconds) {
  constexpr double kDay = 86400.0;
  if (seconds >= 2.0 * kDay) return fmt::format("{:.1f} days", seconds / kDay);
  if (seconds >= 7200.0) return fmt::format("{:.1f} h", seconds / 3600.0);
  return fmt::format("{:.1f} min", seconds / 60.0);
}

double training_seconds(const FoundLayout& layout, const TrainingLength& length) {
  return length.epochs * static_cast<double>(length.images) / rate_of(layout);
}

/// What a layout spends more time on than another, the most costly first.
std::string reason(const FoundLayout& layout, const FoundLayout& best) {
  const StepParts& a = layout.parts;
  const StepParts& b = best.parts;
  const bool repeats = layout.request.program.recompute != Recompute::None &&
                       best.request.program.recompute == Recompute::None;
  const std::array<std::pair<const char*, double>, 5> more = {{
      {repeats ? "recomputation" : "compute: its micro-batches suit the device less",
       a.compute - b.compute},
      {"bubble", a.bubble - b.bubble},
      {"messages between stages", a.messages - b.messages},
      {"all-reduce", a.reduce - b.reduce},
      {"update", a.update - b.update},
  }};
  const auto* most = std::max_element(
      more.begin(), more.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
  return fmt::format("{:.1f} % slower: {:.2f} ms more for {}",
                     100.0 * (layout.plan.seconds / best.plan.seconds - 1.0), 1e3 * most->second,
                     most->first);
}

std::string text_of(Recompute recompute) {
  return recompute == Recompute::None    ? "none"
         : recompute == Recompute::Stage ? "segments"
                                         : "layers";
}

/// The fields of a run that make the layout, in the order in which they are printed.
std::vector<std::pair<std::string_view, run::Value>> fields_of(const FoundLayout& layout) {
  const pipeline::ScheduleRequest& schedule = layout.request.schedule;
  std::vector<std::pair<std::string_view, run::Value>> fields = {
      {"batch-size", layout.plan.batch},
      {"gradients-to-accumulate", std::int64_t{layout.plan.micro_batches}}};
  if (layout.request.replicas > 1)
    fields.emplace_back("replicas", std::int64_t{layout.request.replicas});
  if (layout.request.program.recompute == Recompute::Stage)
    fields.emplace_back("recompute", std::string("segments"));
  if (schedule.devices == 1) return fields;
  fields.emplace_back("shards", std::int64_t{schedule.devices});
  fields.emplace_back("pipeline-schedule", schedule.name);
  if (schedule.chunks > 1) fields.emplace_back("chunks", std::int64_t{schedule.chunks});
  fields.emplace_back("pipeline-splits", join(layout.plan.splits, " "));
  return fields;
}

}  // namespace

std::string to_text(std::span<const FoundLayout> layouts, const TrainingLength& length) {
  const bool with_process = std::ranges::all_of(
      layouts, [](const FoundLayout& layout) { return layout.with_process > 0; });
  std::vector<std::vector<std::string>> rows = {
      {"shards", "stages", "replicas", "micro-batch", "depth", "schedule", "recompute", "step ms",
       "img/s", "waiting", with_process ? "with process" : "stages' memory",
       fmt::format("{:g} epochs", length.epochs), ""}};
  for (const FoundLayout& layout : layouts) {
    const pipeline::ScheduleRequest& schedule = layout.request.schedule;
    rows.push_back(
        {fmt::format("{}", schedule.devices), fmt::format("{}", layout.plan.stages()),
         fmt::format("{}", layout.request.replicas), fmt::format("{}", layout.plan.batch),
         fmt::format("{}", layout.plan.micro_batches),
         schedule.devices == 1 ? "-" : layout.plan.schedule,
         text_of(layout.request.program.recompute),
         fmt::format("{:.2f}", 1e3 * layout.plan.seconds), fmt::format("{:.1f}", rate_of(layout)),
         fmt::format("{:.1f} %", 100.0 * waiting_of(layout)),
         human_bytes(with_process ? layout.with_process : largest_device(layout.plan)),
         duration(training_seconds(layout, length)),
         &layout == &layouts.front() ? "" : reason(layout, layouts.front())});
  }
  return text_table(rows, 0);
}

std::string to_json(std::span<const FoundLayout> layouts, const TrainingLength& length) {
  Json all = Json::list();
  for (const FoundLayout& layout : layouts) {
    Json row = Json::object({{"stages", layout.plan.stages()},
                             {"shards", layout.request.schedule.devices},
                             {"replicas", layout.request.replicas},
                             {"micro_batch", layout.plan.batch},
                             {"micro_batches", layout.plan.micro_batches},
                             {"schedule", layout.plan.schedule},
                             {"recompute", text_of(layout.request.program.recompute)},
                             {"splits", join(layout.plan.splits, " ")},
                             {"step_seconds", layout.plan.seconds},
                             {"images_per_second", rate_of(layout)},
                             {"compute_seconds", layout.parts.compute},
                             {"bubble_seconds", layout.parts.bubble},
                             {"message_seconds", layout.parts.messages},
                             {"reduce_seconds", layout.parts.reduce},
                             {"update_seconds", layout.parts.update},
                             {"device_bytes", largest_device(layout.plan)},
                             {"training_seconds", training_seconds(layout, length)},
                             {"options", training_fields(layout)}});
    if (layout.with_process > 0) row.set("device_bytes_with_process", layout.with_process);
    all.push_back(std::move(row));
  }
  return all.dump() + "\n";
}

std::string training_fields(const FoundLayout& layout) {
  std::string text;
  for (const auto& [name, value] : fields_of(layout))
    text += fmt::format("{}`{}` {}", text.empty() ? "" : " ", name, run::to_string(value));
  return text;
}

run::Patch patch_of(const FoundLayout& layout) {
  run::Patch patch;
  for (auto& [name, value] : fields_of(layout)) run::impose(patch, name, std::move(value));
  return patch;
}

}  // namespace millrace::partition
