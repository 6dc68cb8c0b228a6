// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "partition/cost.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::partition {

/// What plans need to know of a machine that this process may not run on.
struct Machine {
  std::string name;
  int cores = 0;                         ///< of a device; 0: not known
  std::string instructions;              ///< highest level of vector instructions, or empty
  std::int64_t memory = 0;               ///< bytes of the machine; 0: not known
  std::map<DType, DeviceModel> devices;  ///< by type of the activations
  std::optional<pipeline::LinkModel> link;
};

/// The measured time of an op in one phase.
struct KernelSample {
  OpWork work;
  double seconds = 0.0;
};

/// The ops of a network with their measured costs. An op without seconds ran in the kernel of a
/// neighbour, whose work it is added to.
[[nodiscard]] std::vector<KernelSample> kernel_samples(const Graph& graph, std::int64_t batch,
                                                       DType type, std::span<const OpCost> costs);

/// The rates that explain measured times: each rate is the work of all samples that it limits over
/// their time. The time to start a kernel is the least that any took. Errors: Internal without
/// samples of products and of bytes.
[[nodiscard]] DeviceModel fit_device(std::string name, std::span<const KernelSample> samples);

/// Seconds of all samples as the model predicts them.
[[nodiscard]] double predicted_seconds(const DeviceModel& device,
                                       std::span<const KernelSample> samples);

}  // namespace millrace::partition
