// SPDX-License-Identifier: Apache-2.0
#include "train/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/text.hpp"
#include "device/compat.hpp"
#include "train/averaging.hpp"
#include "train/session.hpp"
#include "train/trace.hpp"
#include "train/trainer.hpp"

namespace millrace::train {
namespace {

/// A line "<key>:  <n> kB" of a file in /proc.
std::int64_t bytes_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return 1024 * std::strtoll(line.c_str() + key.size(), nullptr, 10);
  return 0;
}

/// Memory that the records of a trace will need.
std::int64_t trace_bytes(const Session& session, const TrainConfig& config) {
  if (config.trace.empty()) return 0;
  const auto [begin, end] = trace_window(config, 0);
  const auto piece = static_cast<std::int64_t>(sizeof(pipeline::Piece));
  // In memory, and again as text when the trace is written.
  constexpr std::int64_t kText = 400;
  const auto pieces = static_cast<std::int64_t>(session.executor().recording().most_pieces());
  const auto kernel = static_cast<std::int64_t>(sizeof(pipeline::KernelPiece));
  const auto kernels = static_cast<std::int64_t>(session.executor().recording().most_kernels());
  return (end - begin + 1) * (pieces * (piece + kText) + kernels * (kernel + kText)) +
         kernels * kernel;
}

std::int64_t reading_bytes(const Session& session, const TrainConfig& config,
                           const TrainInputs& inputs) {
  const std::int64_t batches = session.feeder().loader_bytes(config.data.validation_size);
  if (batches == 0) return 0;
  const int threads = session.feeder().threads();
  std::int64_t work = inputs.train->reading_bytes(threads);
  std::int64_t kept = inputs.train->kept_bytes();
  if (inputs.validation) {
    work = std::max(work, inputs.validation->reading_bytes(threads));
    kept += inputs.validation->kept_bytes();
  }
  return batches + work + kept;
}

}  // namespace

std::int64_t resident_bytes() { return bytes_in("/proc/self/status", "VmRSS:"); }
std::int64_t peak_resident_bytes() { return bytes_in("/proc/self/status", "VmHWM:"); }

std::int64_t available_bytes() { return bytes_in("/proc/meminfo", "MemAvailable:"); }
std::int64_t machine_bytes() { return bytes_in("/proc/meminfo", "MemTotal:"); }

MemoryForecast forecast_memory(const Session& session, const TrainConfig& config,
                               const TrainInputs& inputs, const comm::World& world, bool averages) {
  // Queues and shared segments of MPI, which appear with the first messages; HDF5 and the thread
  // that writes. Measured.
  constexpr std::int64_t kMessages = 2'500'000;
  constexpr std::int64_t kWriting = 1'000'000;
  const std::int64_t reading = reading_bytes(session, config, inputs);
  std::int64_t running = reading + trace_bytes(session, config) + session.library_bytes();
  if (averages) running += averaging_bytes(session.graph(), config.optimiser.kind);
  if (world.size() > 1) running += kMessages;
  if (!config.run_directory.empty()) running += session.tensors().checkpoint_bytes() + kWriting;
  const std::int64_t sum =
      resident_bytes() + session.arena_bytes() + std::max(running, session.initial_bytes());
  // Allocators round up; the prediction must never be too low.
  return {.reading = reading, .peak = sum + sum / 64};
}

void require_memory(const MemoryForecast& forecast, const TrainConfig& config,
                    const comm::World& world) {
  const double available = static_cast<double>(available_bytes()) / std::max(1, world.local_size());
  const auto needed = static_cast<double>(forecast.peak - resident_bytes());
  const bool fits = !device::kHostAccessible || available <= 0.0 || needed <= available;
  if (world.maximum(fits ? 0 : 1) == 0) return;
  world.fail_together();
  // Weights and libraries do not grow with the batch, so scale a little less than proportionally.
  const auto batch =
      static_cast<std::int64_t>(0.9 * available / needed * static_cast<double>(config.batch_size));
  fail(ErrorKind::Config,
       "the training needs {} of memory but only {} are free: {}--xla-recompute, more --shards or "
       "--precision 16.32 need less",
       human_bytes(static_cast<std::int64_t>(needed)),
       human_bytes(static_cast<std::int64_t>(available)),
       batch > 0 && batch < config.batch_size ? fmt::format("--batch-size {} fits; ", batch) : "");
}

}  // namespace millrace::train
