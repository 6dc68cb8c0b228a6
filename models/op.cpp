// SPDX-License-Identifier: Apache-2.0
#include "models/op.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace millrace::models {
namespace {

template <class... Args>
Inference misfit(fmt::format_string<Args...> format, Args&&... args) {
  return {.output = {}, .misfit = fmt::format(format, std::forward<Args>(args)...)};
}

/// Pixels that a window covers if its taps are `dilation` apart.
constexpr std::int64_t span_of(std::int64_t kernel, std::int64_t dilation) {
  return dilation * (kernel - 1) + 1;
}

bool positive(Extent e) { return e.h > 0 && e.w > 0; }

/// Output shape of a window that slides over the padded input, with `channels` channels.
Inference slide(const Shape& x, Extent kernel, Extent stride, const Padding& pad, Extent dilation,
                std::int64_t channels) {
  if (!positive(kernel)) return misfit("kernel {} must be at least 1x1", kernel);
  if (!positive(stride)) return misfit("stride {} must be at least 1x1", stride);
  if (!positive(dilation)) return misfit("dilation {} must be at least 1x1", dilation);
  if (std::min({pad.top, pad.bottom, pad.left, pad.right}) < 0) {
    return misfit("padding {} {} {} {} (top bottom left right) must not be negative", pad.top,
                  pad.bottom, pad.left, pad.right);
  }
  const Extent padded = {x.h + pad.top + pad.bottom, x.w + pad.left + pad.right};
  const Extent window = {span_of(kernel.h, dilation.h), span_of(kernel.w, dilation.w)};
  if (window.h > padded.h || window.w > padded.w) {
    return misfit("a window of {} pixels does not fit into input {} padded to {}", window, x,
                  padded);
  }
  return {.output = {(padded.h - window.h) / stride.h + 1, (padded.w - window.w) / stride.w + 1,
                     channels}};
}

/// The divisor of `channels` nearest to `groups`; the smaller one of two.
std::int64_t nearest_group_count(std::int64_t channels, std::int64_t groups) {
  for (std::int64_t distance = 0; distance < std::max(channels, groups); ++distance) {
    for (const std::int64_t candidate : {groups - distance, groups + distance}) {
      if (candidate > 0 && channels % candidate == 0) return candidate;
    }
  }
  return 1;
}

const Initialiser kZero = {.kind = Initialiser::Kind::Zero};
const Initialiser kOne = {.kind = Initialiser::Kind::One};

/// A kernel tensor and, if there is one, a bias per output channel.
std::vector<ParameterSpec> kernel_and_bias(const std::vector<std::int64_t>& kernel,
                                           const Initialiser& init, bool bias) {
  std::vector<ParameterSpec> specs = {{ParameterRole::Kernel, kernel, init}};
  if (bias) specs.push_back({ParameterRole::Bias, {kernel.front()}, kZero});
  return specs;
}

std::vector<ParameterSpec> scale_and_shift(std::int64_t channels, bool zero_gamma,
                                           FixedAffine fixed) {
  return {{ParameterRole::Gamma, {channels}, zero_gamma ? kZero : kOne, fixed.gamma},
          {ParameterRole::Beta, {channels}, kZero, fixed.beta}};
}

}  // namespace

Padding padding_same(const Shape& input, Extent kernel, Extent stride, Extent dilation) {
  const auto total = [](std::int64_t size, std::int64_t k, std::int64_t step, std::int64_t d) {
    const std::int64_t output = (size + step - 1) / step;
    return std::max<std::int64_t>((output - 1) * step + span_of(k, d) - size, 0);
  };
  const std::int64_t h = total(input.h, kernel.h, stride.h, dilation.h);
  const std::int64_t w = total(input.w, kernel.w, stride.w, dilation.w);
  return {.top = h / 2, .bottom = h - h / 2, .left = w / 2, .right = w - w / 2};
}

Padding padding_explicit(Extent kernel) {
  const Extent before = {(kernel.h - 1) / 2, (kernel.w - 1) / 2};
  return {.top = before.h,
          .bottom = kernel.h - 1 - before.h,
          .left = before.w,
          .right = kernel.w - 1 - before.w};
}

// ---- ops ----------------------------------------------------------------------------------------

Inference Conv::infer(const OpInputs& in) const {
  const Shape& x = in.x();
  if (out_channels < 1) {
    return misfit("{} output channels; at least 1 is required", out_channels);
  }
  if (groups < 1 || x.c % groups != 0 || out_channels % groups != 0) {
    return misfit("{} groups do not divide {} input and {} output channels (input {})", groups, x.c,
                  out_channels, x);
  }
  Inference result = slide(x, kernel, stride, pad, dilation, out_channels);
  if (!result.misfit.empty()) return result;
  const std::int64_t in_group = x.c / groups;
  result.parameters = kernel_and_bias({out_channels, kernel.h, kernel.w, in_group}, init, bias);
  result.macs = result.output.elements() * kernel.h * kernel.w * in_group;
  return result;
}

Inference Dense::infer(const OpInputs& in) const {
  if (units < 1) return misfit("{} units; at least 1 is required", units);
  const std::int64_t inputs = in.x().elements();
  return {.output = {1, 1, units},
          .parameters = kernel_and_bias({units, inputs}, init, bias),
          .macs = inputs * units};
}

Inference BatchNorm::infer(const OpInputs& in) const {
  if (!(epsilon > 0)) return misfit("epsilon {} must be positive", epsilon);
  if (!(decay >= 0 && decay <= 1)) return misfit("decay {} must be between 0 and 1", decay);
  if (span < 1) return misfit("statistics span {} replicas; at least 1 is required", span);
  const Shape& x = in.x();
  Inference result = {.output = x, .parameters = scale_and_shift(x.c, zero_gamma, fixed)};
  result.parameters.push_back({ParameterRole::MovingMean, {x.c}, kZero});
  result.parameters.push_back({ParameterRole::MovingVariance, {x.c}, kOne});
  return result;
}

Inference GroupNorm::infer(const OpInputs& in) const {
  const Shape& x = in.x();
  if (!(epsilon > 0)) return misfit("epsilon {} must be positive", epsilon);
  if (groups < 1) return misfit("{} groups; at least 1 is required", groups);
  if (x.c % groups != 0) {
    return misfit("{} channels do not divide into {} groups; the nearest count that fits is {}",
                  x.c, groups, nearest_group_count(x.c, groups));
  }
  return {.output = x, .parameters = scale_and_shift(x.c, zero_gamma, fixed)};
}

Inference Activate::infer(const OpInputs& in) const {
  const auto [a, b] = numbers;
  if (!std::isfinite(a) || !std::isfinite(b))
    return misfit("numbers {} and {} are not finite", a, b);
  if (kind == Activation::Clip && a >= b) return misfit("bounds {} and {} do not ascend", a, b);
  if (kind == Activation::LeakyRelu && a < 0) return misfit("slope {} is negative", a);
  if (kind == Activation::HardSigmoid && a <= 0) return misfit("slope {} is not positive", a);
  return {.output = in.x()};
}

Inference Add::infer(const OpInputs& in) const {
  if (in.x() != in.shapes[1]) return misfit("cannot add shapes {} and {}", in.x(), in.shapes[1]);
  return {.output = in.x()};
}

Inference Concat::infer(const OpInputs& in) const {
  const Shape& x = in.x();
  Shape all = {x.h, x.w, 0};
  for (const Shape& input : in.shapes) {
    if (input.h != x.h || input.w != x.w) {
      return misfit("cannot concatenate the channels of {} to {}: heights and widths differ", input,
                    x);
    }
    all.c += input.c;
  }
  return {.output = all};
}

Inference ScaleChannels::infer(const OpInputs& in) const {
  const Shape wanted = {1, 1, in.x().c};
  if (in.shapes[1] != wanted) {
    return misfit("the scale of input {} must be {}, not {}", in.x(), wanted, in.shapes[1]);
  }
  return {.output = in.x()};
}

Inference Pool::infer(const OpInputs& in) const {
  Inference result = slide(in.x(), kernel, stride, pad, {1, 1}, in.x().c);
  if (!result.misfit.empty()) return result;
  if (std::max(pad.top, pad.bottom) >= kernel.h || std::max(pad.left, pad.right) >= kernel.w) {
    return misfit("padding {} {} {} {} (top bottom left right) must be less than the window {}",
                  pad.top, pad.bottom, pad.left, pad.right, kernel);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (kernel.h > kMost / kernel.w)
    return misfit("the window {} has more than {} positions", kernel, kMost);
  return result;
}

Inference GlobalAveragePool::infer(const OpInputs& in) const {
  return {.output = {1, 1, in.x().c}};
}

Inference ShortcutPad::infer(const OpInputs& in) const {
  const Shape& x = in.x();
  if (!positive(stride)) return misfit("stride {} must be at least 1x1", stride);
  if (channels_before < 0 || channels_after < 0) {
    return misfit("cannot add {} channels before and {} after input {}", channels_before,
                  channels_after, x);
  }
  return {.output = {(x.h - 1) / stride.h + 1, (x.w - 1) / stride.w + 1,
                     channels_before + x.c + channels_after}};
}

Inference Dropout::infer(const OpInputs& in) const {
  if (!(rate >= 0 && rate < 1)) return misfit("rate {} must be at least 0 and below 1", rate);
  return {.output = in.x()};
}

Inference DropConnect::infer(const OpInputs& in) const {
  if (!(survival > 0 && survival <= 1)) {
    return misfit("survival {} must be above 0 and at most 1", survival);
  }
  return {.output = in.x()};
}

Inference SoftmaxLoss::infer(const OpInputs& in) const {
  if (logits != 0 && logits < in.classes) {
    return misfit("{} logits are fewer than {} classes", logits, in.classes);
  }
  const Shape wanted = {1, 1, logits == 0 ? in.classes : logits};
  const std::string_view why = logits == 0 ? ", one per class" : "";
  if (in.x() != wanted) return misfit("logits must be {}{}, not {}", wanted, why, in.x());
  return {};
}

// ---- all kinds ----------------------------------------------------------------------------------

Inference infer(const OpKind& kind, std::span<const Shape> inputs, std::int64_t classes) {
  return std::visit(
      [&](const auto& op) {
        const InputCount wanted = op.kInputs;
        if (inputs.size() < wanted.count || (inputs.size() > wanted.count && !wanted.or_more)) {
          return misfit("{} takes {}{} inputs, not {}", op.kName, wanted.or_more ? "at least " : "",
                        wanted.count, inputs.size());
        }
        return op.infer({inputs, classes});
      },
      kind);
}

std::string_view role_name(ParameterRole role) {
  constexpr std::array<std::string_view, 6> kNames = {"kernel", "bias",        "gamma",
                                                      "beta",   "moving_mean", "moving_variance"};
  return kNames.at(static_cast<std::size_t>(role));
}

}  // namespace millrace::models

fmt::format_context::iterator fmt::formatter<millrace::models::Extent>::format(
    const millrace::models::Extent& e, fmt::format_context& context) const {
  return fmt::format_to(context.out(), "{}x{}", e.h, e.w);
}
