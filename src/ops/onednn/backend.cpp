// SPDX-License-Identifier: Apache-2.0
//
// Convolution and dense with oneDNN. Activations keep the plain NHWC layout. Kernels use the layout
// that the primitive prefers, so each kernel has three: canonical, packed for forward and packed
// for backward input. Backward weight writes a layout of its own to scratch; a reorder then adds it
// to the canonical float32 gradient.
//
// Making an op determines which of its passes oneDNN supports. If oneDNN has no primitive for a
// 16-bit type, its float32 primitive is used between conversions (ops/widened.hpp). If it has none
// at all, plain loops are used.
#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "core/error.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"
#include "ops/by_pass.hpp"
#include "ops/depthwise.hpp"
#include "ops/elementwise.hpp"
#include "ops/merged_groups.hpp"
#include "ops/onednn/onednn.hpp"
#include "ops/strided_pointwise.hpp"
#include "ops/turned.hpp"
#include "ops/vendor_backend.hpp"
#include "ops/weighted.hpp"
#include "ops/widened.hpp"

namespace millrace::ops {
namespace {

using device::aligned;
using device::ExecutionSpace;
using onednn::bytes_of;
using onednn::Call;
using onednn::memory;
using onednn::unbound;

using Dims = memory::dims;

struct Context {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

/// The memory descriptors of an op's primitives. Unused ones are empty.
struct Layouts {
  memory::desc kernel;     ///< canonical, in the storage type
  memory::desc canonical;  ///< canonical gradient, float32
  memory::desc src, dst, bias;
  memory::desc packed_forward, packed_backward, gradient;
  memory::desc scratch_forward, scratch_input, scratch_weight;
  bool blind_taps = false;  ///< some taps of the kernel see padding only
};

/// The primitives that oneDNN has for the passes of an op.
struct Primitives {
  Layouts layouts;
  std::optional<dnnl::primitive> forward, backward_input, backward_weight;
  bool bias = false;

  [[nodiscard]] Passes passes() const {
    return {backward_input.has_value(), backward_weight.has_value(), forward.has_value()};
  }

  /// Each of these takes the primitive of a descriptor, unless the descriptor is empty.
  template <class Primitive>
  void take_forward(const typename Primitive::primitive_desc& d) {
    if (!d) return;
    layouts.packed_forward = d.weights_desc();
    layouts.scratch_forward = d.scratchpad_desc();
    forward = Primitive(d);
  }
  template <class Primitive>
  void take_backward_input(const typename Primitive::primitive_desc& d) {
    if (!d) return;
    layouts.packed_backward = d.weights_desc();
    layouts.scratch_input = d.scratchpad_desc();
    backward_input = Primitive(d);
  }
  template <class Primitive>
  void take_backward_weight(const typename Primitive::primitive_desc& d) {
    if (!d) return;
    layouts.gradient = d.diff_weights_desc();
    layouts.scratch_weight = d.scratchpad_desc();
    backward_weight = Primitive(d);
  }
};

class OneDnnOp final : public WeightedOp {
 public:
  OneDnnOp(std::shared_ptr<Context> context, const Primitives& primitives);

  [[nodiscard]] WeightedBytes bytes() const override { return bytes_; }
  void bind(const WeightedMemory& memory) override;
  void pack(const ExecutionSpace& space, bool backward) override;
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override;
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override;
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override;

 private:
  void add_forward(const dnnl::primitive& primitive);
  void add_backward_input(const dnnl::primitive& primitive);
  void add_backward_weight(const dnnl::primitive& primitive);
  [[nodiscard]] Call reorder(const memory::desc& from, const memory::desc& to, bool add) const;
  [[nodiscard]] memory::desc reorder_scratch(const memory::desc& from, const memory::desc& to,
                                             bool add) const;
  [[nodiscard]] dnnl::reorder::primitive_desc reorder_descriptor(const memory::desc& from,
                                                                 const memory::desc& to,
                                                                 bool add) const;

  std::shared_ptr<Context> context_;
  Layouts layouts_;
  bool bias_;
  WeightedBytes bytes_;
  Call forward_, backward_input_, backward_weight_;
  Call pack_forward_, pack_backward_, store_gradient_, add_gradient_;
  std::byte* gradient_ = nullptr;
  std::byte* weight_scratch_ = nullptr;
  float* dbias_ = nullptr;
  const float* dbias_part_ = nullptr;
};

OneDnnOp::OneDnnOp(std::shared_ptr<Context> context, const Primitives& primitives)
    : context_(std::move(context)), layouts_(primitives.layouts), bias_(primitives.bias) {
  if (primitives.forward) add_forward(*primitives.forward);
  if (primitives.backward_input) add_backward_input(*primitives.backward_input);
  if (primitives.backward_weight) add_backward_weight(*primitives.backward_weight);
}

void OneDnnOp::add_forward(const dnnl::primitive& primitive) {
  const dnnl::engine& e = context_->engine;
  forward_ = {primitive,
              {{DNNL_ARG_SRC, unbound(layouts_.src, e)},
               {DNNL_ARG_WEIGHTS, unbound(layouts_.packed_forward, e)},
               {DNNL_ARG_DST, unbound(layouts_.dst, e)},
               {DNNL_ARG_SCRATCHPAD, unbound(layouts_.scratch_forward, e)}}};
  if (bias_) forward_.arguments.emplace(DNNL_ARG_BIAS, unbound(layouts_.bias, e));
  bytes_.packed_forward = bytes_of(layouts_.packed_forward);
  bytes_.scratch =
      std::max({bytes_.scratch, bytes_of(layouts_.scratch_forward),
                bytes_of(reorder_scratch(layouts_.kernel, layouts_.packed_forward, false))});
  pack_forward_ = reorder(layouts_.kernel, layouts_.packed_forward, false);
}

void OneDnnOp::add_backward_input(const dnnl::primitive& primitive) {
  const dnnl::engine& e = context_->engine;
  backward_input_ = {primitive,
                     {{DNNL_ARG_DIFF_SRC, unbound(layouts_.src, e)},
                      {DNNL_ARG_WEIGHTS, unbound(layouts_.packed_backward, e)},
                      {DNNL_ARG_DIFF_DST, unbound(layouts_.dst, e)},
                      {DNNL_ARG_SCRATCHPAD, unbound(layouts_.scratch_input, e)}}};
  bytes_.packed_backward = bytes_of(layouts_.packed_backward);
  bytes_.scratch =
      std::max({bytes_.scratch, bytes_of(layouts_.scratch_input),
                bytes_of(reorder_scratch(layouts_.kernel, layouts_.packed_backward, false))});
  pack_backward_ = reorder(layouts_.kernel, layouts_.packed_backward, false);
}

void OneDnnOp::add_backward_weight(const dnnl::primitive& primitive) {
  const dnnl::engine& e = context_->engine;
  backward_weight_ = {primitive,
                      {{DNNL_ARG_SRC, unbound(layouts_.src, e)},
                       {DNNL_ARG_DIFF_WEIGHTS, unbound(layouts_.gradient, e)},
                       {DNNL_ARG_DIFF_DST, unbound(layouts_.dst, e)},
                       {DNNL_ARG_SCRATCHPAD, unbound(layouts_.scratch_weight, e)}}};
  if (bias_) backward_weight_.arguments.emplace(DNNL_ARG_DIFF_BIAS, unbound(layouts_.bias, e));
  const std::int64_t held =
      aligned(bytes_of(layouts_.gradient)) + (bias_ ? aligned(bytes_of(layouts_.bias)) : 0);
  const std::int64_t used =
      std::max({bytes_of(layouts_.scratch_weight),
                bytes_of(reorder_scratch(layouts_.gradient, layouts_.canonical, false)),
                bytes_of(reorder_scratch(layouts_.gradient, layouts_.canonical, true))});
  bytes_.scratch = std::max(bytes_.scratch, held + used);
  store_gradient_ = reorder(layouts_.gradient, layouts_.canonical, false);
  add_gradient_ = reorder(layouts_.gradient, layouts_.canonical, true);
}

dnnl::reorder::primitive_desc OneDnnOp::reorder_descriptor(const memory::desc& from,
                                                           const memory::desc& to, bool add) const {
  dnnl::primitive_attr attributes = onednn::user_scratch();
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return {context_->engine, from, context_->engine, to, attributes};
}

memory::desc OneDnnOp::reorder_scratch(const memory::desc& from, const memory::desc& to,
                                       bool add) const {
  return reorder_descriptor(from, to, add).scratchpad_desc();
}

Call OneDnnOp::reorder(const memory::desc& from, const memory::desc& to, bool add) const {
  const dnnl::reorder::primitive_desc descriptor = reorder_descriptor(from, to, add);
  const dnnl::engine& e = context_->engine;
  return {dnnl::reorder(descriptor),
          {{DNNL_ARG_FROM, unbound(from, e)},
           {DNNL_ARG_TO, unbound(to, e)},
           {DNNL_ARG_SCRATCHPAD, unbound(descriptor.scratchpad_desc(), e)}}};
}

void OneDnnOp::bind(const WeightedMemory& m) {
  const auto bind_reorder = [&](Call& call, const void* from, const void* to, std::byte* scratch) {
    call.set(DNNL_ARG_FROM, from);
    call.set(DNNL_ARG_TO, to);
    call.set(DNNL_ARG_SCRATCHPAD, scratch);
  };
  if (forward_.primitive) {
    forward_.set(DNNL_ARG_WEIGHTS, m.packed_forward);
    forward_.set(DNNL_ARG_SCRATCHPAD, m.scratch);
    if (bias_) forward_.set(DNNL_ARG_BIAS, m.bias);
    bind_reorder(pack_forward_, m.kernel, m.packed_forward, m.scratch);
  }
  if (backward_input_.primitive) {
    backward_input_.set(DNNL_ARG_WEIGHTS, m.packed_backward);
    backward_input_.set(DNNL_ARG_SCRATCHPAD, m.scratch);
    bind_reorder(pack_backward_, m.kernel, m.packed_backward, m.scratch);
  }
  if (backward_weight_.primitive) {
    std::byte* gradient = m.scratch;
    gradient_ = gradient;
    std::byte* rest = gradient + aligned(bytes_of(layouts_.gradient));
    if (bias_) {
      backward_weight_.set(DNNL_ARG_DIFF_BIAS, rest);
      dbias_part_ = reinterpret_cast<const float*>(rest);
      dbias_ = m.dbias;
      rest += aligned(bytes_of(layouts_.bias));
    }
    backward_weight_.set(DNNL_ARG_DIFF_WEIGHTS, gradient);
    backward_weight_.set(DNNL_ARG_SCRATCHPAD, rest);
    weight_scratch_ = rest;
    bind_reorder(store_gradient_, gradient, m.dkernel, rest);
    bind_reorder(add_gradient_, gradient, m.dkernel, rest);
  }
}

void OneDnnOp::pack(const ExecutionSpace& space, bool backward) {
  device::fence(space);
  if (pack_forward_.primitive) pack_forward_.run(context_->stream);
  if (backward && pack_backward_.primitive) pack_backward_.run(context_->stream);
}

void OneDnnOp::forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) {
  device::fence(space);
  forward_.set(DNNL_ARG_SRC, x);
  forward_.set(DNNL_ARG_DST, y);
  forward_.run(context_->stream);
}

void OneDnnOp::backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) {
  device::fence(space);
  backward_input_.set(DNNL_ARG_DIFF_SRC, dx);
  backward_input_.set(DNNL_ARG_DIFF_DST, dy);
  backward_input_.run(context_->stream);
}

void OneDnnOp::backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                               bool first) {
  device::fence(space);
  // oneDNN 2.6 computes the gradient of taps that see padding only from uninitialized scratch
  // memory (bf16, 3x3 with stride 2 on images of one pixel).
  if (layouts_.blind_taps) {
    std::memset(gradient_, 0, layouts_.gradient.get_size());
    std::memset(weight_scratch_, 0, layouts_.scratch_weight.get_size());
  }
  backward_weight_.set(DNNL_ARG_SRC, x);
  backward_weight_.set(DNNL_ARG_DIFF_DST, dy);
  backward_weight_.run(context_->stream);
  (first ? store_gradient_ : add_gradient_).run(context_->stream);
  if (bias_) {
    accumulate(space, dbias_, dbias_part_, layouts_.bias.get_size() / sizeof(float), first);
  }
}

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

// ---- choice of kernel ---------------------------------------------------------------------------
//
// The cases where oneDNN is slow, by shape, precision and instruction set, and what runs instead.

/// Whether this is a 1x1 convolution of images of one pixel, which is a matrix product. As a
/// convolution it runs at a hundredth of the rate of a matrix product.
bool is_product(const ConvShape& s) {
  const WindowShape& w = s.window;
  return s.groups == 1 && w.in.pixels() == 1 && w.kernel_h == 1 && w.kernel_w == 1 &&
         w.out.pixels() == 1;
}

/// Whether our own loops compute a depthwise convolution's weight gradient. In the other passes
/// oneDNN is 1.1 to 10 times as fast as such loops. oneDNN's time divided by the loops' time for
/// the gradient (oneDNN 2.6.3, one core with AMX, batch size 4, shapes of EfficientNet-B0 with
/// images of 224x224 and 32x32):
///
///                               float32        bfloat16
///   5x5, stride 1               6 to 34        17 to 56
///   5x5, stride 2               6 to 17        27 to 53
///   3x3, 56x56 and larger       0.5 to 1.0     0.9 to 1.3
///   3x3, smaller                0.5 to 0.8     0.6 to 0.9
bool has_slow_gradient(const ConvShape& s, DType type) {
  constexpr std::int64_t kLarge = 56 * 56;
  if (!is_depthwise(s)) return false;
  return s.window.kernel_h == 5 || (type == DType::BF16 && s.window.out.pixels() >= kLarge);
}

/// Number of groups to join. bf16 tiles take 16 channels at a time, which groups of 4 or 8 cannot
/// use. oneDNN's time without joining divided by the time with joining (setup as above, shapes of
/// ResNeXt-50; forward, backward input, backward weight): 3.5, 2.6, 5.3 for groups of 4 at 56x56;
/// 3.8, 2.9, 1.9 for groups of 8 at 28x28; 1.6, 0.6, 2.5 for groups of 8 at 56x56 with stride 2. In
/// float32 the ratio is 0.8 to 1.2 for all three passes together.
std::int64_t groups_to_merge(const ConvShape& s, DType type) {
  const std::int64_t width = s.window.in.c / s.groups;
  const bool narrow = (width == 4 || width == 8) && s.window.out.c / s.groups == width;
  const std::int64_t merged = narrow ? 16 / width : 1;
  const bool wins = narrow && type == DType::BF16 && !s.bias && s.groups % merged == 0;
  return wins && onednn::has(dnnl::cpu_isa::avx512_core_amx) ? merged : 1;
}

/// Whether a forward pass computes the input gradient faster (ops/turned.hpp). oneDNN's time for
/// backward input divided by the time of that forward pass (oneDNN 2.6.3, float32, one core of an
/// AMD EPYC, batch size 16, shapes of ResNet-18 and SqueezeNet):
///
///                                    AVX2           AVX-512
///   3x3, 27x27 and larger            1.05 to 1.43   1.11 to 1.37
///   3x3, smaller                     0.88 to 0.99   1.10 to 1.13, except turning large kernels
///   3x3, 16 or 32 channels alone     0.63 to 1.11   0.74 to 0.86
///   1x1                              0.99 to 1.01   1.05 to 1.28
bool is_faster_turned(const ConvShape& s, DType type) {
  constexpr std::int64_t kLarge = 27 * 27;
  constexpr std::int64_t kMany = 64;
  const WindowShape& w = s.window;
  const bool cheap = w.kernel_h == 3 || onednn::has(dnnl::cpu_isa::avx512_core);
  const bool shaped = w.kernel_h == w.kernel_w && (w.kernel_h == 1 || w.kernel_h == 3) && cheap;
  return type == DType::F32 && shaped && is_turnable(s) && w.in.pixels() >= kLarge &&
         std::max(w.in.c, w.out.c) >= kMany;
}

enum class Kernels { Fastest, VendorOnly };

class OneDnnBackend final : public Backend {
 public:
  OneDnnBackend(Kernels kernels, const ScratchCaps& caps) : kernels_(kernels), caps_(caps) {}
  [[nodiscard]] const char* name() const override { return "onednn"; }
  [[nodiscard]] bool multiplies(DType type) const override { return onednn::multiplies(type); }
  [[nodiscard]] std::string why_not(DType type) const override {
    if (type == DType::F16 && DNNL_VERSION_MAJOR < 3)
      return "this version of oneDNN has no float16 kernels";
    const std::string_view cap = device::vendor_cap();
    return cap.empty() ? "this processor has no 16-bit products"
                       : fmt::format("{} disables 16-bit products", cap);
  }
  // Measured: code generators for float32 products below AVX-512.
  [[nodiscard]] std::int64_t own_bytes() const override {
    return onednn::has(dnnl::cpu_isa::avx512_core) ? 0 : 3'500'000;
  }
  [[nodiscard]] std::unique_ptr<WeightedOp> convolution(const ConvShape& s, DType type,
                                                        Passes passes) override;
  [[nodiscard]] std::unique_ptr<WeightedOp> dense(const DenseShape& s, DType type,
                                                  Passes passes) override {
    return complete(Product{s, caps_.dense}, type, passes);
  }

 private:
  /// A dense op and its scratch limit.
  struct Product {
    DenseShape shape;
    std::int64_t cap;
  };
  [[nodiscard]] std::unique_ptr<WeightedOp> choose(const ConvShape& s, DType type,
                                                   Passes passes) const;
  [[nodiscard]] Primitives primitives(const ConvShape& s, DType type, Passes passes) const;
  [[nodiscard]] Primitives primitives(const Product& p, DType type, Passes passes) const;

  template <class Op>
  [[nodiscard]] std::unique_ptr<WeightedOp> complete(const Op& op, DType type, Passes passes) const;
  [[nodiscard]] std::unique_ptr<WeightedOp> widened(const ConvShape& s, DType type,
                                                    Passes passes) const;
  [[nodiscard]] std::unique_ptr<WeightedOp> widened(const Product& p, DType type,
                                                    Passes passes) const;
  [[nodiscard]] std::unique_ptr<WeightedOp> plain(const ConvShape& s, Passes passes) const {
    return plain_->convolution(s, DType::F32, passes);
  }
  [[nodiscard]] std::unique_ptr<WeightedOp> plain(const Product& p, Passes passes) const {
    return plain_->dense(p.shape, DType::F32, passes);
  }

  Kernels kernels_;
  ScratchCaps caps_;
  std::shared_ptr<Context> context_ = std::make_shared<Context>();
  std::unique_ptr<Backend> plain_ = make_kokkos_backend();
};

std::unique_ptr<WeightedOp> OneDnnBackend::convolution(const ConvShape& s, DType type,
                                                       Passes passes) {
  try {
    return choose(s, type, passes);
  } catch (const dnnl::error& error) {
    const WindowShape& w = s.window;
    fail(ErrorKind::Internal,
         "oneDNN rejects a {} convolution {}x{}, stride {}x{}, {} groups, from {} to {}: {}",
         name_of(type), w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, s.groups, w.in, w.out,
         error.what());
  }
}

std::unique_ptr<WeightedOp> OneDnnBackend::choose(const ConvShape& s, DType type,
                                                  Passes passes) const {
  if (kernels_ == Kernels::VendorOnly) return complete(s, type, passes);
  if (is_strided_pointwise(s)) {
    return make_strided_pointwise(s, type, choose(gathered_shape(s), type, passes));
  }
  if (is_product(s)) {
    const DenseShape dense{s.window.batch, s.window.in.c, s.window.out.c, s.bias};
    return complete(Product{dense, caps_.convolution}, type, passes);
  }
  if (passes.backward_weight && has_slow_gradient(s, type)) {
    return make_depthwise_gradient(s, type, complete(s, type, {passes.backward_input, false}));
  }
  if (passes.backward_input && is_faster_turned(s, type)) {
    const Passes rest = {false, passes.backward_weight, passes.forward};
    std::unique_ptr<WeightedOp> turned =
        make_turned(s, complete(turned_shape(s), type, {false, false, true}));
    if (rest == Passes{false, false, false}) return turned;
    return make_by_pass(rest, complete(s, type, rest), std::move(turned));
  }
  if (const std::int64_t merged = groups_to_merge(s, type); merged > 1) {
    return make_merged_groups(s, merged, type, choose(merged_shape(s, merged), type, passes));
  }
  return complete(s, type, passes);
}

/// For each pass, uses oneDNN's primitive for the type if there is one, else its float32 primitive
/// between conversions, else plain loops.
template <class Op>
std::unique_ptr<WeightedOp> OneDnnBackend::complete(const Op& op, DType type, Passes passes) const {
  const Primitives found = primitives(op, type, passes);
  const Passes native = found.passes();
  if (native == passes) return std::make_unique<OneDnnOp>(context_, found);
  const Passes rest{passes.backward_input && !native.backward_input,
                    passes.backward_weight && !native.backward_weight,
                    passes.forward && !native.forward};
  std::unique_ptr<WeightedOp> others =
      type == DType::F32 ? plain(op, rest) : widened(op, type, rest);
  if (rest == passes) return others;
  return make_by_pass(native, std::make_unique<OneDnnOp>(context_, found), std::move(others));
}

std::unique_ptr<WeightedOp> OneDnnBackend::widened(const ConvShape& s, DType type,
                                                   Passes passes) const {
  const WindowShape& w = s.window;
  const std::int64_t samples =
      samples_in_block(w.batch, w.in.elements() + w.out.elements(), ExecutionSpace().concurrency());
  ConvShape block = s;
  block.window.batch = samples;
  return make_widened({w.batch / samples, block.window.in_elements(), block.window.out_elements(),
                       s.kernel_elements()},
                      type, choose(block, DType::F32, passes));
}

std::unique_ptr<WeightedOp> OneDnnBackend::widened(const Product& p, DType type,
                                                   Passes passes) const {
  const DenseShape& s = p.shape;
  return make_widened({1, s.batch * s.in, s.batch * s.units, s.in * s.units}, type,
                      complete(p, DType::F32, passes));
}

Primitives OneDnnBackend::primitives(const ConvShape& s, DType type, Passes passes) const {
  Primitives found;
  if (!onednn::multiplies(type)) return found;
  const WindowShape& w = s.window;
  const auto t = onednn::data_type(type);
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
  const dnnl::engine& e = context_->engine;
  const std::int64_t cap = caps_.convolution;

  const auto forward =
      s.bias ? onednn::forward_descriptor<Forward>(e, cap, type, training, direct, src, kernel,
                                                   bias, dst, strides, dilates, before, after)
             : onednn::forward_descriptor<Forward>(e, cap, type, training, direct, src, kernel, dst,
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
    found.take_backward_input<Data>(onednn::backward_descriptor<Data>(
        e, cap, type, forward, direct, src, kernel, dst, strides, dilates, before, after));
  }
  if (passes.backward_weight) {
    using Weights = dnnl::convolution_backward_weights;
    found.take_backward_weight<Weights>(
        s.bias ? onednn::backward_descriptor<Weights>(e, cap, type, forward, direct, src, gradient,
                                                      bias, dst, strides, dilates, before, after)
               : onednn::backward_descriptor<Weights>(e, cap, type, forward, direct, src, gradient,
                                                      dst, strides, dilates, before, after));
  }
  return found;
}

Primitives OneDnnBackend::primitives(const Product& p, DType type, Passes passes) const {
  Primitives found;
  if (!onednn::multiplies(type)) return found;
  const DenseShape& s = p.shape;
  const auto t = onednn::data_type(type);
  const auto f32 = memory::data_type::f32;
  const Dims dims = {s.units, s.in};
  const memory::desc src({s.batch, s.in}, t, memory::format_tag::nc);
  const memory::desc dst({s.batch, s.units}, t, memory::format_tag::nc);
  const memory::desc bias({s.units}, f32, memory::format_tag::x);
  const memory::desc kernel(dims, t, memory::format_tag::any);
  const memory::desc gradient(dims, f32, memory::format_tag::any);
  const auto training = dnnl::prop_kind::forward_training;
  using Forward = dnnl::inner_product_forward;
  const dnnl::engine& e = context_->engine;

  const auto forward =
      s.bias ? onednn::forward_descriptor<Forward>(e, p.cap, type, training, src, kernel, bias, dst)
             : onednn::forward_descriptor<Forward>(e, p.cap, type, training, src, kernel, dst);
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
        onednn::backward_descriptor<Data>(e, p.cap, type, forward, src, kernel, dst));
  }
  if (passes.backward_weight) {
    using Weights = dnnl::inner_product_backward_weights;
    found.take_backward_weight<Weights>(
        s.bias ? onednn::backward_descriptor<Weights>(e, p.cap, type, forward, src, gradient, bias,
                                                      dst)
               : onednn::backward_descriptor<Weights>(e, p.cap, type, forward, src, gradient, dst));
  }
  return found;
}

}  // namespace

std::unique_ptr<Backend> make_onednn_backend(const ScratchCaps& caps) {
  return std::make_unique<OneDnnBackend>(Kernels::Fastest, caps);
}

std::unique_ptr<Backend> make_vendor_backend() {
  return std::make_unique<OneDnnBackend>(Kernels::VendorOnly, ScratchCaps{});
}

}  // namespace millrace::ops
