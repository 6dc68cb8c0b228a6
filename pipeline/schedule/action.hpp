// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::pipeline {

enum class ActionKind : std::uint8_t {
  Forward,
  Backward,        ///< BackwardInput and BackwardWeight in one
  BackwardInput,   ///< gradient of the stage's inputs
  BackwardWeight,  ///< gradient of its weights
  SendActivation,  ///< each send is followed by its receive
  ReceiveActivation,
  SendGradient,
  ReceiveGradient,
  Reduce,  ///< all-reduce of the stage's weight gradients over the replicas
  Update,  ///< update of the stage's weights
};

/// One entry of a device's list. Stages and micro-batches count from 0.
struct Action {
  ActionKind kind = ActionKind::Forward;
  std::int32_t stage = 0;
  std::int32_t micro_batch = -1;  ///< -1: the whole step (Reduce, Update)
  std::int32_t peer = -1;         ///< of messages: the stage at the other end
  friend auto operator<=>(const Action&, const Action&) = default;  // NOLINT(modernize-use-nullptr)
  friend bool operator==(const Action&, const Action&) = default;   // nvcc does not imply it
};

[[nodiscard]] constexpr bool is_compute(ActionKind kind) {
  return kind <= ActionKind::BackwardWeight;
}
[[nodiscard]] constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::SendActivation || kind == ActionKind::SendGradient;
}
[[nodiscard]] constexpr bool is_receive(ActionKind kind) {
  return kind == ActionKind::ReceiveActivation || kind == ActionKind::ReceiveGradient;
}
/// Whether the action computes the gradient that the previous stage waits for.
[[nodiscard]] constexpr bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::Backward || kind == ActionKind::BackwardInput;
}
/// Whether the stage needs nothing of the micro-batch after the action.
[[nodiscard]] constexpr bool ends_micro_batch(ActionKind kind) {
  return kind == ActionKind::Backward || kind == ActionKind::BackwardWeight;
}
/// The same message seen from its other end.
[[nodiscard]] Action counterpart(const Action& message);

/// Stage, kind, micro-batch: "2F0", "2B0", "2I0", "2W0"; for messages with the stage at the other
/// end "2SEND_F0>3", "3RECV_F0<2", "3SEND_B0>2", "2RECV_B0<3"; "2REDUCE", "2UPDATE".
[[nodiscard]] std::string to_string(const Action& action);
/// The inverse. A message without its other end means the neighboring stage. Errors: Config, with
/// `where` and the text.
[[nodiscard]] Action parse_action(std::string_view text, std::string_view where);

}  // namespace millrace::pipeline
