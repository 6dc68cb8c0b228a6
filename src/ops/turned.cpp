// SPDX-License-Identifier: Apache-2.0
//
// With stride 1, the gradient of a convolution's input is itself a convolution of dy. Its kernel is
// rotated by 180 degrees, with input and output channels swapped (Dumoulin and Visin 2016, section
// 4).
//
//   dx[i] = sum over o, r of dy[o][. + pad - r] k[o][r][i] = conv(dy, turned k)
//
// This is faster with libraries whose forward passes are better optimized.
#include "ops/linear_ops.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/parallel.hpp"
#include "ops/inner_kernel.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Copies one tap of one input channel from [out][tap][in] to [in][last tap .. first tap][out].
struct Turn {
  std::int64_t out;
  std::int64_t taps;
  std::int64_t in;
  float* to;
  const float* from;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t tap = i % taps;
    const std::int64_t c = i / taps;
    for (std::int64_t o = 0; o < out; ++o)
      to[i * out + o] = from[(o * taps + taps - 1 - tap) * in + c];
  }
};

class Turned final : public LinearOp {
 public:
  Turned(const ConvShape& shape, std::unique_ptr<LinearOp> turned)
      : out_(shape.window.out.c),
        taps_(shape.window.kernel_h * shape.window.kernel_w),
        in_(shape.window.in.c),
        turned_(std::move(turned)),
        kernel_(*turned_, out_ * taps_ * in_ * static_cast<std::int64_t>(sizeof(float))) {}

  [[nodiscard]] LinearBytes bytes() const override {
    LinearBytes bytes;
    bytes.packed_backward = kernel_.packed_bytes();
    bytes.scratch = turned_->bytes().scratch + kernel_.scratch_bytes();
    return bytes;
  }
  void bind(const LinearMemory& memory) override {
    from_ = reinterpret_cast<const float*>(memory.kernel);
    LinearMemory rest;
    rest.packed_forward = memory.packed_backward;
    rest.scratch = memory.scratch;
    std::byte* const kernel = kernel_.in(rest);
    to_ = reinterpret_cast<float*>(kernel);
    rest.kernel = kernel;
    rest.scratch += kernel_.scratch_bytes();
    turned_->bind(rest);
  }
  void pack(const ExecutionSpace& space, bool backward) override {
    if (!backward) return;
    parallel("turn kernel", space, in_ * taps_, Turn{out_, taps_, in_, to_, from_});
    turned_->pack(space, false);
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    turned_->forward(space, dx, dy);
  }
  void forward(const ExecutionSpace&, std::byte*, const std::byte*) override {
    MILLRACE_ASSERT(false);
  }
  void backward_weight(const ExecutionSpace&, const std::byte*, const std::byte*, bool) override {
    MILLRACE_ASSERT(false);
  }

 private:
  std::int64_t out_;
  std::int64_t taps_;
  std::int64_t in_;
  std::unique_ptr<LinearOp> turned_;
  InnerKernel kernel_;
  const float* from_ = nullptr;
  float* to_ = nullptr;
};

}  // namespace

bool is_turnable(const ConvShape& s) {
  const WindowShape& w = s.window;
  const auto within = [](std::int64_t pad, std::int64_t kernel) { return pad < kernel; };
  return w.stride_h == 1 && w.stride_w == 1 && s.dilation_h == 1 && s.dilation_w == 1 &&
         s.groups == 1 && within(std::max(w.pad_top, s.pad_bottom), w.kernel_h) &&
         within(std::max(w.pad_left, s.pad_right), w.kernel_w);
}

ConvShape turned_shape(const ConvShape& s) {
  ConvShape turned = s;
  WindowShape& w = turned.window;
  std::swap(w.in, w.out);
  w.pad_top = w.kernel_h - 1 - s.window.pad_top;
  w.pad_left = w.kernel_w - 1 - s.window.pad_left;
  turned.pad_bottom = w.kernel_h - 1 - s.pad_bottom;
  turned.pad_right = w.kernel_w - 1 - s.pad_right;
  turned.bias = false;
  return turned;
}

std::unique_ptr<LinearOp> make_turned(const ConvShape& shape, std::unique_ptr<LinearOp> turned) {
  MILLRACE_ASSERT(is_turnable(shape));
  return std::make_unique<Turned>(shape, std::move(turned));
}

}  // namespace millrace::ops
