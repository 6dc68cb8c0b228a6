// SPDX-License-Identifier: Apache-2.0
//
// The table of `bench --kernels`: what the kernels of a step take, and what they would take at
// least. That is the roofline (Williams, Waterman and Patterson 2009): the longer one of a kernel's
// products at the highest rate of products, and its bytes at the highest rate of memory. Kernels
// whose data lie in caches may be faster than that.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/json.hpp"

namespace millrace::report {

/// A rate that the cores of a rank reach at most.
struct Peak {
  std::string name;                ///< "avx512", "reading"
  std::optional<DType> type = {};  ///< of the operands of products; none: bytes of memory
  double per_second = 0.0;         ///< floating-point operations, or bytes read and written
};

/// Alike kernels of a step, added up, or something else that takes time in it.
struct KernelTime {
  std::string kernel;      ///< "LinearForward", as in traces
  std::string shape = {};  ///< "3x3/2 56x56x64 -> 28x28x128"
  std::string pass = {};   ///< "forward", "backward", or "again" for a recomputation
  double count = 1.0;
  double seconds = 0.0;
  double flops = 0.0;
  double bytes = 0.0;          ///< that must be read or written
  double least_seconds = 0.0;  ///< by the roofline; 0: not known
};
[[nodiscard]] Json to_json(const KernelTime& time);
/// The inverse, without `least_seconds`. Errors: JsonError.
[[nodiscard]] KernelTime kernel_time_of(const Json& json);

/// The fastest step.
struct StepTime {
  double seconds = 0.0;
  double known = 0.0;  ///< of these, in kernels and other things that have a row
};

struct KernelTable {
  std::vector<Peak> peaks;
  /// Heaviest first. The last two are "spread", by which what the fastest step did is above what it
  /// took in the fastest case, and "framework", which is the rest of that step.
  std::vector<KernelTime> times;
  double seconds = 0.0;  ///< of the fastest step, of all ranks together: the sum of `times`
};

/// One for each kernel, shape and pass.
[[nodiscard]] std::vector<KernelTime> added_up(std::span<const KernelTime> times);
/// The table of a step that has `times` in the fastest case. `type` is that of the operands of
/// products, which may always be float32 as well.
[[nodiscard]] KernelTable kernel_table(std::vector<Peak> peaks, DType type,
                                       std::span<const KernelTime> times, const StepTime& step);

/// Peaks, times and the rest in columns. Of the times the `most` heaviest; the others in one row.
[[nodiscard]] std::string to_text(const KernelTable& table, std::size_t most);
/// The same with all times, a line for each, and a head. Empty fields where there is no number.
[[nodiscard]] std::string to_csv(const KernelTable& table);
/// {"peaks": [..], "kernels": [..]}, with all times.
[[nodiscard]] Json to_json(const KernelTable& table);

}  // namespace millrace::report
