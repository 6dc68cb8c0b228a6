// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::device {

/// Lifetime of Kokkos: created once, before anything that touches device memory, destroyed after
/// it.
class Environment {
 public:
  /// `threads` CPU threads for kernels and for the vendor's library alike (ignored on a GPU), or
  /// the GPU of that number (ignored on cores; below 0: the next that Kokkos finds).
  explicit Environment(int threads, int gpu = -1);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
};

/// Caps the instruction sets of the vendor's library as MILLRACE_MAX_ISA says, unless a variable of
/// its own does. Has to come before the library is asked for anything; an Environment sees to that.
/// Errors: Usage, for values of such a variable that the library would pass over.
void cap_vendor_library();

/// The variable of the environment that caps the vendor's library; "" where none does.
[[nodiscard]] std::string_view vendor_cap();

/// Whether kernels run on CPU cores in this build, or else on a GPU.
[[nodiscard]] bool computes_on_cores();

/// Cores that this process may use: its affinity mask, not the machine's.
[[nodiscard]] int available_cores();

/// Their numbers.
[[nodiscard]] std::vector<int> core_numbers();

/// Which instructions kernels use, and what is slow about it: "own loops avx2; oneDNN 2.6.3 up to
/// avx2; capped by MILLRACE_MAX_ISA".
[[nodiscard]] std::string describe_kernels();

/// The same without who caps them: what has to be equal on all ranks.
[[nodiscard]] std::string describe_arithmetic();

/// What equal bits need to be equal on: "OpenMP, 2 threads; avx512_core_amx; oneDNN 2.6.3; Kokkos
/// 3.4.1". Recorded in checkpoints.
[[nodiscard]] std::string describe_environment();

}  // namespace millrace::device
