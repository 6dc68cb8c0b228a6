// SPDX-License-Identifier: Apache-2.0
//
// The kinds of ops. The struct of a kind describes it to the graph: its attributes, its name, how
// many inputs it takes, and in `infer` the shape of its output, its parameters and its
// multiply-accumulates. A kind that lacks one of these does not compile. pipeline/ops/ has the
// kernel calls that it becomes.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/activation.hpp"
#include "core/shape.hpp"

namespace millrace::models {

/// Height and width of a window or a stride, in pixels.
struct Extent {
  std::int64_t h = 1;
  std::int64_t w = 1;
  friend bool operator==(const Extent&, const Extent&) = default;
};

/// Zero pixels added on each side. TensorFlow's SAME with stride 2 can be asymmetric.
struct Padding {
  std::int64_t top = 0;
  std::int64_t bottom = 0;
  std::int64_t left = 0;
  std::int64_t right = 0;
  friend bool operator==(const Padding&, const Padding&) = default;
};

/// `pixels` on all four sides.
[[nodiscard]] constexpr Padding same(std::int64_t pixels) {
  return {pixels, pixels, pixels, pixels};
}

/// TensorFlow's SAME: output = ceil(input / stride). An odd pixel goes to the bottom or right (see
/// tf.nn, "Notes on padding").
[[nodiscard]] Padding padding_same(const Shape& input, Extent kernel, Extent stride,
                                   Extent dilation = {1, 1});

/// The IPU trainer's rule for stride > 1: floor((k-1)/2) before, the rest of k-1 after.
[[nodiscard]] Padding padding_explicit(Extent kernel);

/// How a parameter is initialized. Random numbers are keyed by (seed, parameter name, element).
struct Initialiser {
  enum class Kind {
    Zero,
    One,
    VarianceScaling,  ///< normal truncated at 2 sigma, sigma = sqrt(scale/fan)/0.87962566103423978
    GlorotUniform,    ///< uniform in +-sqrt(6/(fan_in+fan_out))
    Normal,           ///< normal with deviation `scale`
    TruncatedNormal,  ///< the same, drawn again outside 2 deviations
  };
  Kind kind = Kind::Zero;
  double scale = 1.0;
  enum class Fan { In, Out } fan = Fan::In;
  friend bool operator==(const Initialiser&, const Initialiser&) = default;
};

enum class PoolKind { Max, Average };
/// Which channels form a group of a group normalization: neighboring channels, or channels with
/// equal `channel % groups` (the IPU trainer).
enum class GroupOrder { Contiguous, Strided };

enum class ParameterRole { Kernel, Bias, Gamma, Beta, MovingMean, MovingVariance };
/// "kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance".
[[nodiscard]] std::string_view role_name(ParameterRole role);

/// A parameter that an op needs.
struct ParameterSpec {
  ParameterRole role = ParameterRole::Kernel;
  std::vector<std::int64_t> shape;
  Initialiser init;
  bool fixed = false;  ///< see Parameter
};

/// Which of a normalization's parameters no training changes: both in PyTorch's `affine=False`.
struct FixedAffine {
  bool gamma = false;
  bool beta = false;
  friend bool operator==(const FixedAffine&, const FixedAffine&) = default;
};

/// The shapes that an op reads, and the number of classes of the labels.
struct OpInputs {
  std::span<const Shape> shapes;
  std::int64_t classes = 0;
  [[nodiscard]] const Shape& x() const { return shapes.front(); }
};

/// What an op makes of its inputs, or one line that says why they do not fit, with both values.
struct Inference {
  Shape output;                                ///< meaningless for SoftmaxLoss
  std::vector<ParameterSpec> parameters = {};  ///< in the order of ParameterRole
  std::int64_t macs = 0;    ///< multiply-accumulates of the forward pass for one sample
  std::string misfit = {};  ///< empty when the inputs fit
};

/// How many inputs ops of a kind take.
struct InputCount {
  std::size_t count = 1;
  bool or_more = false;
};

// The ops. Each comment names the inputs in their order. `infer` is called with the right number of
// inputs.

/// x -> convolution with kernel [out][kh][kw][in/groups] (OHWI); a cross-correlation, as in other
/// frameworks.
struct Conv {
  static constexpr std::string_view kName = "Conv";
  static constexpr InputCount kInputs = {.count = 1};
  std::int64_t out_channels = 0;
  Extent kernel = {1, 1};
  Extent stride = {1, 1};
  Padding pad = {};
  std::int64_t groups = 1;  ///< equal to the input channels: depthwise
  Extent dilation = {1, 1};
  bool bias = false;
  Initialiser init = {Initialiser::Kind::VarianceScaling, 1.0, Initialiser::Fan::In};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const Conv&, const Conv&) = default;
};
/// x (flattened) -> x W^T + b with kernel [units][in].
struct Dense {
  static constexpr std::string_view kName = "Dense";
  static constexpr InputCount kInputs = {.count = 1};
  std::int64_t units = 0;
  bool bias = true;
  Initialiser init = {Initialiser::Kind::GlorotUniform};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const Dense&, const Dense&) = default;
};
/// x -> gamma (x - mean)/sqrt(var + epsilon) + beta over batch and pixels (Ioffe and Szegedy 2015).
/// Running statistics are moving averages with factor `decay`, updated once per step with the
/// unbiased variance.
struct BatchNorm {
  static constexpr std::string_view kName = "BatchNorm";
  static constexpr InputCount kInputs = {.count = 1};
  double epsilon = 1e-5;
  double decay = 0.97;
  bool zero_gamma = false;
  std::int64_t span = 1;  ///< replicas that share the statistics of a micro-batch
  FixedAffine fixed = {};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const BatchNorm&, const BatchNorm&) = default;
};
/// The same over the pixels and channels of one group of one sample (Wu and He 2018).
struct GroupNorm {
  static constexpr std::string_view kName = "GroupNorm";
  static constexpr InputCount kInputs = {.count = 1};
  std::int64_t groups = 32;
  double epsilon = 1.53e-5;
  GroupOrder order = GroupOrder::Contiguous;
  bool zero_gamma = false;
  FixedAffine fixed = {};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const GroupNorm&, const GroupNorm&) = default;
};
/// x -> f(x). The slope of a LeakyRelu is not negative, the factor of a HardSigmoid positive.
struct Activate {
  static constexpr std::string_view kName = "Activation";
  static constexpr InputCount kInputs = {.count = 1};
  Activation kind = Activation::Relu;
  ActivationNumbers numbers = {};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const Activate&, const Activate&) = default;
};
/// a, b -> a + b (equal shapes).
struct Add {
  static constexpr std::string_view kName = "Add";
  static constexpr InputCount kInputs = {.count = 2};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const Add&, const Add&) = default;
};
/// a, b, ... -> channels of a, then of b, ...
struct Concat {
  static constexpr std::string_view kName = "Concat";
  static constexpr InputCount kInputs = {.count = 2, .or_more = true};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const Concat&, const Concat&) = default;
};
/// x, s -> x with each channel multiplied by s (1x1xC): the product in squeeze-and-excite.
struct ScaleChannels {
  static constexpr std::string_view kName = "ScaleChannels";
  static constexpr InputCount kInputs = {.count = 2};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const ScaleChannels&, const ScaleChannels&) = default;
};
/// x -> maximum or mean over a window. Padding is never the maximum; a mean counts it only with
/// `count_padding`.
struct Pool {
  static constexpr std::string_view kName = "Pool";
  static constexpr InputCount kInputs = {.count = 1};
  PoolKind kind = PoolKind::Max;
  Extent kernel = {2, 2};
  Extent stride = {2, 2};
  Padding pad = {};
  bool count_padding = false;
  /// Of a position in the window, which a maximum keeps for the backward pass.
  [[nodiscard]] std::int64_t position_bytes() const { return kernel.h * kernel.w <= 256 ? 1 : 4; }
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const Pool&, const Pool&) = default;
};
/// x -> mean over all pixels (1x1xC).
struct GlobalAveragePool {
  static constexpr std::string_view kName = "GlobalAveragePool";
  static constexpr InputCount kInputs = {.count = 1};
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const GlobalAveragePool&, const GlobalAveragePool&) = default;
};
/// x -> every stride-th pixel, with zero channels added before and after (shortcut A of He et al.
/// 2015).
struct ShortcutPad {
  static constexpr std::string_view kName = "ShortcutPad";
  static constexpr InputCount kInputs = {.count = 1};
  Extent stride = {1, 1};
  std::int64_t channels_before = 0;
  std::int64_t channels_after = 0;
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const ShortcutPad&, const ShortcutPad&) = default;
};
/// x -> x with elements set to zero at `rate` and the rest scaled by 1/(1-rate); training only.
struct Dropout {
  static constexpr std::string_view kName = "Dropout";
  static constexpr InputCount kInputs = {.count = 1};
  double rate = 0.5;
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const Dropout&, const Dropout&) = default;
};
/// x -> x with whole samples set to zero and the rest scaled by 1/survival; training only
/// (stochastic depth).
struct DropConnect {
  static constexpr std::string_view kName = "DropConnect";
  static constexpr InputCount kInputs = {.count = 1};
  double survival = 0.8;
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const DropConnect&, const DropConnect&) = default;
};
/// logits (1x1xK) -> softmax cross-entropy against the labels of the micro-batch. There may be more
/// logits than classes; softmax and label smoothing cover all of them. The op has no output value.
/// Label smoothing and loss scaling are options of the training, not of the network.
struct SoftmaxLoss {
  static constexpr std::string_view kName = "SoftmaxLoss";
  static constexpr InputCount kInputs = {.count = 1};
  std::int64_t logits = 0;  ///< K; 0: one per class
  [[nodiscard]] Inference infer(const OpInputs& in) const;
  friend bool operator==(const SoftmaxLoss&, const SoftmaxLoss&) = default;
};

using OpKind =
    std::variant<Conv, Dense, BatchNorm, GroupNorm, Activate, Add, Concat, ScaleChannels, Pool,
                 GlobalAveragePool, ShortcutPad, Dropout, DropConnect, SoftmaxLoss>;

/// Whether it is a batch or group normalization.
[[nodiscard]] inline bool is_norm(const OpKind& kind) {
  return std::holds_alternative<BatchNorm>(kind) || std::holds_alternative<GroupNorm>(kind);
}

/// What an op makes of inputs of these shapes.
[[nodiscard]] Inference infer(const OpKind& kind, std::span<const Shape> inputs,
                              std::int64_t classes);

}  // namespace millrace::models

template <>
struct fmt::formatter<millrace::models::Extent> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  fmt::format_context::iterator format(const millrace::models::Extent& e,
                                       fmt::format_context& context) const;
};
