// SPDX-License-Identifier: Apache-2.0
#include "ops/rewrites.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.hpp"
#include "core/instruction_level.hpp"
#include "device/arena.hpp"
#include "device/environment.hpp"
#include "device/parallel.hpp"
#include "ops/elementwise.hpp"
#include "ops/pool.hpp"
#include "ops/rewritten.hpp"
#include "ops/wider_kernels.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

constexpr auto kFloatBytes = static_cast<std::int64_t>(sizeof(float));

const ConvShape& conv(const LinearRequest& asked) { return std::get<ConvShape>(asked.shape); }

LinearRequest with_shape(LinearRequest asked, const ConvShape& shape) {
  asked.shape = shape;
  return asked;
}

// ---- wider kernels

bool is_stored(const ConvShape& s, DType, MeasuredLevel) { return s.stored.has_value(); }

std::unique_ptr<LinearOp> read_stored(const LinearRequest& asked, const PrepareLinear& prepare) {
  const ConvShape& s = conv(asked);
  return make_stored(s, asked.type, prepare(with_shape(asked, as_stored(s))));
}

/// Groups of `width` channels on both sides that fill up whole wider ones.
bool is_narrow(const ConvShape& s, std::int64_t width) {
  return s.window.in.c / s.groups == width && s.window.out.c / s.groups == width && !s.bias &&
         s.groups % (kMatrixChannels / width) == 0;
}

/// bf16 tiles take 16 channels at a time, which groups of 4 or 8 cannot use. oneDNN's time without
/// joining divided by the time with joining (setup as below, shapes of ResNeXt-50; forward,
/// backward input, backward weight): 3.5, 2.6, 5.3 for groups of 4 at 56x56; 3.8, 2.9, 1.9 for
/// groups of 8 at 28x28; 1.6, 0.6, 2.5 for groups of 8 at 56x56 with stride 2. In float32 the ratio
/// is 0.8 to 1.2 for all three passes together.
bool has_narrow_groups(const ConvShape& s, DType type, MeasuredLevel level) {
  return type == DType::BF16 && level >= MeasuredLevel::Amx && (is_narrow(s, 4) || is_narrow(s, 8));
}

/// The same for float32, where only the narrowest groups gain, and only in some passes: 1.9 for the
/// weight gradient with AVX-512 and 2.3 forward with AVX2, for groups of 4 at 56x56 (oneDNN 2.6.3,
/// one core of an Intel Xeon, model 207, batch size 16); 0.5 to 1.15 in other passes, for wider
/// groups.
bool has_slow_narrow_gradient(const ConvShape& s, DType type, MeasuredLevel level) {
  return type == DType::F32 && level >= MeasuredLevel::Avx512 && is_narrow(s, 4);
}
bool has_slow_narrow_forward(const ConvShape& s, DType type, MeasuredLevel level) {
  return type == DType::F32 && level == MeasuredLevel::Avx2 && is_narrow(s, 4);
}

std::unique_ptr<LinearOp> merge_groups(const LinearRequest& asked, const PrepareLinear& prepare) {
  const ConvShape& s = conv(asked);
  const std::int64_t merged = kMatrixChannels * s.groups / s.window.in.c;
  return make_merged_groups(s, merged, asked.type,
                            prepare(with_shape(asked, merged_shape(s, merged))));
}

// ---- other forms

bool is_strided_pointwise(const ConvShape& s, DType, MeasuredLevel) {
  const WindowShape& w = s.window;
  return w.kernel_h == 1 && w.kernel_w == 1 && (w.stride_h > 1 || w.stride_w > 1) &&
         w.pad_top == 0 && w.pad_left == 0 && s.pad_bottom == 0 && s.pad_right == 0 &&
         s.groups == 1;
}

/// Gathers the pixels that the convolution reads. That is cheap, and vendors' kernels for the
/// strided form are slow: backward weight of oneDNN 2.6 runs at an eighth of the dense rate.
std::unique_ptr<LinearOp> gather_pixels(const LinearRequest& asked, const PrepareLinear& prepare) {
  ConvShape dense = conv(asked);
  WindowShape gather = dense.window;
  gather.out.c = gather.in.c;
  dense.window.in = gather.out;
  dense.window.stride_h = dense.window.stride_w = 1;
  const DType type = asked.type;
  Operands operands;
  operands.x.bytes = gather.out_elements() * size_of(type);
  operands.x.to_inner = [=](const ExecutionSpace& space, std::byte* to, const std::byte* from) {
    device::dispatch(type, [&]<class T>() {
      shortcut_pad_forward<T>(space, gather, 0, as<T>(to), as<T>(from));
    });
  };
  operands.x.to_own = [=](const ExecutionSpace& space, std::byte* to, const std::byte* from) {
    device::dispatch(type, [&]<class T>() {
      shortcut_pad_backward<T>(space, gather, 0, as<T>(to), as<T>(from));
    });
  };
  return make_rewritten(std::move(operands), prepare(with_shape(asked, dense)));
}

/// Whether this is a 1x1 convolution of images of one pixel, which is a matrix product. As a
/// convolution it runs at a hundredth of the rate of a matrix product.
bool is_product(const ConvShape& s, DType, MeasuredLevel) {
  const WindowShape& w = s.window;
  return s.groups == 1 && w.in.pixels() == 1 && w.kernel_h == 1 && w.kernel_w == 1 &&
         w.out.pixels() == 1;
}

std::unique_ptr<LinearOp> make_product(const LinearRequest& asked, const PrepareLinear& prepare) {
  const ConvShape& s = conv(asked);
  const DenseShape dense{s.window.batch, s.window.in.c, s.window.out.c, s.bias};
  return prepare({dense, asked.type, asked.passes, asked.cap});
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
bool has_slow_gradient(const ConvShape& s, DType type, MeasuredLevel) {
  constexpr std::int64_t kLarge = 56 * 56;
  if (!is_depthwise(s)) return false;
  return s.window.kernel_h == 5 || (type == DType::BF16 && s.window.out.pixels() >= kLarge);
}

std::unique_ptr<LinearOp> make_own_gradient(const LinearRequest& asked, const PrepareLinear&) {
  return make_depthwise_gradient(conv(asked), asked.type);
}

/// Whether Winograd's products are faster. oneDNN's time divided by theirs (oneDNN 2.6.3, one core
/// of an Intel Xeon, model 207, without packing; forward, backward input, backward weight):
///
///                                          AVX2             AVX-512
///   16 x 56x56, 64 channels                2.3, 2.4, 2.5    2.0, 2.1, 2.0
///   16 x 28x28, 128 channels               2.5, 2.5, 2.6    2.1, 2.2, 2.1
///   16 x 14x14, 256 channels               2.0, 1.9, 1.8    1.7, 1.8, 1.6
///   128 x 32x32, 16 channels               1.7, 1.5, 1.4    1.2, 1.2, 1.0
///   128 x 16x16, 32 channels               2.0, 2.0, 1.9    1.6, 1.7, 1.4
///
/// Packing a kernel, once a step, takes as long as some 50 tiles save in a step of one micro-batch.
bool is_faster_by_winograd(const ConvShape& s, MeasuredLevel level) {
  constexpr std::int64_t kFewestTiles = 96;
  if constexpr (device::kOnCores)
    return level >= MeasuredLevel::Avx2 && instruction_level() >= InstructionLevel::Avx2 &&
           is_winograd(s) && winograd_tiles(s) >= kFewestTiles;
  return false;
}

bool is_float_winograd(const ConvShape& s, DType type, MeasuredLevel level) {
  return type == DType::F32 && is_faster_by_winograd(s, level);
}

/// Of 16 bits that are multiplied in float32, on the same machine: 1.1 and more for bfloat16; for
/// float16 with 16 channels alone 0.8, as its conversions take long, and more than 1 from 32 on.
bool is_widened_winograd(const ConvShape& s, DType type, MeasuredLevel level) {
  constexpr std::int64_t kFew = 16;
  const bool slow = type == DType::F16 && std::max(s.window.in.c, s.window.out.c) <= kFew;
  return !slow && is_faster_by_winograd(s, level);
}

std::unique_ptr<LinearOp> by_winograd(const LinearRequest& asked, const PrepareLinear&) {
  if constexpr (device::kOnCores) return make_winograd(conv(asked), asked.type, asked.passes);
  return nullptr;
}

std::int64_t scratch_by_winograd(const ConvShape& shape) {
  if constexpr (device::kOnCores) return winograd_scratch(shape);
  return 0;
}

/// Whether a forward pass computes the input gradient faster. oneDNN's time for backward input
/// divided by the time of that forward pass (oneDNN 2.6.3, float32, one core of an AMD EPYC, batch
/// size 16, shapes of ResNet-18 and SqueezeNet):
///
///                                    AVX2           AVX-512
///   3x3, 27x27 and larger            1.05 to 1.43   1.11 to 1.37
///   3x3, smaller                     0.88 to 0.99   1.10 to 1.13, except turning large kernels
///   3x3, 16 or 32 channels alone     0.63 to 1.11   0.74 to 0.86
///   1x1                              0.99 to 1.01   1.05 to 1.28
///
/// 1x1 with kernels of 4 MB and more on an Intel Xeon (model 207), AVX-512: 1.46 to 1.62; smaller
/// ones and small images 0.88 to 1.10. With fewer pixels in a micro-batch, turning the kernel takes
/// longer than the pass.
bool is_faster_turned(const ConvShape& s, DType type, MeasuredLevel level) {
  constexpr std::int64_t kLarge = 27 * 27;
  constexpr std::int64_t kMany = 64;
  constexpr std::int64_t kLargeKernel = 1 << 20;
  constexpr std::int64_t kManyPixels = 512;
  const WindowShape& w = s.window;
  const bool heavy = w.kernel_h == 1 && level >= MeasuredLevel::Avx512 &&
                     s.kernel_elements() >= kLargeKernel && w.batch * w.in.pixels() >= kManyPixels;
  const bool cheap = w.kernel_h == 3 || level >= MeasuredLevel::Avx512;
  const bool shaped = w.kernel_h == w.kernel_w && (w.kernel_h == 1 || w.kernel_h == 3) && cheap;
  const bool turnable = w.stride_h == 1 && w.stride_w == 1 && s.dilation_h == 1 &&
                        s.dilation_w == 1 && s.groups == 1 &&
                        std::max(w.pad_top, s.pad_bottom) < w.kernel_h &&
                        std::max(w.pad_left, s.pad_right) < w.kernel_w;
  return type == DType::F32 && shaped && turnable && (heavy || w.in.pixels() >= kLarge) &&
         std::max(w.in.c, w.out.c) >= kMany;
}

/// Copies one tap of a strip of input channels from [out][tap][in] to [in][last tap .. first
/// tap][out], by squares, so that lines of the cache are read and written whole.
struct Turn {
  static constexpr std::int64_t kStrip = 16;
  std::int64_t out;
  std::int64_t taps;
  std::int64_t in;
  float* to;
  const float* from;

  [[nodiscard]] std::int64_t work_items() const { return (in + kStrip - 1) / kStrip * taps; }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t tap = i % taps;
    const std::int64_t first = i / taps * kStrip;
    const std::int64_t channels = first + kStrip < in ? kStrip : in - first;
    for (std::int64_t o = 0; o < out; o += kStrip) {
      const std::int64_t outputs = o + kStrip < out ? kStrip : out - o;
      float square[kStrip][kStrip];
      for (std::int64_t n = 0; n < outputs; ++n)
        for (std::int64_t c = 0; c < channels; ++c)
          square[c][n] = from[((o + n) * taps + taps - 1 - tap) * in + first + c];
      for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t n = 0; n < outputs; ++n)
          to[((first + c) * taps + tap) * out + o + n] = square[c][n];
    }
  }
};

/// With stride 1, the gradient of a convolution's input is itself a convolution of dy. Its kernel
/// is rotated by 180 degrees, with input and output channels swapped (Dumoulin and Visin 2016,
/// section 4).
///
///   dx[i] = sum over o, r of dy[o][. + pad - r] k[o][r][i] = conv(dy, turned k)
///
/// This is faster with libraries whose forward passes are better optimized.
std::unique_ptr<LinearOp> turn(const LinearRequest& asked, const PrepareLinear& prepare) {
  const ConvShape& s = conv(asked);
  LinearRequest inner{s, asked.type, {false, false, true}, asked.cap};
  auto& turned = std::get<ConvShape>(inner.shape);
  WindowShape& w = turned.window;
  std::swap(w.in, w.out);
  w.pad_top = w.kernel_h - 1 - s.window.pad_top;
  w.pad_left = w.kernel_w - 1 - s.window.pad_left;
  turned.pad_bottom = w.kernel_h - 1 - s.pad_bottom;
  turned.pad_right = w.kernel_w - 1 - s.pad_right;
  turned.bias = false;
  const std::int64_t in = s.window.in.c;
  const std::int64_t out = s.window.out.c;
  const std::int64_t taps = w.kernel_h * w.kernel_w;
  Operands operands;
  operands.turned = true;
  operands.kernel_bytes = s.kernel_elements() * kFloatBytes;
  operands.kernel = [=](const ExecutionSpace& space, std::byte* to, const std::byte* from) {
    const Turn turn_kernel{out, taps, in, as<float>(to), as<float>(from)};
    parallel("turn kernel", space, turn_kernel.work_items(), turn_kernel);
  };
  return make_rewritten(std::move(operands), prepare(inner));
}

// ---- 16 bits on processors without 16-bit products
//
// A float32 op between conversions. Operands are widened exactly, products and sums are float32,
// and the result is rounded once, as in an op with 16-bit products and float32 sums. A batch is
// processed in blocks of samples whose float32 copies fit into the cache, so that only 16-bit
// values go to memory and scratch holds just one block. Weight gradients of the blocks are added in
// ascending order.
//
//   x, 16 bits  ->  widen block  ->  float32 op  ->  round block  ->  y, 16 bits

/// The vendors of processors have float32 kernels for everything.
bool is_widened(const ConvShape&, DType type, MeasuredLevel) {
  return type != DType::F32 && MILLRACE_ON_HOST == 1;
}

Operands::Image widened_image(std::int64_t elements, DType type) {
  const auto to_inner = [=](const ExecutionSpace& space, std::byte* to, const std::byte* from) {
    device::dispatch(type,
                     [&]<class T>() { widen<T>(space, as<float>(to), as<T>(from), elements); });
  };
  const auto to_own = [=](const ExecutionSpace& space, std::byte* to, const std::byte* from) {
    device::dispatch(type,
                     [&]<class T>() { convert<T>(space, as<T>(to), as<float>(from), elements); });
  };
  return {elements * kFloatBytes, elements * size_of(type), to_inner, to_own};
}

std::unique_ptr<LinearOp> widen_op(const LinearRequest& asked, const PrepareLinear& prepare) {
  LinearRequest inner = asked;
  inner.type = DType::F32;
  if (const auto* const s = std::get_if<DenseShape>(&asked.shape))
    return make_widened({1, s->batch * s->in, s->batch * s->units, s->in * s->units}, asked.type,
                        prepare(inner));
  auto& block = std::get<ConvShape>(inner.shape);
  WindowShape& w = block.window;
  const std::int64_t batch = w.batch;
  w.batch = samples_in_block(batch, w.in.elements() + w.out.elements(), device::kernel_threads());
  return make_widened({batch / w.batch, w.in_elements(), w.out_elements(), block.kernel_elements()},
                      asked.type, prepare(inner));
}

// ----

using enum Rewrite::When;
constexpr Passes kAll = {};
constexpr Passes kOnlyForward = {.backward_input = false, .backward_weight = false};
constexpr Passes kOnlyInput = {.backward_input = true, .backward_weight = false, .forward = false};

constexpr auto kRewrites = std::to_array<Rewrite>({
    {"stored images", Always, kAll, false, is_stored, read_stored},
    {"gathered pixels", Measured, kAll, false, is_strided_pointwise, gather_pixels},
    {"product", Measured, kAll, false, is_product, make_product},
    {"own gradient", Measured, kOnlyWeight, false, has_slow_gradient, make_own_gradient},
    {"winograd", Measured, kAll, false, is_float_winograd, by_winograd, scratch_by_winograd},
    {"turned", Measured, kOnlyInput, false, is_faster_turned, turn},
    {"merged groups", Measured, kAll, false, has_narrow_groups, merge_groups},
    {"merged groups", Measured, kOnlyWeight, false, has_slow_narrow_gradient, merge_groups},
    {"merged groups", Measured, kOnlyForward, false, has_slow_narrow_forward, merge_groups},
    {"winograd", Unclaimed, kAll, false, is_widened_winograd, by_winograd, scratch_by_winograd},
    {"widened", Unclaimed, kAll, true, is_widened, widen_op},
});

}  // namespace

const Rewrite* find_rewrite(const LinearRequest& asked, Rewrite::When when,
                            std::optional<MeasuredLevel> level) {
  if (when == Measured && !level) return nullptr;
  const auto* const dense = std::get_if<DenseShape>(&asked.shape);
  const ConvShape shape = dense != nullptr ? as_convolution(*dense) : conv(asked);
  for (const Rewrite& row : kRewrites)
    if (row.when == when && (dense == nullptr || row.also_dense) &&
        (asked.passes & row.takes).any() &&
        row.applies(shape, asked.type, level.value_or(MeasuredLevel::Sse)) &&
        (row.scratch == nullptr || row.scratch(shape) <= asked.cap))
      return &row;
  return nullptr;
}

std::int64_t samples_in_block(std::int64_t batch, std::int64_t sample_elements, int threads) {
  // Bytes of float32 copies per core and block: about the size of its second-level cache.
  constexpr std::int64_t kBlockBytes = 2 << 20;
  const std::int64_t bytes = device::aligned(sample_elements * kFloatBytes);
  const std::int64_t most = kBlockBytes * threads / std::max<std::int64_t>(1, bytes);
  std::int64_t samples = std::clamp<std::int64_t>(most, 1, batch);
  while (batch % samples != 0) --samples;
  return samples;
}

std::unique_ptr<LinearOp> make_widened(const WidenedShape& shape, DType type,
                                       std::unique_ptr<LinearOp> wide) {
  MILLRACE_ASSERT(type == DType::BF16 || type == DType::F16);
  Operands operands;
  operands.blocks = shape.blocks;
  operands.x = widened_image(shape.in, type);
  operands.y = widened_image(shape.out, type);
  operands.kernel = widened_image(shape.kernel, type).to_inner;
  operands.kernel_bytes = shape.kernel * kFloatBytes;
  return make_rewritten(std::move(operands), std::move(wide));
}

}  // namespace millrace::ops
