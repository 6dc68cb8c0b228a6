// SPDX-License-Identifier: Apache-2.0
#include "ops/onednn/primitives.hpp"

namespace millrace::ops::onednn {
namespace {

using Dims = memory::dims;

/// Whether some tap of a kernel is outside the image for every window position, along one axis.
bool has_blind_taps(std::int64_t kernel, std::int64_t dilation, std::int64_t stride,
                    std::int64_t pad, std::int64_t in, std::int64_t out) {
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    bool sees = false;
    for (std::int64_t o = 0; o < out && !sees; ++o) {
      const std::int64_t at = o * stride - pad + tap * dilation;
      sees = at >= 0 && at < in;
    }
    if (!sees) return true;
  }
  return false;
}

/// Convolution kernel in oneDNN's dimensions: [g][o][i][h][w] or [o][i][h][w].
struct KernelDims {
  Dims dims;
  memory::format_tag canonical;
};

KernelDims kernel_dims(const ConvShape& s) {
  const Shape& in = s.window.in;
  const Shape& out = s.window.out;
  if (s.groups == 1) {
    return {{out.c, in.c, s.window.kernel_h, s.window.kernel_w}, memory::format_tag::ohwi};
  }
  return {{s.groups, out.c / s.groups, in.c / s.groups, s.window.kernel_h, s.window.kernel_w},
          memory::format_tag::gohwi};
}

}  // namespace

Primitives find_primitives(const dnnl::engine& e, const ConvShape& s, DType type, Passes passes,
                           std::int64_t cap) {
  Primitives found;
  if (!multiplies(type)) return found;
  const WindowShape& w = s.window;
  const auto t = data_type(type);
  const auto f32 = memory::data_type::f32;
  const KernelDims k = kernel_dims(s);
  const auto any = memory::format_tag::any;
  const auto nhwc = memory::format_tag::nhwc;
  const memory::desc src({w.batch, w.in.c, w.in.h, w.in.w}, t, nhwc);
  const memory::desc dst({w.batch, w.out.c, w.out.h, w.out.w}, t, nhwc);
  const memory::desc bias({w.out.c}, f32, memory::format_tag::x);
  const memory::desc kernel(k.dims, t, any);
  const memory::desc gradient(k.dims, f32, any);
  const Dims strides = {w.stride_h, w.stride_w};
  const Dims dilates = {s.dilation_h - 1, s.dilation_w - 1};
  const Dims before = {w.pad_top, w.pad_left};
  const Dims after = {s.pad_bottom, s.pad_right};
  const auto direct = dnnl::algorithm::convolution_direct;
  const auto training = dnnl::prop_kind::forward_training;
  using Forward = dnnl::convolution_forward;

  const auto forward =
      s.bias ? forward_descriptor<Forward>(e, cap, type, training, direct, src, kernel, bias, dst,
                                           strides, dilates, before, after)
             : forward_descriptor<Forward>(e, cap, type, training, direct, src, kernel, dst,
                                           strides, dilates, before, after);
  if (!forward) return found;  // the other descriptors need this one
  Layouts& l = found.layouts;
  found.bias = s.bias;
  l.blind_taps = has_blind_taps(w.kernel_h, s.dilation_h, w.stride_h, w.pad_top, w.in.h, w.out.h) ||
                 has_blind_taps(w.kernel_w, s.dilation_w, w.stride_w, w.pad_left, w.in.w, w.out.w);
  l.kernel = memory::desc(k.dims, t, k.canonical);
  l.canonical = memory::desc(k.dims, f32, k.canonical);
  l.src = src;
  l.dst = dst;
  l.bias = bias;
  if (passes.forward) found.take_forward<Forward>(forward);
  if (passes.backward_input) {
    using Data = dnnl::convolution_backward_data;
    found.take_backward_input<Data>(backward_descriptor<Data>(
        e, cap, type, forward, direct, src, kernel, dst, strides, dilates, before, after));
  }
  if (passes.backward_weight) {
    using Weights = dnnl::convolution_backward_weights;
    found.take_backward_weight<Weights>(
        s.bias ? backward_descriptor<Weights>(e, cap, type, forward, direct, src, gradient, bias,
                                              dst, strides, dilates, before, after)
               : backward_descriptor<Weights>(e, cap, type, forward, direct, src, gradient, dst,
                                              strides, dilates, before, after));
  }
  return found;
}

Primitives find_primitives(const dnnl::engine& e, const DenseShape& s, DType type, Passes passes,
                           std::int64_t cap) {
  Primitives found;
  if (!multiplies(type)) return found;
  const auto t = data_type(type);
  const auto f32 = memory::data_type::f32;
  const Dims dims = {s.units, s.in};
  const memory::desc src({s.batch, s.in}, t, memory::format_tag::nc);
  const memory::desc dst({s.batch, s.units}, t, memory::format_tag::nc);
  const memory::desc bias({s.units}, f32, memory::format_tag::x);
  const memory::desc kernel(dims, t, memory::format_tag::any);
  const memory::desc gradient(dims, f32, memory::format_tag::any);
  const auto training = dnnl::prop_kind::forward_training;
  using Forward = dnnl::inner_product_forward;

  const auto forward =
      s.bias ? forward_descriptor<Forward>(e, cap, type, training, src, kernel, bias, dst)
             : forward_descriptor<Forward>(e, cap, type, training, src, kernel, dst);
  if (!forward) return found;
  Layouts& l = found.layouts;
  found.bias = s.bias;
  l.kernel = memory::desc(dims, t, memory::format_tag::oi);
  l.canonical = memory::desc(dims, f32, memory::format_tag::oi);
  l.src = src;
  l.dst = dst;
  l.bias = bias;
  if (passes.forward) found.take_forward<Forward>(forward);
  if (passes.backward_input) {
    using Data = dnnl::inner_product_backward_data;
    found.take_backward_input<Data>(
        backward_descriptor<Data>(e, cap, type, forward, src, kernel, dst));
  }
  if (passes.backward_weight) {
    using Weights = dnnl::inner_product_backward_weights;
    found.take_backward_weight<Weights>(
        s.bias ? backward_descriptor<Weights>(e, cap, type, forward, src, gradient, bias, dst)
               : backward_descriptor<Weights>(e, cap, type, forward, src, gradient, dst));
  }
  return found;
}

}  // namespace millrace::ops::onednn
