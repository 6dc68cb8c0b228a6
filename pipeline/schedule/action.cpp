// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/action.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "core/error.hpp"

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

}  // namespace millrace::pipeline
