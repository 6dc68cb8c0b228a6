// SPDX-License-Identifier: Apache-2.0
#include "partition/machine.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.hpp"

namespace millrace::partition {
namespace {

/// Samples of one phase. Kernels take in the ops that follow them: later ones of a forward pass,
/// earlier ones of a backward pass.
void append(std::vector<KernelSample>& samples, std::span<const OpWork> work,
            std::span<const OpCost> costs, double OpCost::*seconds, bool forward) {
  KernelSample* open = nullptr;
  const std::size_t before = samples.size();
  samples.reserve(before + work.size());  // `open` stays valid
  for (std::size_t i = 0; i < work.size(); ++i) {
    const std::size_t op = forward ? i : work.size() - 1 - i;
    if (work[op].kernels == 0.0) continue;
    const double time = costs[op].*seconds;
    if (time > 0.0)
      open = &samples.emplace_back(KernelSample{work[op], time});
    else if (open != nullptr)
      open->work += work[op];
  }
  // Ops that share a kernel start it once.
  for (std::size_t i = before; i < samples.size(); ++i) samples[i].work.kernels = 1.0;
}

struct Total {
  double work = 0.0;
  double seconds = 0.0;
  [[nodiscard]] double rate(double otherwise) const {
    return seconds > 0.0 ? work / seconds : otherwise;
  }
};

/// One step of the fit: every sample counts for the rate that limits it under `device`.
DeviceModel refined(const DeviceModel& device, std::span<const KernelSample> samples) {
  Total products;
  Total depthwise;
  Total bytes;
  for (const KernelSample& sample : samples) {
    const OpWork& work = sample.work;
    const double seconds =
        std::max(sample.seconds - work.kernels * device.seconds_per_kernel, 0.1 * sample.seconds);
    const double moving = work.bytes / device.bytes_per_second;
    const bool narrow = work.depthwise_flops > work.flops;
    const double flops = narrow ? work.depthwise_flops : work.flops;
    const double rate = narrow ? device.depthwise_flops_per_second : device.flops_per_second;
    Total& total = moving >= flops / rate ? bytes : narrow ? depthwise : products;
    total.work += &total == &bytes ? work.bytes : flops;
    total.seconds += seconds;
  }
  DeviceModel better = device;
  better.flops_per_second = products.rate(device.flops_per_second);
  better.depthwise_flops_per_second = depthwise.rate(device.depthwise_flops_per_second);
  better.bytes_per_second = bytes.rate(device.bytes_per_second);
  return better;
}

}  // namespace

std::vector<KernelSample> kernel_samples(const Graph& graph, std::int64_t batch, DType type,
                                         std::span<const OpCost> costs) {
  const auto work = op_work(graph, batch, type);
  std::vector<KernelSample> samples;
  append(samples, work[0], costs, &OpCost::forward, true);
  append(samples, work[1], costs, &OpCost::backward_input, false);
  append(samples, work[2], costs, &OpCost::backward_weight, false);
  return samples;
}

DeviceModel fit_device(std::string name, std::span<const KernelSample> samples) {
  Total flops;
  Total narrow;
  Total bytes;
  double least = std::numeric_limits<double>::max();
  for (const KernelSample& sample : samples) {
    const bool is_narrow = sample.work.depthwise_flops > sample.work.flops;
    const bool moves = sample.work.flops + sample.work.depthwise_flops == 0.0;
    Total& total = moves ? bytes : is_narrow ? narrow : flops;
    total.work +=
        moves ? sample.work.bytes : std::max(sample.work.flops, sample.work.depthwise_flops);
    total.seconds += sample.seconds;
    least = std::min(least, sample.seconds / sample.work.kernels);
  }
  MILLRACE_ASSERT(flops.seconds > 0.0 && bytes.seconds > 0.0);
  DeviceModel device{.name = std::move(name),
                     .flops_per_second = flops.rate(0.0),
                     .bytes_per_second = bytes.rate(0.0),
                     .seconds_per_kernel = least,
                     .depthwise_flops_per_second = narrow.rate(flops.rate(0.0))};
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) device = refined(device, samples);
  return device;
}

double predicted_seconds(const DeviceModel& device, std::span<const KernelSample> samples) {
  double sum = 0.0;
  for (const KernelSample& sample : samples) sum += seconds_of(sample.work, device);
  return sum;
}

}  // namespace millrace::partition
