// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/transport.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/recording.hpp"
#include "pipeline/stage_run.hpp"
#include "pipeline/weight_update.hpp"

namespace millrace::pipeline {

/// The values and gradients that one unit exchanges with the stages before and after it. Between
/// devices they are sent as messages, even if one process has both devices; between stages of one
/// device they are copied. Rules about memory:
///
/// - the receives of a micro-batch's inputs are posted when the micro-batch before it leaves their
///   stash slot, long before they are needed;
/// - the receives of its outputs' gradients are posted after its forward;
/// - a sent buffer does not change until the message has left: activations stay in the slot,
///   gradients in the outbox.
class StageMessages {
 public:
  /// Unit number `unit` of `runs`. `all` are those of the network; `runs` and `recording` must
  /// outlive this.
  StageMessages(std::span<const StageRun> runs, std::size_t unit, const PipelinePlan& plan,
                std::span<const Message> all, Recording& recording);
  /// Prepares the messages. Their tags are those of message_tag().
  void bind(comm::Transport& transport);

  /// Bytes of the messages to and from other processes.
  [[nodiscard]] std::int64_t message_bytes() const;

  // `kind` is ReceiveActivation for the inputs of micro-batch m, ReceiveGradient for the gradients
  // of its outputs, SendGradient for those of its inputs.
  /// Posts the receives.
  void post(ActionKind kind, std::int32_t m);
  /// Waits for what was posted. Meanwhile `sums` advance.
  void receive(ActionKind kind, std::int32_t m, WeightUpdate& sums);
  /// Copies what comes from stages of the same device, or goes to them.
  void copy(const device::ExecutionSpace& space, ActionKind kind, std::int32_t m) const;
  /// Starts the messages of a send action.
  void send(const Action& action, ActionRecord& record);
  enum class Memory { Stash, Any };
  /// Waits until what was sent last from the slots of micro-batch m has left: from its stash slot,
  /// or also from its outbox slot.
  void await_sent(std::int32_t m, Memory memory);
  /// The same for all slots, at the end of a step.
  void await_all_sent();

 private:
  /// A value or gradient that crosses this unit's border.
  struct Port {
    BufferId here;
    BufferId there;                   ///< in the other unit's program, if it is on the same device
    const StageRun* other = nullptr;  ///< that unit
    std::int32_t peer = 0;            ///< stage at the other end
    int tag = 0;
    bool in_stash = true;      ///< false: in the outbox
    std::vector<int> message;  ///< by slot; empty on the same device
    [[nodiscard]] int message_of(std::int32_t micro_batch) const {
      return message[static_cast<std::size_t>(micro_batch) % message.size()];
    }
  };
  using Ports = std::vector<Port>;

  [[nodiscard]] int rank_of(std::int32_t stage) const;
  /// Number of places that a port's value has in memory.
  [[nodiscard]] int slots(const Port& port) const {
    return port.in_stash ? run_->slots.stash : run_->slots.outbox;
  }
  static std::size_t index(ActionKind kind) {
    return static_cast<std::size_t>(kind) - static_cast<std::size_t>(ActionKind::SendActivation);
  }
  [[nodiscard]] const Ports& ports(ActionKind kind) const { return ports_[index(kind)]; }
  void await_sent(ActionKind kind, std::int32_t m, Memory memory);

  const StageRun* run_;
  const PipelinePlan* plan_;
  Recording* recording_;
  comm::Transport* transport_ = nullptr;
  std::array<Ports, 4> ports_;  ///< by kind of message
};

/// How messages reach device memory in this build.
[[nodiscard]] comm::DeviceMemory device_memory();

}  // namespace millrace::pipeline
