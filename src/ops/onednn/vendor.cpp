// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"
#include "device/environment.hpp"
#include "ops/onednn/linear_op.hpp"
#include "ops/vendor.hpp"

namespace millrace::ops {
namespace onednn {
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

/// The families of oneDNN's primitives.
struct Convolution {
  using Forward = dnnl::convolution_forward;
  using Data = dnnl::convolution_backward_data;
  using Weights = dnnl::convolution_backward_weights;
};
struct InnerProduct {
  using Forward = dnnl::inner_product_forward;
  using Data = dnnl::inner_product_backward_data;
  using Weights = dnnl::inner_product_backward_weights;
};

struct Wanted {
  const dnnl::engine& engine;
  DType type;
  Passes passes;
  std::int64_t cap;  ///< bytes of scratch of each pass, if possible
};

/// Finds the primitives for those of the passes that oneDNN supports. `found` has the layouts that
/// do not depend on them. `with` calls a function with what is around the operands of a family.
template <class Family, class With>
Primitives find(Primitives found, const Wanted& wanted, const Dims& kernel_dims, const With& with) {
  using Forward = typename Family::Forward;
  using Data = typename Family::Data;
  using Weights = typename Family::Weights;
  const DType type = wanted.type;
  const memory::desc kernel(kernel_dims, data_type(type), memory::format_tag::any);
  const memory::desc gradient(kernel_dims, memory::data_type::f32, memory::format_tag::any);
  const auto forward_of = [&](const auto&... all) {
    return forward_descriptor<Forward>(wanted.engine, wanted.cap, type,
                                       dnnl::prop_kind::forward_training, all...);
  };
  const auto forward = found.has_bias ? with(forward_of, found.src, kernel, found.bias, found.dst)
                                      : with(forward_of, found.src, kernel, found.dst);
  if (!forward) return {};  // the other descriptors need this one
  if (wanted.passes.forward)
    found.forward = {Forward(forward), forward.weights_desc(), forward.scratchpad_desc()};
  const auto data_of = [&](const auto&... all) {
    return backward_descriptor<Data>(wanted.engine, wanted.cap, type, forward, all...);
  };
  if (wanted.passes.backward_input)
    if (const auto d = with(data_of, found.src, kernel, found.dst))
      found.backward_input = {Data(d), d.weights_desc(), d.scratchpad_desc()};
  const auto weights_of = [&](const auto&... all) {
    return backward_descriptor<Weights>(wanted.engine, wanted.cap, type, forward, all...);
  };
  if (wanted.passes.backward_weight)
    if (const auto d = found.has_bias ? with(weights_of, found.src, gradient, found.bias, found.dst)
                                      : with(weights_of, found.src, gradient, found.dst))
      found.backward_weight = {Weights(d), d.diff_weights_desc(), d.scratchpad_desc()};
  return found;
}

/// The layouts of operands and canonical kernels.
Primitives start(const Dims& src, const Dims& dst, memory::format_tag images, const Dims& kernel,
                 memory::format_tag canonical, bool bias, DType type) {
  const auto f32 = memory::data_type::f32;
  Primitives found;
  found.has_bias = bias;
  found.src = memory::desc(src, data_type(type), images);
  found.dst = memory::desc(dst, data_type(type), images);
  found.bias = memory::desc({dst[1]}, f32, memory::format_tag::x);
  found.kernel = memory::desc(kernel, data_type(type), canonical);
  found.canonical = memory::desc(kernel, f32, canonical);
  return found;
}

Primitives find_primitives(const ConvShape& s, const Wanted& wanted) {
  const WindowShape& w = s.window;
  const KernelDims k = kernel_dims(s);
  Primitives found = start({w.batch, w.in.c, w.in.h, w.in.w}, {w.batch, w.out.c, w.out.h, w.out.w},
                           memory::format_tag::nhwc, k.dims, k.canonical, s.bias, wanted.type);
  found.blind_taps =
      has_blind_taps(w.kernel_h, s.dilation_h, w.stride_h, w.pad_top, w.in.h, w.out.h) ||
      has_blind_taps(w.kernel_w, s.dilation_w, w.stride_w, w.pad_left, w.in.w, w.out.w);
  const Dims strides = {w.stride_h, w.stride_w};
  const Dims dilates = {s.dilation_h - 1, s.dilation_w - 1};
  const Dims before = {w.pad_top, w.pad_left};
  const Dims after = {s.pad_bottom, s.pad_right};
  return find<Convolution>(std::move(found), wanted, k.dims,
                           [&](const auto& descriptor, const auto&... operands) {
                             return descriptor(dnnl::algorithm::convolution_direct, operands...,
                                               strides, dilates, before, after);
                           });
}

Primitives find_primitives(const DenseShape& s, const Wanted& wanted) {
  const Dims kernel = {s.units, s.in};
  return find<InnerProduct>(start({s.batch, s.in}, {s.batch, s.units}, memory::format_tag::nc,
                                  kernel, memory::format_tag::oi, s.bias, wanted.type),
                            wanted, kernel, [](const auto& descriptor, const auto&... operands) {
                              return descriptor(operands...);
                            });
}

class OneDnnVendor final : public Vendor {
 public:
  [[nodiscard]] const char* name() const override { return "onednn"; }
  [[nodiscard]] bool multiplies(DType type) const override { return onednn::multiplies(type); }
  [[nodiscard]] std::string why_not(DType type) const override {
    if (type == DType::F16 && DNNL_VERSION_MAJOR < 3)
      return "this version of oneDNN has no float16 kernels";
    const std::string_view cap = device::vendor_cap();
    if (cap.empty() && device::has_slow_bfloat16())  // which holds the library to float32
      return "this processor's bfloat16 products are slower than those of float32";
    return cap.empty() ? "this processor has no 16-bit products"
                       : fmt::format("{} disables 16-bit products", cap);
  }
  [[nodiscard]] std::optional<MeasuredLevel> level() const override {
    if (onednn::has(dnnl::cpu_isa::avx512_core_amx)) return MeasuredLevel::Amx;
    if (onednn::has(dnnl::cpu_isa::avx512_core)) return MeasuredLevel::Avx512;
    return onednn::has(dnnl::cpu_isa::avx2) ? MeasuredLevel::Avx2 : MeasuredLevel::Sse;
  }

  [[nodiscard]] LinearClaim claim(const ConvShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    try {
      return prepare(s, type, passes, cap);
    } catch (const dnnl::error& error) {
      const WindowShape& w = s.window;
      fail(ErrorKind::Internal,
           "oneDNN rejects a {} convolution {}x{}, stride {}x{}, {} groups, from {} to {}: {}",
           name_of(type), w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, s.groups, w.in, w.out,
           error.what());
    }
  }
  [[nodiscard]] LinearClaim claim(const DenseShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    return prepare(s, type, passes, cap);
  }
  using Vendor::claim;  // of runs: none

 private:
  template <class Shape>
  [[nodiscard]] LinearClaim prepare(const Shape& shape, DType type, Passes passes,
                                    std::int64_t cap) const {
    if (!context_) context_ = std::make_shared<Context>();
    Primitives found = onednn::multiplies(type)
                           ? find_primitives(shape, {context_->engine, type, passes, cap})
                           : Primitives{};
    const Passes claimed = found.passes();
    return {claimed, std::make_unique<OneDnnOp>(context_, std::move(found))};
  }

  mutable std::shared_ptr<Context> context_;
};

}  // namespace
}  // namespace onednn

std::unique_ptr<Vendor> make_onednn_vendor(bool) {
  return std::make_unique<onednn::OneDnnVendor>();
}

}  // namespace millrace::ops
