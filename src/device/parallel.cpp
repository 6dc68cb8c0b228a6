// SPDX-License-Identifier: Apache-2.0
#include "device/parallel.hpp"

#include <algorithm>

#include "device/compat.hpp"
#include "device/fake_queue.hpp"

namespace millrace::device {

#if MILLRACE_ON_HOST
static_assert(Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemorySpace>::accessible,
              "this Kokkos backend does not run on the host: add it to the list in "
              "device/parallel.hpp");

namespace {

/// Runs the functor over part `part` of [0, n), cut into `parts` equal parts.
struct Part {
  RangeFunction run;
  const void* functor;
  std::int64_t n;
  std::int64_t parts;
  void operator()(std::int64_t part) const {
    run(functor, n * part / parts, n * (part + 1) / parts);
  }
};

}  // namespace

void run_on_cores(const char* label, const ExecutionSpace& space, std::int64_t n, RangeFunction run,
                  const void* functor) {
  const auto parts = std::min<std::int64_t>(n, space.concurrency());
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>,
                                     Kokkos::Schedule<Kokkos::Static>>;
  Kokkos::parallel_for(label, Policy(space, 0, parts), Part{run, functor, n, parts});
}

void launch(const char* label, const ExecutionSpace& space, std::int64_t n, RangeFunction run,
            FunctorBytes functor) {
  if constexpr (kFakeDevice) {
    fake::Queue::of_kernels().push(
        fake::Work{.label = label, .n = n, .run = run, .functor = functor});
  } else {
    run_on_cores(label, space, n, run, functor.data);
  }
}
#endif

void fence(const ExecutionSpace& space) {
  if constexpr (kFakeDevice) fake::Queue::of_kernels().run();
  space.fence();
}

}  // namespace millrace::device
