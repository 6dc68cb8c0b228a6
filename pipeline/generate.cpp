// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "pipeline/replay.hpp"
#include "pipeline/schedule.hpp"

namespace millrace::pipeline {
namespace {

using Sequence = std::vector<Action>;

/// Appends actions to a list.
struct Writer {
  Sequence& list;
  void forward(std::int32_t stage, std::int32_t m) {
    list.push_back({ActionKind::Forward, stage, m});
  }
  void backward(std::int32_t stage, std::int32_t m) {
    list.push_back({ActionKind::Backward, stage, m});
  }
  void input(std::int32_t stage, std::int32_t m) {
    list.push_back({ActionKind::BackwardInput, stage, m});
  }
  void weight(std::int32_t stage, std::int32_t m) {
    list.push_back({ActionKind::BackwardWeight, stage, m});
  }
};

// ---- the order of one stage

Sequence sequential(std::int32_t stage, std::int32_t m) {
  Sequence list;
  Writer w{list};
  for (std::int32_t k = 0; k < m; ++k) {
    w.forward(stage, k);
    w.backward(stage, k);
  }
  return list;
}

/// `warmup` forwards, then alternately a backward and a forward. With all forwards in the warm-up
/// this is GPipe.
Sequence one_f_one_b(std::int32_t stage, std::int32_t m, std::int32_t warmup) {
  Sequence list;
  Writer w{list};
  for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(stage, k);
  for (std::int32_t k = 0; k < m; ++k) {
    w.backward(stage, k);
    if (k + warmup < m) w.forward(stage, k + warmup);
  }
  return list;
}

/// Like 1F1B, but weight gradients of stage s are delayed by s micro-batches to fill the bubble.
/// Every stage then holds as many micro-batches as the first.
Sequence zb_h1(std::int32_t stage, std::int32_t stages, std::int32_t m) {
  const std::int32_t warmup = stages - stage;
  Sequence list;
  Writer w{list};
  for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(stage, k);
  for (std::int32_t k = 0; k < m; ++k) {
    w.input(stage, k);
    if (k >= stage) w.weight(stage, k - stage);
    if (k + warmup < m) w.forward(stage, k + warmup);
  }
  for (std::int32_t k = std::max(0, m - stage); k < m; ++k) w.weight(stage, k);
  return list;
}

Sequence stage_order(const ScheduleRequest& r, std::int32_t stage, std::int32_t stages) {
  const std::int32_t fill = stages - stage;
  switch (r.kind) {
    case ScheduleKind::Sequential:
      return sequential(stage, r.micro_batches);
    case ScheduleKind::GPipe:
      return one_f_one_b(stage, r.micro_batches, r.micro_batches);
    case ScheduleKind::Grouped:
      return one_f_one_b(stage, r.micro_batches, 2 * fill);
    case ScheduleKind::ZbH1:
      return zb_h1(stage, stages, r.micro_batches);
    default:
      return one_f_one_b(stage, r.micro_batches, fill + std::min(r.extra_warmup, fill));
  }
}

// ---- the order of one device, for schedules with several chunks

/// Interleaved 1F1B runs groups of `devices` micro-batches, each group through all chunks.
struct LoopedCounter {
  std::int32_t devices;
  std::int32_t chunks;
  [[nodiscard]] std::int32_t chunk(std::int32_t k) const { return k / devices % chunks; }
  [[nodiscard]] std::int32_t micro_batch(std::int32_t k) const {
    return k / (devices * chunks) * devices + k % devices;
  }
};

Sequence looped(std::int32_t device, const ScheduleRequest& r, std::int32_t padded) {
  const LoopedCounter count{r.devices, r.chunks};
  const std::int32_t total = padded * r.chunks;
  const std::int32_t warmup =
      std::min(total, (r.chunks - 1) * r.devices + 2 * (r.devices - 1 - device));
  Sequence list;
  Writer w{list};
  for (std::int32_t k = 0; k < total + warmup; ++k) {
    if (k < total) w.forward(count.chunk(k) * r.devices + device, count.micro_batch(k));
    if (k < warmup) continue;
    const std::int32_t b = k - warmup;
    w.backward((r.chunks - 1 - count.chunk(b)) * r.devices + device, count.micro_batch(b));
  }
  return list;
}

/// Device r of p has stages r and 2p-1-r. The last device has the two middle stages, and the last
/// stage is on device 0. Input gradients come first wherever a neighbor waits for them.
Sequence zb_v(std::int32_t device, std::int32_t devices, std::int32_t padded) {
  const std::int32_t down = device;
  const std::int32_t up = 2 * devices - 1 - device;
  Sequence list;
  Writer w{list};
  std::int32_t f0 = 0;  // next micro-batch of each kind for stages `down` (0) and `up` (1)
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
  while (f1 < f0 || f0 < padded) {
    if (f0 < padded) w.forward(down, f0++);
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
  return list;
}

// ---- requests

std::int32_t stages_of(const ScheduleRequest& r) {
  if (!r.device_of.empty()) return static_cast<std::int32_t>(r.device_of.size());
  return r.devices * r.chunks;
}

void check(const ScheduleRequest& r) {
  const auto at_least = [](std::int32_t value, std::int32_t least, std::string_view what) {
    if (value < least)
      fail(ErrorKind::Config, "schedule: {} {}; at least {} {} required", value, what, least,
           least == 1 ? "is" : "are");
  };
  at_least(r.devices, 1, "devices");
  at_least(r.chunks, 1, "chunks");
  at_least(r.micro_batches, 1, "micro-batches");
  at_least(r.extra_warmup, 0, "extra micro-batches of warm-up");
  const bool placed = r.kind == ScheduleKind::Looped || r.kind == ScheduleKind::ZbV;
  if (placed && !r.device_of.empty())
    fail(ErrorKind::Config, "schedule {} maps its stages to devices itself; remove the mapping",
         name_of(r.kind));
  if (r.kind == ScheduleKind::ZbV && r.chunks != 2)
    fail(ErrorKind::Config, "schedule {} has 2 chunks per device, not {}", name_of(r.kind),
         r.chunks);
  if (!placed && r.chunks > 1)
    fail(ErrorKind::Config,
         "schedule {} has 1 stage per device, not {}; use Looped or ZB-V, or a device mapping",
         name_of(r.kind), r.chunks);
  if (r.extra_warmup > 0 && r.kind != ScheduleKind::OneFOneB && r.kind != ScheduleKind::Interleaved)
    fail(ErrorKind::Config, "schedule {} has a fixed warm-up; only 1F1B and Interleaved take more",
         name_of(r.kind));
  for (const std::int32_t device : r.device_of)
    if (device < 0 || device >= r.devices)
      fail(ErrorKind::Config, "the device mapping has device {}; devices are 0 to {}", device,
           r.devices - 1);
}

/// Merges the lists of all stages of a device. Their orders cannot deadlock, so any action that is
/// ready may come next.
void merge(Schedule& schedule, const std::vector<Sequence>& by_stage) {
  const std::vector<Link> links = chain(schedule.stages);
  const bool done = walk(by_stage, schedule.device_of, schedule.stages, schedule.micro_batches,
                         links, [&](std::size_t stage, const Action& action) {
                           const auto device = static_cast<std::size_t>(schedule.device_of[stage]);
                           schedule.lists[device].push_back(action);
                         });
  MILLRACE_ASSERT(done);
}

/// Removes the micro-batches by which a generator rounded up. The order of the others is unchanged.
void drop_padding(Schedule& schedule) {
  for (Sequence& list : schedule.lists)
    std::erase_if(list, [&](const Action& a) { return a.micro_batch >= schedule.micro_batches; });
}

std::vector<std::int32_t> placement(const ScheduleRequest& r, std::int32_t stages) {
  if (!r.device_of.empty()) return r.device_of;
  std::vector<std::int32_t> device_of;
  for (std::int32_t s = 0; s < stages; ++s) {
    const bool second_half = r.kind == ScheduleKind::ZbV && s >= r.devices;
    device_of.push_back(second_half ? 2 * r.devices - 1 - s : s % r.devices);
  }
  return device_of;
}

Schedule empty_schedule(std::string_view name, std::vector<std::int32_t> device_of,
                        std::int32_t devices, std::int32_t micro_batches) {
  Schedule schedule;
  schedule.name = name;
  schedule.stages = static_cast<std::int32_t>(device_of.size());
  schedule.micro_batches = micro_batches;
  schedule.device_of = std::move(device_of);
  schedule.lists.resize(static_cast<std::size_t>(devices));
  return schedule;
}

}  // namespace

Schedule generate(const ScheduleRequest& r) {
  check(r);
  const std::int32_t stages = stages_of(r);
  Schedule schedule =
      empty_schedule(name_of(r.kind), placement(r, stages), r.devices, r.micro_batches);
  if (r.kind == ScheduleKind::Looped || r.kind == ScheduleKind::ZbV) {
    const std::int32_t groups = (r.micro_batches + r.devices - 1) / r.devices;
    for (std::int32_t d = 0; d < r.devices; ++d) {
      schedule.lists[static_cast<std::size_t>(d)] =
          r.kind == ScheduleKind::Looped
              ? looped(d, r, groups * r.devices)
              : zb_v(d, r.devices, std::max(2 * r.devices - 1, r.micro_batches));
    }
    drop_padding(schedule);
    return schedule;
  }
  std::vector<Sequence> by_stage;
  by_stage.reserve(static_cast<std::size_t>(stages));
  for (std::int32_t s = 0; s < stages; ++s) by_stage.push_back(stage_order(r, s, stages));
  merge(schedule, by_stage);
  return schedule;
}

Schedule generate_forward(std::span<const std::int32_t> device_of, std::int32_t micro_batches) {
  const std::int32_t devices = 1 + *std::max_element(device_of.begin(), device_of.end());
  Schedule schedule =
      empty_schedule("Forward", std::vector<std::int32_t>(device_of.begin(), device_of.end()),
                     devices, micro_batches);
  std::vector<Sequence> by_stage(device_of.size());
  for (std::int32_t s = 0; s < schedule.stages; ++s)
    for (std::int32_t m = 0; m < micro_batches; ++m)
      Writer{by_stage[static_cast<std::size_t>(s)]}.forward(s, m);
  merge(schedule, by_stage);
  return schedule;
}

std::vector<Link> chain(std::int32_t stages) {
  std::vector<Link> links;
  for (std::int32_t s = 0; s + 1 < stages; ++s) links.push_back({s, s + 1});
  return links;
}

}  // namespace millrace::pipeline
