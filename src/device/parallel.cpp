// SPDX-License-Identifier: Apache-2.0
#include "device/parallel.hpp"

#include <algorithm>

#if defined(KOKKOS_ENABLE_OPENMP)
#include <omp.h>
#endif

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

#if defined(KOKKOS_ENABLE_OPENMP)
namespace {

/// Shows a launch to the tools of Kokkos while it runs.
class Shown {
 public:
  explicit Shown(const char* label) : seen_(Kokkos::Tools::profileLibraryLoaded()) {
    if (seen_) Kokkos::Tools::beginParallelFor(label, 0, &number_);
  }
  ~Shown() {
    if (seen_) Kokkos::Tools::endParallelFor(number_);
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  bool seen_;
  std::uint64_t number_ = 0;
};

}  // namespace

/// Each host thread has OpenMP threads of its own. A launch by Kokkos would use only those of the
/// thread that initialised it.
void run_on_cores(const char* label, const ExecutionSpace& space, std::int64_t n, RangeFunction run,
                  const void* functor) {
  static_assert(std::is_same_v<ExecutionSpace, Kokkos::OpenMP>);
  const Shown shown(label);
  const int threads = space.concurrency();
  const Part body{run, functor, n, std::min<std::int64_t>(n, threads)};
#pragma omp parallel num_threads(threads)
  for (std::int64_t p = omp_get_thread_num(); p < body.parts; p += omp_get_num_threads()) body(p);
}
#else
void run_on_cores(const char* label, const ExecutionSpace& space, std::int64_t n, RangeFunction run,
                  const void* functor) {
  const auto parts = std::min<std::int64_t>(n, space.concurrency());
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>,
                                     Kokkos::Schedule<Kokkos::Static>>;
  Kokkos::parallel_for(label, Policy(space, 0, parts), Part{run, functor, n, parts});
}
#endif

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
