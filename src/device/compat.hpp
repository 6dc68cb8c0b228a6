// SPDX-License-Identifier: Apache-2.0
//
// src/device: the machine under the kernels.
//
// environment   lifetime of Kokkos, and how many threads it has; the first object of `main`
// tensor        views of device memory as kernels take them: unmanaged, row-major, NHWC
// arena         the one allocation of a device, handed out as offsets that a plan has computed
// host_buffer   host memory from which the device is fed
// vendor_scope  marks calls into libraries whose allocations are not ours
//
// Kernels take an execution-space instance and device views, never host pointers, and never loop
// over device data on the host; the same source is compiled for CUDA by a Kokkos built for it. This
// file holds what differs between Kokkos 3.4 and 5.x.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

#include "core/portable.hpp"

namespace millrace::device {

using ExecutionSpace = Kokkos::DefaultExecutionSpace;
using MemorySpace = ExecutionSpace::memory_space;

/// True where the host may read device memory directly: kernels then run on CPU cores.
inline constexpr bool kHostAccessible =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemorySpace>::accessible;

/// Host memory that a GPU copies without another copy in between.
#if defined(KOKKOS_ENABLE_CUDA)
using FeedingSpace = Kokkos::CudaHostPinnedSpace;
#else
using FeedingSpace = Kokkos::HostSpace;
#endif

/// Waits for everything queued on `space`; labels of fences exist only in newer Kokkos.
inline void fence(const ExecutionSpace& space) { space.fence(); }

/// Runs functor(i) for i in [0, n), each once, in no order. The label is at most 15 characters, so
/// that Kokkos' std::string holds it without allocating.
template <std::size_t kLabelSize, class Functor>
void parallel(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t n,
              const Functor& functor) {
  static_assert(kLabelSize <= 16, "a longer label allocates on every launch");
  if (n <= 0) return;
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>,
                                     Kokkos::Schedule<Kokkos::Static>>;
  Kokkos::parallel_for(label, Policy(space, 0, n), functor);
}

}  // namespace millrace::device
