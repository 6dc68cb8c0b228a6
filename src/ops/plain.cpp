// SPDX-License-Identifier: Apache-2.0
//
// Convolution and dense as plain loops: one work item per output element, sums in ascending order.
// This code is slow and simple. It runs on every Kokkos backend and is the reference for the fast
// kernels. Only convolutions with a few channels per group use it (backend.cpp).
#include "core/portable.hpp"
#include "ops/linear.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Coordinates of element i of an NHWC tensor.
struct Pixel {
  std::int64_t n, h, w, c;
};
KOKKOS_INLINE_FUNCTION Pixel pixel(const Shape& s, std::int64_t i) {
  return {i / (s.c * s.w * s.h), i / (s.c * s.w) % s.h, i / s.c % s.w, i % s.c};
}
KOKKOS_INLINE_FUNCTION std::int64_t at(const Shape& s, std::int64_t n, std::int64_t h,
                                       std::int64_t w, std::int64_t c) {
  return ((n * s.h + h) * s.w + w) * s.c + c;
}

template <class T>
struct ConvForward {
  ConvShape s;
  T* y;
  const T* x;
  const T* kernel;
  const float* bias;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const WindowShape& w = s.window;
    const Pixel p = pixel(w.out, i);
    const std::int64_t per_group = w.in.c / s.groups;
    const std::int64_t first = p.c / (w.out.c / s.groups) * per_group;
    float sum = bias != nullptr ? bias[p.c] : 0.0f;
    for (std::int64_t r = 0; r < w.kernel_h; ++r) {
      for (std::int64_t q = 0; q < w.kernel_w; ++q) {
        const std::int64_t h = p.h * w.stride_h - w.pad_top + r * s.dilation_h;
        const std::int64_t v = p.w * w.stride_w - w.pad_left + q * s.dilation_w;
        if (h < 0 || h >= w.in.h || v < 0 || v >= w.in.w) continue;
        const T* k = kernel + ((p.c * w.kernel_h + r) * w.kernel_w + q) * per_group;
        const T* source = x + at(w.in, p.n, h, v, first);
        for (std::int64_t c = 0; c < per_group; ++c)
          sum = multiply_add(to_float(source[c]), to_float(k[c]), sum);
      }
    }
    y[i] = store_as<T>(sum);
  }
};

template <class T>
struct ConvBackwardInput {
  ConvShape s;
  T* dx;
  const T* dy;
  const T* kernel;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const WindowShape& w = s.window;
    const Pixel p = pixel(w.in, i);
    const std::int64_t per_group = w.in.c / s.groups;
    const std::int64_t outs = w.out.c / s.groups;
    const std::int64_t group = p.c / per_group;
    float sum = 0.0f;
    for (std::int64_t r = 0; r < w.kernel_h; ++r) {
      for (std::int64_t q = 0; q < w.kernel_w; ++q) {
        const std::int64_t h = p.h + w.pad_top - r * s.dilation_h;
        const std::int64_t v = p.w + w.pad_left - q * s.dilation_w;
        if (h < 0 || h % w.stride_h != 0 || h / w.stride_h >= w.out.h) continue;
        if (v < 0 || v % w.stride_w != 0 || v / w.stride_w >= w.out.w) continue;
        const std::int64_t out = at(w.out, p.n, h / w.stride_h, v / w.stride_w, group * outs);
        for (std::int64_t o = 0; o < outs; ++o) {
          const std::int64_t k =
              (((group * outs + o) * w.kernel_h + r) * w.kernel_w + q) * per_group +
              p.c % per_group;
          sum = multiply_add(to_float(dy[out + o]), to_float(kernel[k]), sum);
        }
      }
    }
    dx[i] = store_as<T>(sum);
  }
};

template <class T>
struct ConvBackwardWeight {
  ConvShape s;
  float* dkernel;
  const T* dy;
  const T* x;
  bool first;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const WindowShape& w = s.window;
    const std::int64_t per_group = w.in.c / s.groups;
    const std::int64_t c = i % per_group;
    const std::int64_t q = i / per_group % w.kernel_w;
    const std::int64_t r = i / per_group / w.kernel_w % w.kernel_h;
    const std::int64_t o = i / per_group / w.kernel_w / w.kernel_h;
    const std::int64_t in = o / (w.out.c / s.groups) * per_group + c;
    float sum = 0.0f;
    for (std::int64_t n = 0; n < w.batch; ++n) {
      for (std::int64_t oh = 0; oh < w.out.h; ++oh) {
        for (std::int64_t ow = 0; ow < w.out.w; ++ow) {
          const std::int64_t h = oh * w.stride_h - w.pad_top + r * s.dilation_h;
          const std::int64_t v = ow * w.stride_w - w.pad_left + q * s.dilation_w;
          if (h < 0 || h >= w.in.h || v < 0 || v >= w.in.w) continue;
          sum += to_float(dy[at(w.out, n, oh, ow, o)]) * to_float(x[at(w.in, n, h, v, in)]);
        }
      }
    }
    dkernel[i] = first ? sum : dkernel[i] + sum;
  }
};

template <class T>
struct BiasGradient {
  std::int64_t rows;
  std::int64_t channels;
  float* dbias;
  const T* dy;
  bool first;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    float sum = 0.0f;
    for (std::int64_t r = 0; r < rows; ++r) sum += to_float(dy[r * channels + c]);
    dbias[c] = first ? sum : dbias[c] + sum;
  }
};

/// Reads kernels in canonical order; nothing is packed.
template <class T>
class PlainConvolution final : public LinearOp {
 public:
  explicit PlainConvolution(const ConvShape& shape) : shape_(shape) {}

  [[nodiscard]] LinearBytes bytes() const override { return {.reads_kernel = true}; }
  void bind(const LinearMemory& memory) override { memory_ = memory; }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    parallel(
        "conv", space, shape_.window.out_elements(),
        ConvForward<T>{shape_, as<T>(y), as<T>(x), kernel(), shape_.bias ? memory_.bias : nullptr});
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    parallel("conv dx", space, shape_.window.in_elements(),
             ConvBackwardInput<T>{shape_, as<T>(dx), as<T>(dy), kernel()});
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    parallel("conv dw", space, shape_.kernel_elements(),
             ConvBackwardWeight<T>{shape_, memory_.dkernel, as<T>(dy), as<T>(x), first});
    if (shape_.bias) {
      const Shape& out = shape_.window.out;
      parallel("conv dbias", space, out.c,
               BiasGradient<T>{shape_.window.batch * out.pixels(), out.c, memory_.dbias, as<T>(dy),
                               first});
    }
  }

 private:
  [[nodiscard]] const T* kernel() const { return as<T>(memory_.kernel); }

  ConvShape shape_;
  LinearMemory memory_;
};

}  // namespace

std::unique_ptr<LinearOp> make_plain(const ConvShape& shape, DType type) {
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    return std::make_unique<PlainConvolution<T>>(shape);
  });
}

ConvShape as_convolution(const DenseShape& shape) {
  ConvShape conv;
  conv.window.batch = shape.batch;
  conv.window.in = {1, 1, shape.in};
  conv.window.out = {1, 1, shape.units};
  conv.bias = shape.bias;
  return conv;
}

std::unique_ptr<LinearOp> make_plain(const DenseShape& shape, DType type) {
  return make_plain(as_convolution(shape), type);
}

}  // namespace millrace::ops
