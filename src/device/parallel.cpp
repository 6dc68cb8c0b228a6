// SPDX-License-Identifier: Apache-2.0
#include "device/parallel.hpp"

#include <algorithm>

#include "device/compat.hpp"

namespace millrace::device {

static_assert(
    kHostAccessible == Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemorySpace>::accessible,
    "this Kokkos backend does not run on the host: add it to the list in device/parallel.hpp");

void fence(const ExecutionSpace& space) { space.fence(); }

#if MILLRACE_ON_HOST
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

void launch(const char* label, const ExecutionSpace& space, std::int64_t n, RangeFunction run,
            const void* functor) {
  const auto parts = std::min<std::int64_t>(n, space.concurrency());
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>,
                                     Kokkos::Schedule<Kokkos::Static>>;
  Kokkos::parallel_for(label, Policy(space, 0, parts), Part{run, functor, n, parts});
}
#endif

}  // namespace millrace::device
