// SPDX-License-Identifier: Apache-2.0
//
// What a process of a run will need, before it allocates it. A run and its plan ask the same
// functions, so that they agree: the sizes of the devices are those that a Session would
// allocate, and the rest is counted here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/world.hpp"
#include "models/graph.hpp"
#include "partition/choose.hpp"
#include "partition/process_memory.hpp"

namespace millrace::training {

class Session;
struct TrainInputs;

/// Resident memory of this process in bytes: now, and its peak. 0 if the system does not say.
[[nodiscard]] std::int64_t resident_bytes();
[[nodiscard]] std::int64_t peak_resident_bytes();

/// What a process may take besides its base and what is counted: code that is loaded when it first
/// runs, kernels that a vendor makes, buffers of MPI and HDF5, and what allocators leave between.
/// Nobody reports it. The same for every run, and more than any was seen to take.
inline constexpr std::int64_t kMargin = 32'000'000;
/// Where kernels run on a GPU. Its driver and libraries load code and make buffers until the first
/// steps are over: 89 MB in a small run on an H200, the only one that was measured.
inline constexpr std::int64_t kGpuMargin = 128'000'000;
/// With how much a process counts at least before it allocates: more than one holds that a launcher
/// started. So a plan, which needs no launcher, says what the run says, from start to start.
inline constexpr std::int64_t kLeastBase = 44'000'000;

/// By how many bytes the base of a process varies from start to start, because the system maps
/// libraries at other places and pages around what is touched; measured. Whatever is proposed or
/// chosen to fit leaves so much.
inline constexpr std::int64_t kBaseVaries = 1'500'000;

/// The memory of the session's process during a training. `base`: resident bytes of the process
/// once it has the session and the data, but has not allocated the session; kLeastBase if less.
/// `together`: the world of all ranks of the run, which call this together; null: they are not
/// there yet, and count as on hosts of their own.
[[nodiscard]] partition::ProcessMemory forecast_memory(const Session& session,
                                                       const run::Run& config,
                                                       const TrainInputs& inputs, std::int64_t base,
                                                       const comm::World* together = nullptr);

/// The memory of all processes of a training that differ: those of the first replica, or all if
/// replicas divide the optimizer state. Each base is measured in this process, which takes the
/// place of one process after the other, unless `base` gives it. Needs a device::Environment.
[[nodiscard]] std::vector<partition::ProcessMemory> forecast_processes(
    const run::Run& config, const TrainInputs& inputs, const comm::World& world,
    std::optional<std::int64_t> base = {});

using partition::DeviceUse;
/// That of a process. Where kernels run on cores, each of its devices has an equal part of what
/// else the process needs.
[[nodiscard]] DeviceUse device_use(const partition::ProcessMemory& process);
/// The most of several processes.
[[nodiscard]] DeviceUse device_use(std::span<const partition::ProcessMemory> processes);
/// The most of all ranks. Collective.
[[nodiscard]] DeviceUse most_of(DeviceUse use, const comm::World& world);

/// Finds the bytes of stages as a run does, by making its kernels. `graph` must outlive it. Works
/// before there is a device::Environment, for the threads of the configuration.
[[nodiscard]] partition::StageSizer stage_sizer(const models::Graph& graph, const run::Run& config);
/// The same for a search, which asks for thousands of stages: it makes the kernels of each layer
/// once. Never less than stage_sizer finds for training; a stage that ends within a layer counts
/// all of its weights.
[[nodiscard]] partition::StageSizer search_sizer(const models::Graph& graph,
                                                 const run::Run& config);
/// Both, and what processes need besides their stages, assumed. `graph` must outlive it.
[[nodiscard]] partition::Sizer sizer_of(const models::Graph& graph);
/// The bytes of the run's stages by stage_sizer.
[[nodiscard]] std::vector<std::int64_t> sizes_of_stages(const models::Graph& graph,
                                                        const run::Run& config);

/// Bytes of the machine's memory that the process needs at its peak: without that of its devices if
/// they have memory of their own.
[[nodiscard]] std::int64_t host_peak(const partition::ProcessMemory& process);

/// Collective. Errors: Config if the training does not fit into the free memory of a machine, with
/// a batch size that does: memory grows with the batch; or into that of a GPU, which several ranks
/// may share.
/// `here`: processes of the run on this machine.
void require_memory(const partition::ProcessMemory& forecast, const run::Run& config,
                    const comm::World& world, int here);

/// Finds what the devices of a run with a configuration would need.
using MeasureUse = std::function<DeviceUse(const run::Run&)>;
/// Requires that the largest device fits into config.device_memory. Errors: Config, with the
/// nearest layout that fits: other cuts, schedules, recomputation, or a smaller batch.
void require_device_memory(const run::Run& config, const MeasureUse& measure,
                           partition::Batch batch = partition::Batch::Open);
/// The same for this process of a run that is about to start, or to continue. Collective.
void require_device_memory(const partition::ProcessMemory& forecast, const run::Run& config,
                           const TrainInputs& inputs, const comm::World& world,
                           partition::Batch batch = partition::Batch::Open);
/// Both for a run that is only checked: by all of its ranks, or by one process for them.
/// Collective.
void require_room(const run::Run& config, const TrainInputs& inputs, const comm::World& world,
                  int here);

}  // namespace millrace::training
