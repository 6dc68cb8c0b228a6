// SPDX-License-Identifier: Apache-2.0
#include "train/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "device/queues.hpp"
#include "io/foreign_files.hpp"
#include "train/averaging.hpp"
#include "train/device_claims.hpp"
#include "train/partner_snapshots.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/trace.hpp"
#include "train/trainer.hpp"

namespace millrace::training {
namespace {

/// A line "<key>:  <n> kB" of this process's file in /proc.
std::int64_t bytes_of_process(std::string_view key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return 1024 * std::strtoll(line.c_str() + key.size(), nullptr, 10);
  return 0;
}

/// Memory that the records of a trace will need, and its text while it is written.
std::int64_t trace_bytes(const Session& session, const run::Run& config) {
  if (config.trace.empty()) return 0;
  const auto [begin, end] = trace_window(config, 0);
  const pipeline::Recording& recording = session.executor().recording();
  const auto pieces = static_cast<std::int64_t>(recording.most_pieces());
  const auto kernels = static_cast<std::int64_t>(recording.most_kernels());
  const auto step = pieces * static_cast<std::int64_t>(sizeof(pipeline::Piece)) +
                    kernels * static_cast<std::int64_t>(sizeof(pipeline::KernelPiece));
  // Rank 0 draws the last step of all devices; the others send what they did. Measured for a step
  // with as many pieces as it can have, which is several times what it has.
  constexpr std::int64_t kDrawn = 150;
  constexpr std::int64_t kSent = 40;
  // A piece of text is at most twice as large as intended, and is there again where it is sent, and
  // in buffers of MPI.
  std::int64_t text = 12 * static_cast<std::int64_t>(kTracePiece);
  if (config.trace.extension() == ".svg")
    text = pieces * (session.rank() == 0 ? kDrawn * config.pipeline.ranks.devices : kSent);
  return (end - begin + 1) * step +
         kernels * static_cast<std::int64_t>(sizeof(pipeline::KernelPiece)) + text;
}

std::int64_t reading_bytes(const Session& session, const run::Run& config,
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

/// Copies of the stages whose parts of snapshots this process has as the second of two: at most, as
/// replicas that divide their slots have a share of them.
std::int64_t partner_bytes(const Session& session, const run::Run& config,
                           const comm::World* together) {
  std::vector<std::string> hosts;
  if (together != nullptr)
    hosts = memory_hosts(*together);
  else
    for (int rank = 0; rank < config.pipeline.ranks.ranks; ++rank)
      hosts.push_back(std::to_string(rank));
  std::int64_t bytes = 0;
  for (const PartPlaces& place :
       places_of_parts(config.pipeline, config.optimiser.sharded, hosts)) {
    if (place.second != session.rank()) continue;
    const std::int32_t shares = place.replica > 0 ? config.pipeline.ranks.replicas : 1;
    for (const io::TensorInfo& info : session.tensors().checkpoint_tensors(
             config.pipeline.ranges[static_cast<std::size_t>(place.stage)]))
      bytes += (info.bytes() + shares - 1) / shares;
  }
  return bytes;
}

/// What reading the weights of a network file takes: those of the file, and the copies in which the
/// largest tensor changes its order. Nothing but the device's memory is there by then.
std::int64_t file_bytes(const models::Graph& graph, const run::Run& config) {
  if (!io::is_network_file(config.initial_weights())) return 0;
  constexpr std::int64_t kCopies = 3;
  std::int64_t all = 0;
  std::int64_t largest = 0;
  for (const models::Parameter& parameter : graph.parameters) {
    all += parameter.elements();
    largest = std::max(largest, parameter.elements());
  }
  return (all + kCopies * largest) * size_of(DType::F32);
}

}  // namespace

std::int64_t resident_bytes() { return bytes_of_process("VmRSS:"); }
std::int64_t peak_resident_bytes() { return bytes_of_process("VmHWM:"); }

partition::ProcessMemory forecast_memory(const Session& session, const run::Run& config,
                                         const TrainInputs& inputs, std::int64_t base,
                                         const comm::World* together) {
  partition::ProcessMemory process{.rank = session.rank(),
                                   .devices = session.device_memory(),
                                   .base = std::max(base, kLeastBase),
                                   .margin = device::computes_on_cores() ? kMargin : kGpuMargin,
                                   .messages = session.staging_bytes(),
                                   .loader = reading_bytes(session, config, inputs)};
  if (!config.run_directory.empty())
    process.checkpoints = session.tensors().checkpoint_bytes(process.rank == 0);
  if (config.partner_every > 0) process.checkpoints += partner_bytes(session, config, together);
  // Averages are made when no checkpoint is written any more.
  if (process.rank == 0 && !planned_averages(config).empty())
    process.checkpoints = std::max(process.checkpoints, averaging_bytes(session.graph(), config));
  // Weights are read or drawn before batches and copies of tensors exist.
  const std::int64_t first = std::max(file_bytes(session.graph(), config), session.initial_bytes());
  process.other = trace_bytes(session, config) +
                  std::max<std::int64_t>(0, first - process.loader - process.checkpoints);
  return process;
}

std::vector<partition::ProcessMemory> forecast_processes(const run::Run& config,
                                                         const TrainInputs& inputs,
                                                         const comm::World& world,
                                                         std::optional<std::int64_t> base) {
  const pipeline::RankMap& map = config.pipeline.ranks;
  std::vector<partition::ProcessMemory> processes;
  std::set<std::pair<int, int>> known;  // ranks with as many devices from the same one on are alike
  for (int rank = 0; rank < map.ranks; ++rank) {
    const bool is_new =
        known.emplace(map.first_of(rank) % map.devices, map.devices_of(rank)).second;
    if (!is_new && !config.optimiser.sharded && !config.pipeline.is_joint()) continue;
    device::release_unused();
    const Session session(config, Use::Training, world, rank);
    processes.push_back(forecast_memory(session, config, inputs, base.value_or(resident_bytes())));
  }
  return processes;
}

DeviceUse device_use(const partition::ProcessMemory& process) {
  const std::int64_t stages = process.largest_device();
  const std::int64_t need =
      device::computes_on_cores() ? process.largest_device_with_rest() : stages;
  return {.need = need, .rest = need - stages};
}

DeviceUse device_use(std::span<const partition::ProcessMemory> processes) {
  DeviceUse most;
  for (const partition::ProcessMemory& process : processes) {
    const DeviceUse use = device_use(process);
    most = {.need = std::max(most.need, use.need), .rest = std::max(most.rest, use.rest)};
  }
  return most;
}

DeviceUse most_of(DeviceUse use, const comm::World& world) {
  return {.need = world.maximum(use.need), .rest = world.maximum(use.rest)};
}

std::int64_t host_peak(const partition::ProcessMemory& process) {
  return device::computes_on_cores() ? process.peak() : process.rest();
}

namespace {

/// Collective. Every rank has memory of its own device, or none has.
void require_memory_of_device(const partition::ProcessMemory& forecast, const comm::World& world) {
  const std::optional<std::int64_t> free = device::free_memory();
  if (!free) return;
  const std::string text = why_too_large({.device = comm::of_this_machine(device::device_place()),
                                          .need = forecast.device_total(),
                                          .free = *free},
                                         world);
  if (text.empty()) return;
  world.fail_together();
  fail(ErrorKind::Config, "{}", text);
}

/// The ranks of a machine share what it has free, and those of a control group what that has free.
/// Ranks that are not started yet will be in the group of this process. Collective.
MemoryLimit share_of_rank(const MachineLimits& limits, const comm::World& world, int here) {
  MemoryLimit share{.bytes = limits.machine_free / std::max(1, here), .group = {}};
  const std::string& group = limits.free_memory.group;
  const std::string own = fmt::format("{}:{}", host_name(), group);
  const std::string all = world.gather_everywhere(own + '\n');
  const std::int64_t in_group =
      std::ranges::count(split_list(all, '\n'), own) + here - world.local_size();
  const std::int64_t of_group = limits.free_memory.bytes / std::max<std::int64_t>(1, in_group);
  if (!group.empty() && (share.bytes == 0 || of_group < share.bytes)) share = {of_group, group};
  return share;
}

}  // namespace

void require_memory(const partition::ProcessMemory& forecast, const run::Run& config,
                    const comm::World& world, int here) {
  require_memory_of_device(forecast, world);
  const MemoryLimit free = share_of_rank(read_limits(), world, here);
  const auto available = static_cast<double>(free.bytes);
  const auto needed = static_cast<double>(host_peak(forecast) - forecast.base);
  const bool fits = available <= 0.0 || needed <= available;
  if (world.maximum(fits ? 0 : 1) == 0) return;
  world.fail_together();
  std::vector<std::string> remedies;
  if (config.recompute == run::Recompute::None) remedies.emplace_back("`recompute` segments");
  if (config.precision.activations == DType::F32) remedies.emplace_back("`precision` 16.32");
  remedies.emplace_back("more `shards`");
  // Weights and libraries do not grow with the batch, so scale a little less than proportionally.
  const auto batch =
      static_cast<std::int64_t>(0.9 * available / needed * static_cast<double>(config.batch_size));
  fail(ErrorKind::Config, "the training needs {} of memory but only {} are free{}: {}{} need less",
       human_bytes(static_cast<std::int64_t>(needed)),
       human_bytes(static_cast<std::int64_t>(available)),
       free.group.empty() ? "" : fmt::format(" in the control group {}", free.group),
       batch > 0 && batch < config.batch_size ? fmt::format("`batch-size` {} fits; ", batch) : "",
       join(remedies, " or "));
}

void require_device_memory(const run::Run& config, const MeasureUse& measure,
                           partition::Batch batch) {
  if (config.device_memory == 0) return;
  const std::int64_t needed = measure(config).need;
  if (needed <= config.device_memory) return;
  const models::Graph graph = network_of(config);
  partition::Sizer sizer = sizer_of(graph);
  sizer.measure = measure;
  fail(ErrorKind::Config,
       "the largest device needs {} ({} bytes), but `device-memory` is {} ({} bytes): {}",
       human_bytes(needed), needed, human_bytes(config.device_memory), config.device_memory,
       partition::nearest_fit(graph, config, sizer, batch));
}

void require_device_memory(const partition::ProcessMemory& forecast, const run::Run& config,
                           const TrainInputs& inputs, const comm::World& world,
                           partition::Batch batch) {
  if (config.device_memory == 0) return;
  const auto measure = [&](const run::Run& other) {
    if (&other == &config) return most_of(device_use(forecast), world);
    const Session session(other, Use::Training, world);
    return most_of(device_use(forecast_memory(session, other, inputs, forecast.base)), world);
  };
  try {
    require_device_memory(config, measure, batch);
  } catch (const Error&) {
    world.fail_together();
    throw;
  }
}

void require_room(const run::Run& config, const TrainInputs& inputs, const comm::World& world,
                  int here) {
  if (world.size() == config.pipeline.ranks.ranks) {
    const Session session(config, Use::Training, world);
    const partition::ProcessMemory forecast =
        forecast_memory(session, config, inputs, resident_bytes(), &world);
    require_device_memory(forecast, config, inputs, world);
    return require_memory(forecast, config, world, here);
  }
  require_device_memory(config, [&](const run::Run& other) {
    return device_use(forecast_processes(other, inputs, world));
  });
  for (const partition::ProcessMemory& process : forecast_processes(config, inputs, world))
    require_memory(process, config, world, here);
}

}  // namespace millrace::training
