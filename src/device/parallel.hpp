// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches. On host cores a kernel's loop is compiled for every instruction level
// (core/instruction_level.hpp) and passed to Kokkos as a function over a range, so that kernel
// sources include Kokkos' forward declarations only. On other devices Kokkos compiles the loop.
//
// A kernel may still wait in a queue when parallel() returns. Whoever needs its results waits with
// fence() or copies them with device/arena.hpp, which waits, too.
#pragma once

#include <Kokkos_Core_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

/// Whether this is the fake device (device/fake_device.hpp): host cores that behave like an
/// accelerator.
#if defined(MILLRACE_FAKE_DEVICE)
inline constexpr bool kFakeDevice = true;
static_assert(MILLRACE_ON_HOST == 1, "the fake device needs a Kokkos that runs on host cores");
#else
inline constexpr bool kFakeDevice = false;
#endif

/// Whether the work items of kernels are shaped for CPU cores: few, long, and made of vectors. On
/// accelerators a work item is one element, and neighboring threads have neighboring elements.
inline constexpr bool kOnCores = MILLRACE_ON_HOST == 1 && !kFakeDevice;

/// Whether the host, and MPI with it, may read and write device memory. A different fact than
/// kOnCores: the host reads the unified memory of a GPU as well.
#if defined(MILLRACE_UNIFIED_MEMORY)
inline constexpr bool kHostReadable = true;
static_assert(kFakeDevice, "Kokkos knows whether the memory of other devices is unified");
#elif MILLRACE_ON_HOST
inline constexpr bool kHostReadable = !kFakeDevice;
#else
inline constexpr bool kHostReadable =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, ExecutionSpace::memory_space>::accessible;
#endif

/// Whether kernels may compute in 64-bit floats. Some accelerators have none.
#if defined(MILLRACE_NO_FLOAT64)
inline constexpr bool kHasFloat64 = false;
#else
inline constexpr bool kHasFloat64 = true;
#endif

/// Waits for everything queued on `space`.
void fence(const ExecutionSpace& space);

/// A kernel on host cores: runs elements [first, last) of the functor.
using RangeFunction = void (*)(const void* functor, std::int64_t first, std::int64_t last);

/// A functor, as bytes that may be copied.
struct FunctorBytes {
  const void* data;
  std::size_t size;
};

/// Calls run(functor, first, last) on the threads of `space` with ranges that together cover [0,
/// n).
void launch(const char* label, const ExecutionSpace& space, std::int64_t n, RangeFunction run,
            FunctorBytes functor);

#if !MILLRACE_ON_HOST
/// The policy of a launch whose arguments travel with it. For functors of 512 bytes and more Kokkos
/// would copy them through one buffer of constant memory on GPUs of NVIDIA and AMD: the host would
/// wait for the kernel before, and a kept launch (device/queues.hpp) would read the arguments of
/// another.
template <class Functor, class Policy>
[[nodiscard]] auto light_weight(const Policy& policy) {
  constexpr std::size_t kMostBytes = 3500;  // CUDA and HIP pass 4096, the policy included
  static_assert(sizeof(Functor) <= kMostBytes, "the arguments of a kernel are too large");
  return Kokkos::Experimental::require(policy,
                                       Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

/// Bounds of a launch in blocks of kThreads. On NVIDIA's GPUs a kernel that waits for memory says
/// with kThreadsAtOnce for how many threads of a multiprocessor its registers must leave room.
template <class Functor, int kThreads, class Otherwise = Kokkos::LaunchBounds<>>
[[nodiscard]] constexpr auto launch_bounds() {
#if defined(KOKKOS_ENABLE_CUDA)
  constexpr bool kGiven = requires { Functor::kThreadsAtOnce; };
#else
  constexpr bool kGiven = false;
#endif
  if constexpr (kGiven) {
    return Kokkos::LaunchBounds<kThreads, Functor::kThreadsAtOnce / kThreads>{};
  } else {
    return Otherwise{};
  }
}
#endif

/// Runs functor(i) once for each i in [0, n), in any order. The label is at most 15 characters, so
/// that Kokkos' std::string holds it without allocating.
template <std::size_t kLabelSize, class Functor>
void parallel(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t n,
              const Functor& functor) {
  static_assert(kLabelSize <= 16, "a longer label allocates on every launch");
  if (n <= 0) return;
#if MILLRACE_ON_HOST
  // Not with nvcc, whose lambdas are wrapped in a class with a copy constructor of its own.
  static_assert(
      std::is_trivially_copyable_v<Functor> && alignof(Functor) <= alignof(std::max_align_t),
      "devices get a copy of the functor's bytes");
  const RangeFunction run = [](const void* body, std::int64_t first, std::int64_t last) {
    at_level([=] {
      const Functor& call = *static_cast<const Functor*>(body);
      for (std::int64_t i = first; i < last; ++i) call(i);
    });
  };
  launch(label, space, n, run, {&functor, sizeof functor});
#else
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>,
                                     Kokkos::Schedule<Kokkos::Static>,
                                     decltype(launch_bounds<Functor, 128>())>;
  Kokkos::parallel_for(label, light_weight<Functor>(Policy(space, 0, n)), functor);
#endif
}

#if MILLRACE_ON_HOST
/// Puts a call of a library behind the work that waits in the queue of the fake device.
void queue_call(RangeFunction call, FunctorBytes functor);

/// Calls a library that computes on host cores (oneDNN), after everything queued on `space`. `call`
/// takes no arguments and launches no kernels.
template <class Call>
void call_library(const ExecutionSpace& space, const Call& call) {
  static_assert(std::is_trivially_copyable_v<Call>, "a device gets a copy of the call's bytes");
  if constexpr (kFakeDevice) {
    queue_call(
        [](const void* body, std::int64_t, std::int64_t) { (*static_cast<const Call*>(body))(); },
        {&call, sizeof call});
  } else {
    fence(space);
    call();
  }
}
#endif

}  // namespace millrace::device
