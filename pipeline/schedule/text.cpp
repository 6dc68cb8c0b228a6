// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {
namespace {

struct Spelling {
  ActionKind kind;
  std::string_view word;
  bool of_micro_batch;
  char peer;      ///< '>' to, '<' from, 0 for no message
  int neighbour;  ///< stage of an omitted other end, relative to the action's own stage
};

// A word stands before every word that is a prefix of it.
constexpr std::array kSpellings = std::to_array<Spelling>({
    {ActionKind::SendActivation, "SEND_F", true, '>', 1},
    {ActionKind::ReceiveActivation, "RECV_F", true, '<', -1},
    {ActionKind::SendGradient, "SEND_B", true, '>', -1},
    {ActionKind::ReceiveGradient, "RECV_B", true, '<', 1},
    {ActionKind::Reduce, "REDUCE", false, 0, 0},
    {ActionKind::Update, "UPDATE", false, 0, 0},
    {ActionKind::Forward, "F", true, 0, 0},
    {ActionKind::Backward, "B", true, 0, 0},
    {ActionKind::BackwardInput, "I", true, 0, 0},
    {ActionKind::BackwardWeight, "W", true, 0, 0},
});

const Spelling& spelling_of(ActionKind kind) {
  for (const Spelling& s : kSpellings)
    if (s.kind == kind) return s;
  fail(ErrorKind::Internal, "action of kind {} has no spelling", static_cast<int>(kind));
}

/// Removes a number from the front of `text`. Numbers are limited so that sums of two of them do
/// not overflow.
bool take_number(std::string_view& text, std::int32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  constexpr std::int32_t kMost = 1 << 24;
  if (error != std::errc{} || number < 0 || number > kMost) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

bool parse(std::string_view text, Action& action) {
  if (!take_number(text, action.stage)) return false;
  for (const Spelling& s : kSpellings) {
    if (!take(text, s.word)) continue;
    action.kind = s.kind;
    if (s.of_micro_batch && !take_number(text, action.micro_batch)) return false;
    if (s.peer == 0) return text.empty();
    action.peer = action.stage + s.neighbour;
    if (text.empty()) return action.peer >= 0;
    return take(text, {&s.peer, 1}) && take_number(text, action.peer) && text.empty();
  }
  return false;
}

}  // namespace

Action counterpart(const Action& message) {
  if (!is_send(message.kind) && !is_receive(message.kind))
    fail(ErrorKind::Internal, "{} is not a message", to_string(message));
  // A receive follows its send in the list of kinds.
  const int step = is_send(message.kind) ? 1 : -1;
  return {static_cast<ActionKind>(static_cast<int>(message.kind) + step), message.peer,
          message.micro_batch, message.stage};
}

std::string to_string(const Action& action) {
  const Spelling& s = spelling_of(action.kind);
  std::string text = fmt::format("{}{}", action.stage, s.word);
  if (s.of_micro_batch) text += fmt::format("{}", action.micro_batch);
  if (s.peer != 0) text += fmt::format("{}{}", s.peer, action.peer);
  return text;
}

Action parse_action(std::string_view text, std::string_view where) {
  Action action;
  if (!parse(text, action))
    fail(
        ErrorKind::Config,
        "{}: '{}' is not an action; expected stage, kind and micro-batch, as in 2F0, 2B0, 2I0, 2W0",
        where, text);
  return action;
}

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
