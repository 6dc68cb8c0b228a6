// SPDX-License-Identifier: Apache-2.0
#include "models/op.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace::models {
namespace {

template <class... Args>
Inference misfit(fmt::format_string<Args...> format, Args&&... args) {
  return {.output = {}, .misfit = fmt::format(format, std::forward<Args>(args)...)};
}

Inference fits(const Shape& output) { return {.output = output, .misfit = {}}; }

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
  return fits(
      {(padded.h - window.h) / stride.h + 1, (padded.w - window.w) / stride.w + 1, channels});
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

/// One overload per kind. The number of inputs has been checked.
class ShapeRules {
 public:
  ShapeRules(std::span<const Shape> inputs, std::int64_t classes)
      : inputs_(inputs), x_(inputs.front()), classes_(classes) {}

  Inference operator()(const Conv& conv) const {
    if (conv.out_channels < 1) {
      return misfit("{} output channels; at least 1 is required", conv.out_channels);
    }
    if (conv.groups < 1 || x_.c % conv.groups != 0 || conv.out_channels % conv.groups != 0) {
      return misfit("{} groups do not divide {} input and {} output channels (input {})",
                    conv.groups, x_.c, conv.out_channels, x_);
    }
    return slide(x_, conv.kernel, conv.stride, conv.pad, conv.dilation, conv.out_channels);
  }

  Inference operator()(const Dense& dense) const {
    if (dense.units < 1) return misfit("{} units; at least 1 is required", dense.units);
    return fits({1, 1, dense.units});
  }

  Inference operator()(const BatchNorm& norm) const {
    if (!(norm.epsilon > 0)) return misfit("epsilon {} must be positive", norm.epsilon);
    if (!(norm.decay >= 0 && norm.decay <= 1)) {
      return misfit("decay {} must be between 0 and 1", norm.decay);
    }
    if (norm.span < 1)
      return misfit("statistics span {} replicas; at least 1 is required", norm.span);
    return fits(x_);
  }

  Inference operator()(const GroupNorm& norm) const {
    if (!(norm.epsilon > 0)) return misfit("epsilon {} must be positive", norm.epsilon);
    if (norm.groups < 1) return misfit("{} groups; at least 1 is required", norm.groups);
    if (x_.c % norm.groups != 0) {
      return misfit("{} channels do not divide into {} groups; the nearest count that fits is {}",
                    x_.c, norm.groups, nearest_group_count(x_.c, norm.groups));
    }
    return fits(x_);
  }

  Inference operator()(const Activation&) const { return fits(x_); }

  Inference operator()(const Add&) const {
    if (x_ != inputs_[1]) return misfit("cannot add shapes {} and {}", x_, inputs_[1]);
    return fits(x_);
  }

  Inference operator()(const Concat&) const {
    Shape all = {x_.h, x_.w, 0};
    for (const Shape& input : inputs_) {
      if (input.h != x_.h || input.w != x_.w) {
        return misfit("cannot concatenate the channels of {} to {}: heights and widths differ",
                      input, x_);
      }
      all.c += input.c;
    }
    return fits(all);
  }

  Inference operator()(const ScaleChannels&) const {
    const Shape wanted = {1, 1, x_.c};
    if (inputs_[1] != wanted) {
      return misfit("the scale of input {} must be {}, not {}", x_, wanted, inputs_[1]);
    }
    return fits(x_);
  }

  Inference operator()(const Pool& pool) const {
    Inference result = slide(x_, pool.kernel, pool.stride, pool.pad, {1, 1}, x_.c);
    if (!result.misfit.empty()) return result;
    const Padding& pad = pool.pad;
    if (std::max(pad.top, pad.bottom) >= pool.kernel.h ||
        std::max(pad.left, pad.right) >= pool.kernel.w) {
      return misfit("padding {} {} {} {} (top bottom left right) must be less than the window {}",
                    pad.top, pad.bottom, pad.left, pad.right, pool.kernel);
    }
    return result;
  }

  Inference operator()(const GlobalAveragePool&) const { return fits({1, 1, x_.c}); }

  Inference operator()(const ShortcutPad& pad) const {
    if (!positive(pad.stride)) return misfit("stride {} must be at least 1x1", pad.stride);
    if (pad.channels_before < 0 || pad.channels_after < 0) {
      return misfit("cannot add {} channels before and {} after input {}", pad.channels_before,
                    pad.channels_after, x_);
    }
    return fits({(x_.h - 1) / pad.stride.h + 1, (x_.w - 1) / pad.stride.w + 1,
                 pad.channels_before + x_.c + pad.channels_after});
  }

  Inference operator()(const Dropout& dropout) const {
    if (!(dropout.rate >= 0 && dropout.rate < 1)) {
      return misfit("rate {} must be at least 0 and below 1", dropout.rate);
    }
    return fits(x_);
  }

  Inference operator()(const DropConnect& drop) const {
    if (!(drop.survival > 0 && drop.survival <= 1)) {
      return misfit("survival {} must be above 0 and at most 1", drop.survival);
    }
    return fits(x_);
  }

  Inference operator()(const SoftmaxLoss& loss) const {
    if (loss.logits != 0 && loss.logits < classes_) {
      return misfit("{} logits are fewer than {} classes", loss.logits, classes_);
    }
    const Shape wanted = {1, 1, loss.logits == 0 ? classes_ : loss.logits};
    const std::string_view why = loss.logits == 0 ? ", one per class" : "";
    if (x_ != wanted) return misfit("logits must be {}{}, not {}", wanted, why, x_);
    return fits({});
  }

 private:
  std::span<const Shape> inputs_;
  Shape x_;
  std::int64_t classes_;
};

/// "" if an op of this kind takes `count` inputs, else the number that it takes.
std::string_view wrong_count(const OpKind& kind, std::size_t count) {
  if (std::holds_alternative<Concat>(kind)) return count >= 2 ? "" : "at least 2";
  const bool two = std::holds_alternative<Add>(kind) || std::holds_alternative<ScaleChannels>(kind);
  if (two) return count == 2 ? "" : "2";
  return count == 1 ? "" : "1";
}

std::vector<ParameterSpec> scale_and_shift(std::int64_t channels, bool zero_gamma) {
  const Initialiser zero = {.kind = Initialiser::Kind::Zero};
  const Initialiser one = {.kind = Initialiser::Kind::One};
  return {{ParameterRole::Gamma, {channels}, zero_gamma ? zero : one},
          {ParameterRole::Beta, {channels}, zero}};
}

/// Kernel and stride, such as "3x3/2"; a stride of 1 is left out.
std::string window_text(Extent kernel, Extent stride) {
  if (stride == Extent{1, 1}) return fmt::format("{}", kernel);
  if (stride.h == stride.w) return fmt::format("{}/{}", kernel, stride.h);
  return fmt::format("{}/{}", kernel, stride);
}

std::string_view activation_text(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::Relu:
      return "relu";
    case ActivationKind::Swish:
      return "swish";
    case ActivationKind::Sigmoid:
      return "sigmoid";
  }
  return "?";
}

/// The attributes after the kind's name in a table, with a leading blank.
struct Details {
  std::string operator()(const Conv& conv) const {
    std::string text = fmt::format(" {}", window_text(conv.kernel, conv.stride));
    if (conv.groups != 1) text += fmt::format(" g{}", conv.groups);
    if (conv.dilation != Extent{1, 1}) text += fmt::format(" d{}", conv.dilation);
    return text;
  }
  std::string operator()(const GroupNorm& norm) const { return fmt::format(" g{}", norm.groups); }
  std::string operator()(const Activation& a) const {
    return fmt::format(" {}", activation_text(a.kind));
  }
  std::string operator()(const Pool& pool) const {
    return fmt::format(" {} {}", pool.kind == PoolKind::Max ? "max" : "average",
                       window_text(pool.kernel, pool.stride));
  }
  std::string operator()(const ShortcutPad& pad) const {
    const std::string stride = pad.stride.h == pad.stride.w ? fmt::format("{}", pad.stride.h)
                                                            : fmt::format("{}", pad.stride);
    return fmt::format(" /{} {}+x+{}", stride, pad.channels_before, pad.channels_after);
  }
  std::string operator()(const Dropout& dropout) const { return fmt::format(" {}", dropout.rate); }
  std::string operator()(const DropConnect& drop) const {
    return fmt::format(" {}", drop.survival);
  }
  template <class Plain>
  std::string operator()(const Plain&) const {
    return {};
  }
};

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

std::string_view kind_name(const OpKind& kind) {
  constexpr std::array<std::string_view, 14> kNames = {
      "Conv",        "Dense",   "BatchNorm",     "GroupNorm",  "Activation",
      "Add",         "Concat",  "ScaleChannels", "Pool",       "GlobalAveragePool",
      "ShortcutPad", "Dropout", "DropConnect",   "SoftmaxLoss"};
  static_assert(kNames.size() == std::variant_size_v<OpKind>);
  return kNames.at(kind.index());
}

std::string describe(const OpKind& kind) {
  return fmt::format("{}{}", kind_name(kind), std::visit(Details{}, kind));
}

Inference infer(const OpKind& kind, std::span<const Shape> inputs, std::int64_t classes) {
  const std::string_view wanted = wrong_count(kind, inputs.size());
  if (!wanted.empty()) {
    return misfit("{} takes {} inputs, not {}", kind_name(kind), wanted, inputs.size());
  }
  return std::visit(ShapeRules(inputs, classes), kind);
}

std::string_view role_name(ParameterRole role) {
  switch (role) {
    case ParameterRole::Kernel:
      return "kernel";
    case ParameterRole::Bias:
      return "bias";
    case ParameterRole::Gamma:
      return "gamma";
    case ParameterRole::Beta:
      return "beta";
    case ParameterRole::MovingMean:
      return "moving_mean";
    case ParameterRole::MovingVariance:
      return "moving_variance";
  }
  return "?";
}

std::vector<ParameterSpec> parameter_specs(const OpKind& kind, const Shape& input) {
  std::vector<ParameterSpec> specs;
  const Initialiser zero = {.kind = Initialiser::Kind::Zero};
  if (const auto* conv = std::get_if<Conv>(&kind)) {
    specs.push_back({ParameterRole::Kernel,
                     {conv->out_channels, conv->kernel.h, conv->kernel.w, input.c / conv->groups},
                     conv->init});
    if (conv->bias) specs.push_back({ParameterRole::Bias, {conv->out_channels}, zero});
  } else if (const auto* dense = std::get_if<Dense>(&kind)) {
    specs.push_back({ParameterRole::Kernel, {dense->units, input.elements()}, dense->init});
    if (dense->bias) specs.push_back({ParameterRole::Bias, {dense->units}, zero});
  } else if (const auto* norm = std::get_if<BatchNorm>(&kind)) {
    specs = scale_and_shift(input.c, norm->zero_gamma);
    specs.push_back({ParameterRole::MovingMean, {input.c}, zero});
    specs.push_back({ParameterRole::MovingVariance, {input.c}, {.kind = Initialiser::Kind::One}});
  } else if (const auto* group_norm = std::get_if<GroupNorm>(&kind)) {
    specs = scale_and_shift(input.c, group_norm->zero_gamma);
  }
  return specs;
}

std::int64_t forward_macs(const OpKind& kind, const Shape& input, const Shape& output) {
  if (const auto* conv = std::get_if<Conv>(&kind)) {
    return output.elements() * conv->kernel.h * conv->kernel.w * (input.c / conv->groups);
  }
  if (const auto* dense = std::get_if<Dense>(&kind)) return input.elements() * dense->units;
  return 0;
}

}  // namespace millrace::models

fmt::format_context::iterator fmt::formatter<millrace::models::Extent>::format(
    const millrace::models::Extent& e, fmt::format_context& context) const {
  return fmt::format_to(context.out(), "{}x{}", e.h, e.w);
}
