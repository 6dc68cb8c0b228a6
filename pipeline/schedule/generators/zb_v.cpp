// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {
namespace {

void write_zb_v(Writer w, std::int32_t device, std::int32_t devices, std::int32_t micro_batches) {
  const std::int32_t down = device;
  const std::int32_t up = 2 * devices - 1 - device;
  std::int32_t f0 = 0;  // next micro-batch of each kind on the way down (0) and up (1)
  std::int32_t f1 = 0;
  std::int32_t b0 = 0;
  std::int32_t b1 = 0;
  const auto backward_up = [&] {
    w.input(up, b1);
    w.weight(up, b1++);
  };
  for (std::int32_t k = 0; k < 2 * (devices - device) - 1; ++k) w.forward(down, f0++);
  for (std::int32_t k = 0; k < device; ++k) {
    w.forward(up, f1++);
    w.forward(down, f0++);
  }
  for (std::int32_t k = device; k < devices; ++k) {
    w.forward(up, f1++);
    backward_up();
  }
  while (f1 < f0 || f0 < micro_batches) {
    if (f0 < micro_batches) w.forward(down, f0++);
    w.input(down, b0);
    w.weight(down, b0++);
    w.forward(up, f1++);
    backward_up();
  }
  std::int32_t w0 = b0;
  std::int32_t w1 = b1;
  for (std::int32_t k = 0; k < device; ++k) {
    w.input(down, b0++);
    w.input(up, b1++);
  }
  for (std::int32_t k = device; k < devices; ++k) {
    w.input(down, b0++);
    w.weight(down, w0++);
  }
  while (w1 < b1) w.weight(up, w1++);
  while (w0 < b0) w.weight(down, w0++);
}

}  // namespace

// ZB-V (arXiv 2401.10241, section 6). The first device holds both ends of the V, so that backwards
// begin as soon as a forward is back; input gradients go first wherever a neighbour waits for them.
std::vector<ActionList> zb_v(const ScheduleRequest& request) {
  return written(request.devices, [&](Writer w, std::int32_t d) {
    write_zb_v(w, d, request.devices, std::max(2 * request.devices - 1, request.micro_batches));
  });
}

namespace {

/// Lists the passes of one device; micro-batches of each kind are counted on the way down (stage d)
/// and up (stage 2 * devices - 1 - d).
class DeviceList {
 public:
  DeviceList(Writer w, std::int32_t device, std::int32_t devices)
      : ends_{{device}, {2 * devices - 1 - device}}, w_(w) {}

  enum End { Down = 0, Up = 1 };
  void forward(End end) { w_.forward(ends_[end].stage, ends_[end].forwards++); }
  void backward(End end) {
    w_.input(ends_[end].stage, ends_[end].backwards);
    w_.weight(ends_[end].stage, ends_[end].backwards++);
  }
  /// The input gradient; its weight gradient waits for a call of weight().
  void input(End end) {
    waiting_.push_back({ActionKind::BackwardWeight, ends_[end].stage, ends_[end].backwards});
    w_.input(ends_[end].stage, ends_[end].backwards++);
  }
  void weight() {
    w_.list.push_back(waiting_.front());
    waiting_.pop_front();
  }
  void all_weights() {
    while (!waiting_.empty()) weight();
  }
  /// A forward and a backward that a device with asynchronous kernels overlaps.
  void both(End forward_end, End backward_end) {
    forward(forward_end);
    backward(backward_end);
  }

 private:
  struct Ends {
    std::int32_t stage;
    std::int32_t forwards = 0;
    std::int32_t backwards = 0;
  };
  Ends ends_[2];
  Writer w_;
  std::deque<Action> waiting_;
};

void write_dual_pipe_v(Writer w, std::int32_t d, std::int32_t devices, std::int32_t micro_batches) {
  using enum DeviceList::End;
  DeviceList list(w, d, devices);
  const std::int32_t below = devices - 1 - d;  // devices between this one and the turn
  for (std::int32_t k = 0; k < 2 * below; ++k) list.forward(Down);
  for (std::int32_t k = 0; k <= d; ++k) {
    list.forward(Down);
    list.forward(Up);
  }
  for (std::int32_t k = 0; k < below; ++k) {
    list.input(Up);
    list.weight();
    list.forward(Up);
  }
  for (std::int32_t k = 0; k < micro_batches - 2 * devices + d + 1; ++k) {
    list.both(Down, Up);
    list.both(Up, Down);
  }
  for (std::int32_t k = 0; k < below; ++k) {
    list.backward(Up);
    list.both(Up, Down);
  }
  // In the second half of the drain weight gradients are put off: neighbours wait for the inputs'.
  for (std::int32_t k = 0; k < 2 * (d + 1); ++k) {
    const auto end = k % 2 == 0 ? Up : Down;
    if (k <= d)
      list.backward(end);
    else
      list.input(end);
  }
  for (std::int32_t k = 0; k < below; ++k) {
    list.weight();
    list.input(Down);
  }
  list.all_weights();
}

}  // namespace

// DualPipe cut in half (github.com/deepseek-ai/DualPipe): a V of stages, in whose steady state
// every backward goes with a forward of the other end. Where kernels run one after the other, as
// here, the pair is a forward and then a backward.
std::vector<ActionList> dual_pipe_v(const ScheduleRequest& request) {
  return written(request.devices, [&](Writer w, std::int32_t d) {
    write_dual_pipe_v(w, d, request.devices, std::max(2 * request.devices, request.micro_batches));
  });
}

}  // namespace millrace::pipeline
