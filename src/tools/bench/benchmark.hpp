// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "io/data/dataset.hpp"
#include "pipeline/stage.hpp"
#include "run/run.hpp"
#include "tools/bench/kernel_table.hpp"

namespace millrace::training {

/// A step of a training is a weight update; a step of inference is the forward pass of as many
/// images, with running statistics and without a stash, as a validation runs it.
enum class BenchUse { Training, Inference };

/// Steady-state speed.
struct BenchResult {
  std::vector<double> step_seconds;  ///< of the measured steps, in the order in which they ran
  double loader_seconds = 0.0;       ///< median time per step spent waiting for data
  std::int64_t images_per_step = 0;
  std::int64_t arena_bytes = 0;
  std::int64_t macs_per_image = 0;      ///< forward
  pipeline::MicroBatchMetrics metrics;  ///< sums over the images of the measured steps
  std::string pipeline;                 ///< text: how each device spent its time
  [[nodiscard]] double median_seconds() const;
  [[nodiscard]] double images_per_second() const;
};

/// Rates of a training's loaders and devices, in images per second over all ranks.
struct DataBenchResult {
  double loader_rate = 0.0;  ///< of the loaders with idle devices
  double device_rate = 0.0;  ///< of the devices with images already in memory
  BenchResult together;
  [[nodiscard]] bool loader_limits() const { return loader_rate < device_rate; }
};

/// The measured steps, and the steps before them that are not measured.
struct BenchLength {
  std::int64_t warmup = 10;
  std::int64_t steps = 50;
  [[nodiscard]] std::int64_t all() const { return warmup + steps; }
};

/// Called after each step with its number, from 0, and its time; by bench_data(), only while
/// loaders and devices work together.
using AfterStep = std::function<void(std::int64_t step, double seconds)>;

/// These are collective and need a device::Environment.
[[nodiscard]] BenchResult bench(
    const run::Run& config, const comm::World& world,
    const std::shared_ptr<const io::Dataset>& dataset, BenchUse use, const BenchLength& length,
    const AfterStep& after_step = [](std::int64_t, double) {});
[[nodiscard]] DataBenchResult bench_data(
    const run::Run& config, const comm::World& world,
    const std::shared_ptr<const io::Dataset>& dataset, const BenchLength& length,
    const AfterStep& after_step = [](std::int64_t, double) {});

/// The rates that the cores of each rank reach while those of the others work, too. For kernels on
/// cores; takes about a second.
[[nodiscard]] std::vector<report::Peak> measure_peaks(const comm::World& world);

/// The kernels of a training step.
struct KernelBenchResult {
  std::vector<double> step_seconds;  ///< of the measured steps, in the order in which they ran
  report::KernelTable table;         ///< rank 0's: the sums of all ranks
};
/// Measures each kernel of the steps, and takes the shortest time of each: other work on the
/// machine lengthens some kernels of every step.
[[nodiscard]] KernelBenchResult bench_kernels(
    const run::Run& config, const comm::World& world,
    const std::shared_ptr<const io::Dataset>& dataset, const BenchLength& length,
    std::vector<report::Peak> peaks, const AfterStep& after_step = [](std::int64_t, double) {});

}  // namespace millrace::training
