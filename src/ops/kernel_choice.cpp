// SPDX-License-Identifier: Apache-2.0
#include "ops/kernel_choice.hpp"

#include <algorithm>

#include "ops/linear_ops.hpp"

namespace millrace::ops {
namespace {

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
std::int64_t groups_to_merge(const ConvShape& s, DType type, MeasuredLevel level) {
  const std::int64_t width = s.window.in.c / s.groups;
  const bool narrow = (width == 4 || width == 8) && s.window.out.c / s.groups == width;
  const std::int64_t merged = narrow ? 16 / width : 1;
  const bool wins = narrow && type == DType::BF16 && !s.bias && s.groups % merged == 0;
  return wins && level >= MeasuredLevel::Amx ? merged : 1;
}

/// Whether a forward pass computes the input gradient faster (turned.cpp). oneDNN's time for
/// backward input divided by the time of that forward pass (oneDNN 2.6.3, float32, one core of an
/// AMD EPYC, batch size 16, shapes of ResNet-18 and SqueezeNet):
///
///                                    AVX2           AVX-512
///   3x3, 27x27 and larger            1.05 to 1.43   1.11 to 1.37
///   3x3, smaller                     0.88 to 0.99   1.10 to 1.13, except turning large kernels
///   3x3, 16 or 32 channels alone     0.63 to 1.11   0.74 to 0.86
///   1x1                              0.99 to 1.01   1.05 to 1.28
bool is_faster_turned(const ConvShape& s, DType type, MeasuredLevel level) {
  constexpr std::int64_t kLarge = 27 * 27;
  constexpr std::int64_t kMany = 64;
  const WindowShape& w = s.window;
  const bool cheap = w.kernel_h == 3 || level >= MeasuredLevel::Avx512;
  const bool shaped = w.kernel_h == w.kernel_w && (w.kernel_h == 1 || w.kernel_h == 3) && cheap;
  return type == DType::F32 && shaped && is_turnable(s) && w.in.pixels() >= kLarge &&
         std::max(w.in.c, w.out.c) >= kMany;
}

}  // namespace

KernelChoice choose_kernel(const ConvShape& s, DType type, Passes passes,
                           std::optional<MeasuredLevel> level) {
  if (!level) return {};
  if (is_strided_pointwise(s)) return {Replacement::Gathered};
  if (is_product(s)) return {Replacement::Product};
  if (passes.backward_weight && has_slow_gradient(s, type)) return {Replacement::OwnGradient};
  if (passes.backward_input && is_faster_turned(s, type, *level)) return {Replacement::Turned};
  const std::int64_t merged = groups_to_merge(s, type, *level);
  return merged > 1 ? KernelChoice{Replacement::Merged, merged} : KernelChoice{};
}

}  // namespace millrace::ops
