// SPDX-License-Identifier: Apache-2.0
//
// src/device: devices, their memory and kernel launches.
//
// environment   lifetime of Kokkos and its number of threads; the first object of `main`
// parallel      launches kernels at the instruction level of the processor
// tensor        the storage types that kernels support
// arena         the single allocation of a device, used through offsets that a plan computes
// host_buffer   host memory that the device copies its input from
// fake_device   cores that behave like an accelerator, for tests (preset fake-device)
// vendor_scope  marks calls into libraries that allocate memory themselves
//
// Kernels take an execution-space instance and device pointers, never host pointers, and never loop
// over device data on the host. The same source compiles for CUDA if Kokkos is built for CUDA. This
// file hides the differences between Kokkos 3.4 and 5.x; only code that creates an execution space
// or allocates memory includes it.
#pragma once

#include <Kokkos_Core.hpp>

#include "device/parallel.hpp"

namespace millrace::device {

using MemorySpace = ExecutionSpace::memory_space;

/// Host memory that a GPU can copy from directly, without a staging copy.
#if defined(KOKKOS_ENABLE_CUDA)
using FeedingSpace = Kokkos::CudaHostPinnedSpace;
#else
using FeedingSpace = Kokkos::HostSpace;
#endif

}  // namespace millrace::device
