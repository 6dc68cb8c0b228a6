// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "core/error.hpp"
#include "core/text.hpp"
#include "pipeline/schedule.hpp"

namespace millrace::pipeline {
namespace {

constexpr std::array kKinds = {
    ScheduleKind::Sequential, ScheduleKind::Grouped, ScheduleKind::Interleaved, ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,   ScheduleKind::Looped,  ScheduleKind::ZbH1,        ScheduleKind::ZbV};

/// The next piece of `text`, as split_list would return it. A row may have a million cells, so no
/// list is made.
std::optional<std::string_view> next_piece(std::string_view& text, char separator) {
  while (!text.empty()) {
    std::string_view piece = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(piece.size() + 1, text.size()));
    while (!piece.empty() && piece.front() == ' ') piece.remove_prefix(1);
    while (!piece.empty() && piece.back() == ' ') piece.remove_suffix(1);
    if (!piece.empty()) return piece;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::Sequential:
      return "Sequential";
    case ScheduleKind::Grouped:
      return "Grouped";
    case ScheduleKind::Interleaved:
      return "Interleaved";
    case ScheduleKind::GPipe:
      return "GPipe";
    case ScheduleKind::OneFOneB:
      return "1F1B";
    case ScheduleKind::Looped:
      return "Looped";
    case ScheduleKind::ZbH1:
      return "ZB-H1";
    case ScheduleKind::ZbV:
      return "ZB-V";
  }
  return "";
}

std::span<const ScheduleKind> schedule_kinds() { return kKinds; }

ScheduleKind parse_schedule_kind(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ScheduleKind kind : kKinds) {
    if (to_lower(name_of(kind)) == to_lower(name)) return kind;
    names.push_back(name_of(kind));
  }
  fail(ErrorKind::Config, "unknown schedule '{}'; schedules: {}", name, join(names, ", "));
}

std::string to_csv(const Schedule& schedule) {
  std::string csv;
  for (const std::vector<Action>& list : schedule.lists) {
    std::vector<std::string> cells;
    cells.reserve(list.size());
    for (const Action& action : list) cells.push_back(to_string(action));
    csv += fmt::format("{}\n", join(cells, ","));
  }
  return csv;
}

Schedule parse_schedule(std::string_view csv, std::string_view where) {
  Schedule schedule;
  schedule.name = where;
  std::map<std::int32_t, std::int32_t> device_of;
  while (const std::optional<std::string_view> row = next_piece(csv, '\n')) {
    const std::int32_t device = schedule.devices();
    std::vector<Action>& list = schedule.lists.emplace_back();
    int column = 0;
    std::string_view cells = *row;
    // Other programs write idle times as empty cells.
    while (const std::optional<std::string_view> cell = next_piece(cells, ',')) {
      const std::string place = fmt::format("{}: row {}, column {}", where, device + 1, ++column);
      const Action action = parse_action(*cell, place);
      const std::int32_t owner = device_of.try_emplace(action.stage, device).first->second;
      if (owner != device)
        fail(ErrorKind::Config, "{}: {}: stage {} is already on device {}", place, *cell,
             action.stage, owner);
      schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch + 1);
      list.push_back(action);
    }
    if (list.empty()) schedule.lists.pop_back();  // ignored like an empty row
  }
  for (const auto& [stage, device] : device_of) {
    if (stage != schedule.stages)
      fail(ErrorKind::Config, "{}: no actions for stage {}, but for stage {}", where,
           schedule.stages, stage);
    ++schedule.stages;
    schedule.device_of.push_back(device);
  }
  if (schedule.stages == 0) fail(ErrorKind::Config, "{}: contains no actions", where);
  return schedule;
}

}  // namespace millrace::pipeline
