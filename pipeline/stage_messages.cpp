// SPDX-License-Identifier: Apache-2.0
#include "pipeline/stage_messages.hpp"

#include <algorithm>
#include <memory>

#include "comm/world.hpp"
#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/queues.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::pipeline {
namespace {

BufferId buffer_of(std::span<const Crossing> crossings, const Message& message) {
  const auto found = std::find_if(crossings.begin(), crossings.end(),
                                  [&](const Crossing& c) { return c.value == message.value; });
  MILLRACE_ASSERT(found != crossings.end());
  return message.gradient ? found->gradient : found->activation;
}

}  // namespace

StageMessages::StageMessages(std::span<const StageRun> runs, std::size_t unit,
                             const PipelinePlan& plan, std::span<const Message> all,
                             Recording& recording)
    : run_(&runs[unit]), plan_(&plan), recording_(&recording) {
  const std::int32_t replica = run_->unit.replica;
  const std::int32_t stage = run_->unit.stage;
  const StageProgram& program = run_->program->program();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Message& m = all[i];
    if (m.gradient && !has_backward(plan.schedule)) continue;
    const bool sends = m.from == stage;
    if (!sends && m.to != stage) continue;
    // Inputs of a stage receive activations and send gradients; outputs do the opposite.
    const bool input = sends == m.gradient;
    Port port;
    port.here = buffer_of(input ? program.inputs : program.outputs, m);
    port.in_stash = run_->program->region(port.here) != Region::Outbox;
    port.peer = sends ? m.to : m.from;
    port.tag = message_tag(replica, i, all.size());
    if (plan.place_of(replica, m.from) == plan.place_of(replica, m.to)) {
      port.other = &runs[find_run(runs, replica, port.peer)];
      const StageProgram& other = port.other->program->program();
      port.there = buffer_of(input ? other.outputs : other.inputs, m);
    }
    ports_[index(sends
                     ? (m.gradient ? ActionKind::SendGradient : ActionKind::SendActivation)
                     : (m.gradient ? ActionKind::ReceiveGradient : ActionKind::ReceiveActivation))]
        .push_back(port);
  }
}

int StageMessages::rank_of(std::int32_t stage) const {
  return plan_->rank_of(run_->unit.replica, stage);
}

std::int64_t StageMessages::message_bytes() const {
  std::int64_t bytes = 0;
  for (const Ports& ports : ports_)
    for (const Port& port : ports)
      if (port.other == nullptr && rank_of(port.peer) != rank_of(run_->unit.stage))
        bytes += slots(port) * run_->program->program().buffer(port.here).bytes;
  return bytes;
}

void StageMessages::bind(comm::Transport& transport) {
  transport_ = &transport;
  for (const ActionKind kind : {ActionKind::ReceiveActivation, ActionKind::SendActivation,
                                ActionKind::ReceiveGradient, ActionKind::SendGradient})
    for (Port& port : ports_[index(kind)]) {
      if (port.other != nullptr) continue;
      const int rank = rank_of(port.peer);
      const std::int64_t bytes = run_->program->program().buffer(port.here).bytes;
      for (int slot = 0; slot < slots(port); ++slot) {
        std::byte* place =
            run_->program->address(port.here, {.stash_slot = slot, .outbox_slot = slot});
        port.message.push_back(is_send(kind)
                                   ? transport.prepare_send(place, bytes, rank, port.tag)
                                   : transport.prepare_receive(place, bytes, rank, port.tag));
      }
    }
}

void StageMessages::post(ActionKind kind, std::int32_t m) {
  for (const Port& port : ports(kind))
    if (!port.message.empty()) transport_->start(port.message_of(m));
}

void StageMessages::receive(ActionKind kind, std::int32_t m, WeightUpdate& sums) {
  const Recording::While waiting(*recording_, Doing::AwaitMessage);
  for (const Port& port : ports(kind)) {
    if (port.message.empty()) continue;
    recording_->await(port.peer);
    const int message = port.message_of(m);
    comm::Patience patience = transport_->patience();
    for (; sums.adding() && !transport_->done(message); patience.pause()) sums.advance();
    transport_->wait(message);
  }
}

void StageMessages::copy(const device::ExecutionSpace& space, ActionKind kind,
                         std::int32_t m) const {
  for (const Port& port : ports(kind)) {
    if (port.other == nullptr) continue;
    std::byte* const here = run_->address(port.here, m);
    std::byte* const there = port.other->address(port.there, m);
    device::queue_copy(space, device::Direction::Within, is_send(kind) ? there : here,
                       is_send(kind) ? here : there,
                       run_->program->program().buffer(port.here).bytes);
  }
}

void StageMessages::send(const Action& action, ActionRecord& record) {
  for (const Port& port : ports(action.kind))
    if (port.peer == action.peer) {
      transport_->start(port.message_of(action.micro_batch));
      record.done = {.kind = action.kind,
                     .stage = run_->unit.stage,
                     .micro_batch = action.micro_batch,
                     .peer = port.peer};
    }
}

void StageMessages::await_sent(ActionKind kind, std::int32_t m, Memory memory) {
  for (const Port& port : ports(kind)) {
    if (port.message.empty() || (memory == Memory::Stash && !port.in_stash)) continue;
    recording_->await(port.peer);
    transport_->wait(port.message_of(m));
  }
}

void StageMessages::await_sent(std::int32_t m, Memory memory) {
  const Recording::While waiting(*recording_, Doing::AwaitSent);
  await_sent(ActionKind::SendActivation, m, memory);
  await_sent(ActionKind::SendGradient, m, memory);
}

void StageMessages::await_all_sent() {
  const Recording::While waiting(*recording_, Doing::AwaitSent);
  const int slots = std::max(run_->slots.stash, run_->slots.outbox);
  for (std::int32_t m = 0; m < slots; ++m) {
    await_sent(ActionKind::SendActivation, m, Memory::Any);
    await_sent(ActionKind::SendGradient, m, Memory::Any);
  }
}

// ---- messages and the memory of devices
// ------------------------------------------------------------

namespace {

/// Behind or among the kernels of the default execution space, on which all kernels run.
class QueueMark final : public comm::Mark {
 public:
  void after_kernels() override { event.mark(device::ExecutionSpace()); }
  [[nodiscard]] bool reached() override { return event.reached(); }
  void wait() override { event.wait(); }
  void delay_kernels() override { device::wait_for(device::ExecutionSpace(), event); }

  device::Event event;
};

device::Event& event_of(comm::Mark& mark) { return static_cast<QueueMark&>(mark).event; }
const device::Event& event_of(const comm::Mark& mark) {
  return static_cast<const QueueMark&>(mark).event;
}

class LibraryMessages final : public comm::MessageQueue {
 public:
  void wait_for(const comm::Mark& mark) override { queue_.wait_for(event_of(mark)); }
  void mark(comm::Mark& mark) override { queue_.mark(event_of(mark)); }
  [[nodiscard]] void* handle() const override { return queue_.handle(); }

 private:
  device::SideQueue queue_{device::SideQueue::Served::First};
};

class Queues final : public comm::DeviceQueues {
 public:
  [[nodiscard]] std::string place() override { return device::device_place(); }
  [[nodiscard]] std::unique_ptr<comm::Mark> make_mark() override {
    // Not before there are messages: the device may not be ready before.
    if (!copies_) copies_ = std::make_unique<Copies>();
    return std::make_unique<QueueMark>();
  }
  [[nodiscard]] std::unique_ptr<comm::MessageQueue> make_message_queue() override {
    return std::make_unique<LibraryMessages>();
  }
  [[nodiscard]] std::shared_ptr<std::byte> device_buffer(std::size_t bytes) override {
    const auto arena = std::make_shared<device::Arena>(static_cast<std::int64_t>(bytes));
    return {arena, arena->at(0)};
  }
  [[nodiscard]] std::shared_ptr<std::byte> host_buffer(std::size_t bytes) override {
    return device::host_buffer(bytes);
  }
  void copy_to_host(std::byte* host, const std::byte* device, std::int64_t bytes,
                    const comm::Mark& after, comm::Mark& done) override {
    copies_->to_host.wait_for(event_of(after));
    copies_->to_host.to_host(host, device, bytes);
    copies_->to_host.mark(event_of(done));
  }
  void copy_to_device(std::byte* device, const std::byte* host, std::int64_t bytes,
                      const comm::Mark& after, comm::Mark& done) override {
    copies_->to_device.wait_for(event_of(after));
    copies_->to_device.to_device(device, host, bytes);
    copies_->to_device.mark(event_of(done));
  }

 private:
  /// Two, because devices copy both ways at once, and no way waits for the other's marks.
  struct Copies {
    device::SideQueue to_host;
    device::SideQueue to_device;
  };
  std::unique_ptr<Copies> copies_;
};

/// Whether MPI says that it reads and writes memory of this kind of device.
bool mpi_reaches_device() {
#if defined(KOKKOS_ENABLE_CUDA)
  return comm::reaches_cuda_memory();
#elif defined(KOKKOS_ENABLE_HIP)
  return comm::reaches_rocm_memory();
#else
  return false;
#endif
}

void copy_within(std::byte* to, const std::byte* from, std::int64_t bytes) {
  device::queue_copy(device::ExecutionSpace(), device::Direction::Within, to, from, bytes);
}

}  // namespace

comm::DeviceMemory device_memory() {
  comm::DeviceMemory memory{.copy_within = copy_within};
  if constexpr (device::kHasQueues) memory.queues = std::make_shared<Queues>();
  memory.is_staged = !device::kHostReadable && !mpi_reaches_device();
  return memory;
}

}  // namespace millrace::pipeline
