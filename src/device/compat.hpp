// SPDX-License-Identifier: Apache-2.0
//
// src/device: the machine under the kernels.
//
// environment   lifetime of Kokkos, and how many threads it has; the first object of `main`
// parallel      how kernels are launched, at the instruction level of the processor
// tensor        which storage types kernels have
// arena         the one allocation of a device, handed out as offsets that a plan has computed
// host_buffer   host memory from which the device is fed
// vendor_scope  marks calls into libraries whose allocations are not ours
//
// Kernels take an execution-space instance and device pointers, never host pointers, and never loop
// over device data on the host; the same source is compiled for CUDA by a Kokkos built for it. This
// file holds what differs between Kokkos 3.4 and 5.x; only those who make an execution space or
// allocate need it.
#pragma once

#include <Kokkos_Core.hpp>

#include "device/parallel.hpp"

namespace millrace::device {

using MemorySpace = ExecutionSpace::memory_space;

/// Host memory that a GPU copies without another copy in between.
#if defined(KOKKOS_ENABLE_CUDA)
using FeedingSpace = Kokkos::CudaHostPinnedSpace;
#else
using FeedingSpace = Kokkos::HostSpace;
#endif

}  // namespace millrace::device
