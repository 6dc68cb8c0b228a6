// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/tensor.hpp"

namespace millrace::ops {

/// What differs between two calls of the same kernels on the same memory. It lies in device memory,
/// so that launches that are kept and repeated (device/launch_graph.hpp) read new values.
struct CallValues {
  std::int64_t step = 0;  ///< number of the current weight update
  /// Position of the micro-batch's first sample in the global batch.
  std::int64_t first_sample = 0;
  float loss_scaling = 1.0f;
};

/// Writes the values to the device, in the queue of kernels.
void set_values(const device::ExecutionSpace& space, CallValues* on_device,
                const CallValues& values);

}  // namespace millrace::ops
