// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {
namespace {

void write(Writer w, std::int32_t device, std::int32_t devices, std::int32_t micro_batches) {
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
    write(w, d, request.devices, std::max(2 * request.devices - 1, request.micro_batches));
  });
}

}  // namespace millrace::pipeline
