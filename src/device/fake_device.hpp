// SPDX-License-Identifier: Apache-2.0
//
// A fake device: the cores of this machine behave like an accelerator, so that every mistake that
// would only show on one shows here (preset fake-device).
//
// - The host cannot touch the device's memory. Reading it, or giving its address to MPI, ends the
//   process with a segmentation fault at the guilty line. A protection key closes the memory to the
//   threads of the host; where the processor has none, mprotect closes it to the whole process.
// - Kernels wait in a queue until a fence or a copy. Whoever forgets to wait gets other bits.
// - The queue holds copies of functors. A functor that points to the launcher's stack breaks.
// - Work items have the shapes of an accelerator (kOnCores is false).
// - Teams have as many threads as on an accelerator (device/fake_teams.hpp).
//
// Used by src/device and by libraries' backends; nothing else needs to know of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/parallel.hpp"

namespace millrace::device {

/// Runs a kernel now, on the threads of `space`: see launch().
void run_on_cores(const char* label, const ExecutionSpace& space, std::int64_t n, RangeFunction run,
                  const void* functor);

namespace fake {

/// Zeroed memory of the device, aligned to pages; null if there is not enough. Releasing it waits
/// for the queue.
[[nodiscard]] std::shared_ptr<std::byte> allocate(std::int64_t bytes);

/// Opens the device's memory to this thread for as long as an object exists.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

/// Opens the device's memory to this thread for good: for threads that run kernels only.
void belong_to_device();

}  // namespace fake
}  // namespace millrace::device
