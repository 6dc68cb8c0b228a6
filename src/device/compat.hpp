// SPDX-License-Identifier: Apache-2.0
//
// src/device: devices, their memory and kernel launches.
//
// environment   lifetime of Kokkos and its number of threads, the first object of `main`; what the
//               device is
// parallel      launches kernels at the instruction level of the processor
// teams         launches teams of threads that share memory and wait for each other
// tensor        the storage types that kernels support
// arena         the single allocation of a device, used through offsets that a plan computes
// host_buffer   host memory that the device copies its input from
// queues        copies that run beside kernels, points for which queues wait, and kept launches
// fake_device   cores that behave like an accelerator, for tests (preset fake-device), with
//               fake_queue, in which its work waits, fake_queues, its copies and points, and
//               fake_teams, the threads of its teams
// vendor_scope  marks calls into libraries that allocate memory themselves
//
// Kernels take an execution-space instance and device pointers, never host pointers, and never loop
// over device data on the host. The same source compiles for every accelerator that Kokkos is built
// for. This file hides the differences between Kokkos 3.4 and 5.x; only code that creates an
// execution space or allocates memory includes it.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>

#include "device/parallel.hpp"

namespace millrace::device {

using MemorySpace = ExecutionSpace::memory_space;

/// Host memory that an accelerator can copy from directly, without a staging copy. Kokkos names it
/// since 4.0; on cores it is plain memory.
#if defined(KOKKOS_HAS_SHARED_HOST_PINNED_SPACE) && MILLRACE_ON_HOST == 0
using FeedingSpace = Kokkos::SharedHostPinnedSpace;
#else
using FeedingSpace = Kokkos::HostSpace;
#endif

/// Bytes that somebody else owns, for copies.
template <class Byte, class Space>
using BytesIn = Kokkos::View<Byte*, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

}  // namespace millrace::device
