// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "core/error.hpp"
#include "ops/linear_ops.hpp"
#include "ops/wide_kernel.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Maps elements of the narrow kernel [out][tap][in] to the wide one, [out][tap][merged in].
struct Diagonal {
  std::int64_t taps;
  std::int64_t in;      ///< channels of a narrow group
  std::int64_t out;     ///< filters of a narrow group
  std::int64_t merged;  ///< narrow groups in a wide one

  /// First channel of the wide kernel that filter `filter` reads.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t first(std::int64_t filter) const {
    return filter / out % merged * in;
  }
};

/// Writes one row of the wide kernel: one filter at one tap.
template <class T>
struct Widen {
  Diagonal d;
  T* wide;
  const T* narrow;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const std::int64_t width = d.in * d.merged;
    T* to = wide + row * width;
    for (std::int64_t c = 0; c < width; ++c) to[c] = T{};
    to += d.first(row / d.taps);
    for (std::int64_t c = 0; c < d.in; ++c) to[c] = narrow[row * d.in + c];
  }
};

/// Adds one row of the narrow kernel's gradient.
struct AddDiagonal {
  Diagonal d;
  float* narrow;
  const float* wide;
  bool first;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const float* from = wide + row * d.in * d.merged + d.first(row / d.taps);
    float* to = narrow + row * d.in;
    for (std::int64_t c = 0; c < d.in; ++c) to[c] = first ? from[c] : to[c] + from[c];
  }
};

template <class T>
class MergedGroups final : public WideKernel {
 public:
  MergedGroups(const ConvShape& shape, std::int64_t merged, std::unique_ptr<LinearOp> wide)
      : WideKernel(std::move(wide), shape.kernel_elements() * merged,
                   static_cast<std::int64_t>(sizeof(T))),
        diagonal_{shape.window.kernel_h * shape.window.kernel_w, shape.window.in.c / shape.groups,
                  shape.window.out.c / shape.groups, merged},
        rows_(shape.kernel_elements() / diagonal_.in) {}

 private:
  void widen(const ExecutionSpace& space, std::byte* wide, const std::byte* narrow) const override {
    parallel("widen groups", space, rows_,
             Widen<T>{diagonal_, reinterpret_cast<T*>(wide), reinterpret_cast<const T*>(narrow)});
  }
  void narrow(const ExecutionSpace& space, float* narrow, const float* wide,
              bool first) const override {
    parallel("narrow groups", space, rows_, AddDiagonal{diagonal_, narrow, wide, first});
  }

  Diagonal diagonal_;
  std::int64_t rows_;  ///< of the kernel: one filter at one tap each
};

}  // namespace

ConvShape merged_shape(const ConvShape& shape, std::int64_t merged) {
  MILLRACE_ASSERT(merged > 0 && shape.groups % merged == 0);
  ConvShape wide = shape;
  wide.groups = shape.groups / merged;
  return wide;
}

std::unique_ptr<LinearOp> make_merged_groups(const ConvShape& shape, std::int64_t merged,
                                             DType type, std::unique_ptr<LinearOp> wide) {
  MILLRACE_ASSERT(!shape.bias);  // its gradient would be overwritten by every micro-batch
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    return std::make_unique<MergedGroups<T>>(shape, merged, std::move(wide));
  });
}

}  // namespace millrace::ops
