// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/kernel_table.hpp"
#include "ops/linear.hpp"

namespace millrace::ops {

/// Measures a vendor's kernels on the device at hand.
class KernelTuner {
 public:
  virtual ~KernelTuner() = default;
  /// What a table of its measurements is for.
  [[nodiscard]] virtual std::string device() const = 0;
  [[nodiscard]] virtual std::string library() const = 0;
  /// Measures every kernel of a pass that keeps to the rules of the run and to `cap` bytes of
  /// scratch. None, if the vendor leaves the pass to our kernels or to a library
  /// that has one kernel for it.
  virtual std::optional<TableRow> tune(const ConvShape& shape, DType type, LinearPass pass,
                                       std::int64_t cap) = 0;
};

}  // namespace millrace::ops
