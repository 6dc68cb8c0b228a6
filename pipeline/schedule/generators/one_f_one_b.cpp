// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// One micro-batch after the other: for shards that only share memory.
//
//   device 0  F0          B0 F1          B1
//   device 1     F0    B0       F1    B1
//   device 2        F0 B0          F1 B1
std::vector<ActionList> sequential(const ScheduleRequest& request) {
  return written(request.stages(), [&](Writer w, std::int32_t s) {
    for (std::int32_t m = 0; m < request.micro_batches; ++m) {
      w.forward(s, m);
      w.backward(s, m);
    }
  });
}

// All forwards, then all backwards (arXiv 1811.06965).
std::vector<ActionList> gpipe(const ScheduleRequest& request) {
  return written(request.stages(), [&](Writer w, std::int32_t s) {
    for (std::int32_t m = 0; m < request.micro_batches; ++m) w.forward(s, m);
    for (std::int32_t m = 0; m < request.micro_batches; ++m) w.backward(s, m);
  });
}

// 1F1B (arXiv 2104.04473): warm-up forwards, then one backward and one forward in turn. With four
// micro-batches:
//
//   device 0  F0 F1 F2             B0    F3    B1       B2    B3
//   device 1     F0 F1       B0    F2    B1    F3    B2    B3
//   device 2        F0 B0 F1 B1 F2 B2 F3 B3
std::vector<ActionList> one_f_one_b(const ScheduleRequest& request) {
  const std::int32_t m = request.micro_batches;
  return written(request.stages(), [&](Writer w, std::int32_t s) {
    const std::int32_t fill = request.stages() - s;
    const std::int32_t warmup = fill + std::min(request.extra_warmup, fill);
    for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(s, k);
    for (std::int32_t k = 0; k < m; ++k) {
      w.backward(s, k);
      if (k + warmup < m) w.forward(s, k + warmup);
    }
  });
}

// The IPU's Grouped schedule, run asynchronously: 1F1B with a warm-up twice as deep, which hides
// the latency of links.
std::vector<ActionList> grouped(const ScheduleRequest& request) {
  ScheduleRequest deep = request;
  deep.extra_warmup = request.stages();
  return one_f_one_b(deep);
}

// ZB-H1 (arXiv 2401.10241): as 1F1B, but weight gradients of stage s wait for s more micro-batches
// and so fill what would be the bubble. Every stage then holds as many micro-batches as the first.
std::vector<ActionList> zb_h1(const ScheduleRequest& request) {
  const std::int32_t m = request.micro_batches;
  return written(request.stages(), [&](Writer w, std::int32_t s) {
    const std::int32_t warmup = request.stages() - s;
    for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(s, k);
    for (std::int32_t k = 0; k < m; ++k) {
      w.input(s, k);
      if (k >= s) w.weight(s, k - s);
      if (k + warmup < m) w.forward(s, k + warmup);
    }
    for (std::int32_t k = std::max(0, m - s); k < m; ++k) w.weight(s, k);
  });
}

namespace {

/// The order in which interleaved schedules take up micro-batches: rounds of `devices` of them, and
/// in each round through the chunks (arXiv 2104.04473).
struct LoopedOrder {
  std::int32_t devices;
  std::int32_t chunks;
  /// Stage of a device's k-th forward and of its k-th backward.
  [[nodiscard]] std::int32_t forward_stage(std::int32_t device, std::int32_t k) const {
    return k / devices % chunks * devices + device;
  }
  [[nodiscard]] std::int32_t backward_stage(std::int32_t device, std::int32_t k) const {
    return (chunks - 1 - k / devices % chunks) * devices + device;
  }
  [[nodiscard]] std::int32_t micro_batch(std::int32_t k) const {
    return k / (devices * chunks) * devices + k % devices;
  }
  /// Entries of a device, with the last round filled up.
  [[nodiscard]] std::int32_t total(std::int32_t micro_batches) const {
    return (micro_batches + devices - 1) / devices * devices * chunks;
  }
};

}  // namespace

// Interleaved 1F1B (arXiv 2104.04473): 1F1B over several chunks per device. With v chunks the
// bubble is v times smaller, and there are v times as many messages.
std::vector<ActionList> looped(const ScheduleRequest& request) {
  const std::int32_t devices = request.devices;
  const LoopedOrder order{devices, request.chunks};
  const std::int32_t total = order.total(request.micro_batches);
  return written(devices, [&](Writer w, std::int32_t d) {
    const std::int32_t warmup =
        std::min(total, (request.chunks - 1) * devices + 2 * (devices - 1 - d));
    for (std::int32_t k = 0; k < total + warmup; ++k) {
      if (k < total) w.forward(order.forward_stage(d, k), order.micro_batch(k));
      if (k < warmup) continue;
      const std::int32_t b = k - warmup;
      w.backward(order.backward_stage(d, b), order.micro_batch(b));
    }
  });
}

// Interleaved 1F1B whose backward passes are split as in ZB-H1 (arXiv 2401.10241): input gradients
// at once, weight gradients of device d after d more input gradients. An input gradient takes half
// as long as a whole backward, so that the warm-up is shorter by one forward per device.
std::vector<ActionList> looped_zb(const ScheduleRequest& request) {
  const std::int32_t devices = request.devices;
  const LoopedOrder order{devices, request.chunks};
  const std::int32_t total = order.total(request.micro_batches);
  return written(devices, [&](Writer w, std::int32_t d) {
    const std::int32_t warmup = std::min(total, (request.chunks - 1) * devices + (devices - 1 - d));
    for (std::int32_t k = 0; k < total + warmup; ++k) {
      if (k < total) w.forward(order.forward_stage(d, k), order.micro_batch(k));
      if (k < warmup) continue;
      const std::int32_t b = k - warmup;
      w.input(order.backward_stage(d, b), order.micro_batch(b));
      if (b >= d) w.weight(order.backward_stage(d, b - d), order.micro_batch(b - d));
    }
    for (std::int32_t b = std::max(0, total - d); b < total; ++b)
      w.weight(order.backward_stage(d, b), order.micro_batch(b));
  });
}

}  // namespace millrace::pipeline
