// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches. On host cores a kernel's loop is compiled for every instruction level
// (core/instruction_level.hpp) and passed to Kokkos as a function over a range, so that kernel
// sources include Kokkos' forward declarations only. On other devices Kokkos compiles the loop.
#pragma once

#include <Kokkos_Core_fwd.hpp>

#include <cstddef>
#include <cstdint>

#include "core/instruction_level.hpp"

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL) || \
    defined(KOKKOS_ENABLE_OPENMPTARGET) || defined(KOKKOS_ENABLE_OPENACC)
#include <Kokkos_Core.hpp>
#define MILLRACE_ON_HOST 0
#else
#define MILLRACE_ON_HOST 1
#endif

namespace millrace::device {

/// Where kernels run. Only declared here; defined by device/compat.hpp.
using ExecutionSpace = Kokkos::DefaultExecutionSpace;

/// True where the host may read device memory directly: kernels then run on CPU cores.
inline constexpr bool kHostAccessible = MILLRACE_ON_HOST == 1;

/// Waits for everything queued on `space`.
void fence(const ExecutionSpace& space);

/// A kernel on host cores: runs elements [first, last) of the functor.
using RangeFunction = void (*)(const void* functor, std::int64_t first, std::int64_t last);

/// Calls run(functor, first, last) on the threads of `space` with ranges that together cover [0,
/// n).
void launch(const char* label, const ExecutionSpace& space, std::int64_t n, RangeFunction run,
            const void* functor);

/// Runs functor(i) once for each i in [0, n), in any order. The label is at most 15 characters, so
/// that Kokkos' std::string holds it without allocating.
template <std::size_t kLabelSize, class Functor>
void parallel(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t n,
              const Functor& functor) {
  static_assert(kLabelSize <= 16, "a longer label allocates on every launch");
  if (n <= 0) return;
#if MILLRACE_ON_HOST
  const RangeFunction run = [](const void* body, std::int64_t first, std::int64_t last) {
    at_level([=] {
      const Functor& call = *static_cast<const Functor*>(body);
      for (std::int64_t i = first; i < last; ++i) call(i);
    });
  };
  launch(label, space, n, run, &functor);
#else
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>,
                                     Kokkos::Schedule<Kokkos::Static>>;
  Kokkos::parallel_for(label, Policy(space, 0, n), functor);
#endif
}

}  // namespace millrace::device
