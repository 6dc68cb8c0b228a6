// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {
namespace {

/// Lines of files from elsewhere may end with a carriage return.
bool is_blank(char c) { return c == ' ' || c == '\r'; }

/// The next piece of `text`, as split_list would return it. A row may have a million cells, so no
/// list is made.
std::optional<std::string_view> next_piece(std::string_view& text, char separator) {
  while (!text.empty()) {
    std::string_view piece = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(piece.size() + 1, text.size()));
    while (!piece.empty() && is_blank(piece.front())) piece.remove_prefix(1);
    while (!piece.empty() && is_blank(piece.back())) piece.remove_suffix(1);
    if (!piece.empty()) return piece;
  }
  return std::nullopt;
}

/// What PyTorch's schedules do beside computing and sending.
bool is_passed_over(std::string_view cell) {
  return cell.find("WAIT_") != std::string_view::npos || cell.ends_with("UNSHARD") ||
         cell.ends_with("RESHARD") || cell.ends_with("REDUCE_GRAD");
}

/// The actions of a cell. PyTorch writes a forward and a backward whose kernels overlap as
/// "(0F5;3B2)OVERLAP_F_B": they run one after the other.
std::vector<std::string_view> actions_of(std::string_view cell) {
  constexpr std::string_view kOverlap = ")OVERLAP_F_B";
  if (!cell.starts_with('(') || !cell.ends_with(kOverlap)) return {cell};
  cell.remove_prefix(1);
  cell.remove_suffix(kOverlap.size());
  std::vector<std::string_view> parts;
  while (const std::optional<std::string_view> part = next_piece(cell, ';')) parts.push_back(*part);
  return parts;
}

}  // namespace

void split_backwards(Schedule& schedule) {
  for (std::vector<Action>& list : schedule.lists) {
    std::vector<Action> split;
    for (const Action& a : list) {
      split.push_back(a);
      if (a.kind != ActionKind::Backward) continue;
      split.back().kind = ActionKind::BackwardInput;
      split.push_back({ActionKind::BackwardWeight, a.stage, a.micro_batch});
    }
    list = std::move(split);
  }
}

bool number_in_order(Schedule& schedule) {
  bool changed = false;
  schedule.micro_batches = 0;
  std::map<std::pair<ActionKind, std::int32_t>, std::int32_t> next;
  for (std::vector<Action>& list : schedule.lists)
    for (Action& a : list) {
      const std::int32_t m = next[{a.kind, a.stage}]++;
      changed |= a.micro_batch != m;
      a.micro_batch = m;
      schedule.micro_batches = std::max(schedule.micro_batches, m + 1);
    }
  return changed;
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
      if (is_passed_over(*cell)) continue;
      for (const std::string_view text : actions_of(*cell)) {
        const Action action = parse_action(text, place);
        const std::int32_t owner = device_of.try_emplace(action.stage, device).first->second;
        if (owner != device)
          fail(ErrorKind::Config, "{}: {}: stage {} is already on device {}", place, text,
               action.stage, owner);
        schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch + 1);
        list.push_back(action);
      }
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
  if (splits_backward(schedule)) split_backwards(schedule);
  return schedule;
}

}  // namespace millrace::pipeline
