// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_ops.hpp"

#include <utility>

#include "device/arena.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;

/// Window that selects the pixels that the convolution reads.
WindowShape gather_window(const ConvShape& shape) {
  WindowShape window = shape.window;
  window.out.c = window.in.c;
  return window;
}

class StridedPointwise final : public LinearOp {
 public:
  StridedPointwise(const ConvShape& shape, DType type, std::unique_ptr<LinearOp> dense)
      : gather_(gather_window(shape)), type_(type), dense_(std::move(dense)) {}

  [[nodiscard]] LinearBytes bytes() const override {
    LinearBytes bytes = dense_->bytes();
    bytes.scratch += gathered_bytes();
    return bytes;
  }
  void bind(const LinearMemory& memory) override {
    gathered_ = memory.scratch;
    LinearMemory rest = memory;
    rest.scratch += gathered_bytes();
    dense_->bind(rest);
  }
  void pack(const ExecutionSpace& space, bool backward) override { dense_->pack(space, backward); }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    gather(space, x);
    dense_->forward(space, y, gathered_);
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    dense_->backward_input(space, gathered_, dy);
    device::dispatch(type_, [&]<class T>() {
      shortcut_pad_backward<T>(space, gather_, 0, reinterpret_cast<T*>(dx),
                               reinterpret_cast<const T*>(gathered_));
    });
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    gather(space, x);
    dense_->backward_weight(space, dy, gathered_, first);
  }

 private:
  [[nodiscard]] std::int64_t gathered_bytes() const {
    return device::aligned(gather_.out_elements() * size_of(type_));
  }
  void gather(const ExecutionSpace& space, const std::byte* x) {
    device::dispatch(type_, [&]<class T>() {
      shortcut_pad_forward<T>(space, gather_, 0, reinterpret_cast<T*>(gathered_),
                              reinterpret_cast<const T*>(x));
    });
  }

  WindowShape gather_;
  DType type_;
  std::unique_ptr<LinearOp> dense_;
  std::byte* gathered_ = nullptr;
};

}  // namespace

bool is_strided_pointwise(const ConvShape& s) {
  const WindowShape& w = s.window;
  return w.kernel_h == 1 && w.kernel_w == 1 && (w.stride_h > 1 || w.stride_w > 1) &&
         w.pad_top == 0 && w.pad_left == 0 && s.pad_bottom == 0 && s.pad_right == 0 &&
         s.groups == 1;
}

ConvShape gathered_shape(const ConvShape& shape) {
  ConvShape dense = shape;
  dense.window.in.h = shape.window.out.h;
  dense.window.in.w = shape.window.out.w;
  dense.window.stride_h = 1;
  dense.window.stride_w = 1;
  return dense;
}

std::unique_ptr<LinearOp> make_strided_pointwise(const ConvShape& shape, DType type,
                                                 std::unique_ptr<LinearOp> dense) {
  return std::make_unique<StridedPointwise>(shape, type, std::move(dense));
}

}  // namespace millrace::ops
