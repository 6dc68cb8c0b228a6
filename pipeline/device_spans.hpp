// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/queues.hpp"
#include "pipeline/recording.hpp"

namespace millrace::pipeline {

/// When a device worked, by its own clock: where kernels wait in a queue, the host only knows when
/// it queued them. Nothing is measured on cores, where the host's times are those of the work.
class DeviceSpans {
 public:
  /// Memory is taken for `most` spans of a step.
  explicit DeviceSpans(std::size_t most);

  void begin_step() { count_ = 0; }
  /// The kernels that are queued between these two work for `entry`.
  void begin(const device::ExecutionSpace& space, std::size_t entry, Doing doing);
  void end(const device::ExecutionSpace& space);
  /// The spans of the step in nanoseconds of the clock `now`, in order, once the device has done
  /// everything. Valid until the next step.
  [[nodiscard]] std::span<const Piece> times(const device::ExecutionSpace& space,
                                             Recording::Clock now);

 private:
  struct Span {
    device::Event begin;
    device::Event end;
    std::uint32_t entry = 0;
    Doing doing = Doing::Work;
  };

  std::vector<Span> spans_;
  std::size_t count_ = 0;  ///< of them, those of this step
  std::vector<Piece> times_;
  device::Event last_;
};

}  // namespace millrace::pipeline
