// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_ops.hpp"

#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "ops/inner_kernel.hpp"

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
class MergedGroups final : public LinearOp {
 public:
  MergedGroups(const ConvShape& shape, std::int64_t merged, std::unique_ptr<LinearOp> wide)
      : diagonal_{shape.window.kernel_h * shape.window.kernel_w, shape.window.in.c / shape.groups,
                  shape.window.out.c / shape.groups, merged},
        elements_(shape.kernel_elements()),
        wide_(std::move(wide)),
        kernel_(*wide_, kernel_bytes()) {}

  [[nodiscard]] LinearBytes bytes() const override {
    LinearBytes bytes = wide_->bytes();
    bytes.packed_forward = kernel_.packed_bytes();
    bytes.scratch += kernel_bytes();
    bytes.reads_kernel = false;
    return bytes;
  }
  /// Scratch holds the wide kernel's gradient during backward weight. It may also hold the kernel
  /// during packing.
  void bind(const LinearMemory& memory) override {
    memory_ = memory;
    LinearMemory rest = memory;
    rest.kernel = kernel_.in(memory);
    rest.dkernel = wide_gradient();
    rest.scratch += kernel_bytes();
    wide_->bind(rest);
  }
  void pack(const ExecutionSpace& space, bool backward) override {
    parallel("widen groups", space, elements_ / diagonal_.in,
             Widen<T>{diagonal_, reinterpret_cast<T*>(kernel_.in(memory_)),
                      reinterpret_cast<const T*>(memory_.kernel)});
    wide_->pack(space, backward);
  }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    wide_->forward(space, y, x);
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    wide_->backward_input(space, dx, dy);
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    wide_->backward_weight(space, dy, x, true);
    parallel("narrow groups", space, elements_ / diagonal_.in,
             AddDiagonal{diagonal_, memory_.dkernel, wide_gradient(), first});
  }

 private:
  [[nodiscard]] std::int64_t kernel_bytes() const {
    return device::aligned(elements_ * diagonal_.merged * static_cast<std::int64_t>(sizeof(float)));
  }
  [[nodiscard]] float* wide_gradient() const { return reinterpret_cast<float*>(memory_.scratch); }

  Diagonal diagonal_;
  std::int64_t elements_;  ///< of the narrow kernel
  std::unique_ptr<LinearOp> wide_;
  InnerKernel kernel_;
  LinearMemory memory_;
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
