// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/permute.hpp"
#include "core/text.hpp"

namespace millrace::io {
namespace {

using models::Conv;
using models::Dense;
using models::Graph;
using models::Op;
using models::Parameter;
using models::ParameterRole;

/// The library's word for one of ours.
struct Word {
  std::string_view ours;
  std::string_view theirs;
};

std::optional<std::string> find(std::span<const Word> words, std::string_view ours) {
  const auto found = std::ranges::find(words, ours, &Word::ours);
  if (found == words.end()) return std::nullopt;
  return std::string(found->theirs);
}

/// `text` behind `prefix` as a number, or -1.
int number_behind(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return -1;
  return parse_number<int>(text.substr(prefix.size())).value_or(-1);
}

// ---- residual networks: b0/conv, b3/1/conv2, b3/1/SE/reduce, post/norm, fc1

struct Block {
  int stage = 0;
  int index = 0;
  std::string op;  ///< within the block
};

std::optional<Block> block_of(std::string_view op) {
  const std::vector<std::string> parts = split_list(op, '/');
  if (parts.size() < 3) return std::nullopt;
  const int stage = number_behind(parts[0], "b");
  const int index = number_behind(parts[1], "");
  if (stage < 1 || index < 0) return std::nullopt;
  return Block{stage, index, std::string(op.substr(parts[0].size() + parts[1].size() + 2))};
}

constexpr std::array kTorchStem = std::to_array<Word>({{"b0/conv", "conv1"}, {"b0/norm", "bn1"}});
constexpr std::array kTorchBlock = std::to_array<Word>({{"conv1", "conv1"},
                                                        {"norm1", "bn1"},
                                                        {"conv2", "conv2"},
                                                        {"norm2", "bn2"},
                                                        {"conv3", "conv3"},
                                                        {"norm3", "bn3"},
                                                        {"SE/reduce", "se.fc1"},
                                                        {"SE/expand", "se.fc2"}});

std::optional<std::string> torch_residual(const Graph& graph, const Op& op, WeightStyle style) {
  const bool akamaster = style == WeightStyle::Akamaster;
  if (op.name == "fc1") return akamaster ? "linear" : "fc";
  if (graph.find("post").valid()) return std::nullopt;  // version 2
  if (auto name = find(kTorchStem, op.name)) return name;
  const std::optional<Block> block = block_of(op.name);
  if (!block) return std::nullopt;
  const std::string place = fmt::format("layer{}.{}.", block->stage, block->index);
  const std::string_view shortcut = akamaster ? "shortcut" : "downsample";
  if (block->op == "shortcut_conv") return fmt::format("{}{}.0", place, shortcut);
  if (block->op == "shortcut_norm") return fmt::format("{}{}.1", place, shortcut);
  if (block->op.starts_with("SE/") && style != WeightStyle::Timm) return std::nullopt;
  const auto inner = find(kTorchBlock, block->op);
  return inner ? std::optional(place + *inner) : std::nullopt;
}

constexpr std::array kKerasBlock = std::to_array<Word>({{"conv1", "1_conv"},
                                                        {"norm1", "1_bn"},
                                                        {"conv2", "2_conv"},
                                                        {"norm2", "2_bn"},
                                                        {"conv3", "3_conv"},
                                                        {"norm3", "3_bn"},
                                                        {"shortcut_conv", "0_conv"},
                                                        {"shortcut_norm", "0_bn"}});
constexpr std::array kKerasBlock2 = std::to_array<Word>({{"norm1", "preact_bn"},
                                                         {"conv1", "1_conv"},
                                                         {"norm2", "1_bn"},
                                                         {"conv2", "2_conv"},
                                                         {"norm3", "2_bn"},
                                                         {"conv3", "3_conv"},
                                                         {"shortcut_conv", "0_conv"}});
constexpr std::array kKerasOutside = std::to_array<Word>({{"b0/conv", "conv1_conv"},
                                                          {"b0/norm", "conv1_bn"},
                                                          {"post/norm", "post_bn"},
                                                          {"fc1", "predictions"}});

std::optional<std::string> keras_residual(const Graph& graph, const Op& op) {
  if (auto name = find(kKerasOutside, op.name)) return name;
  const std::optional<Block> block = block_of(op.name);
  if (!block) return std::nullopt;
  const bool second = graph.find("post").valid();
  const auto inner = second ? find(kKerasBlock2, block->op) : find(kKerasBlock, block->op);
  if (!inner) return std::nullopt;
  return fmt::format("conv{}_block{}_{}", block->stage + 1, block->index + 1, *inner);
}

// ---- SqueezeNet: conv1/conv, fire2/squeeze1x1, conv10/conv

constexpr std::array kTorchSqueezeNet = std::to_array<Word>({{"conv1/conv", "features.0"},
                                                             {"fire2", "features.3"},
                                                             {"fire3", "features.4"},
                                                             {"fire4", "features.5"},
                                                             {"fire5", "features.7"},
                                                             {"fire6", "features.8"},
                                                             {"fire7", "features.9"},
                                                             {"fire8", "features.10"},
                                                             {"fire9", "features.12"},
                                                             {"conv10/conv", "classifier.1"},
                                                             {"squeeze1x1", "squeeze"},
                                                             {"expand1x1", "expand1x1"},
                                                             {"expand3x3", "expand3x3"}});

std::optional<std::string> torch_squeezenet(const Op& op) {
  if (auto name = find(kTorchSqueezeNet, op.name)) return name;
  const std::vector<std::string> parts = split_list(op.name, '/');
  if (parts.size() != 2) return std::nullopt;
  const auto fire = find(kTorchSqueezeNet, parts[0]);
  const auto inner = find(kTorchSqueezeNet, parts[1]);
  return fire && inner ? std::optional(*fire + '.' + *inner) : std::nullopt;
}

// ---- EfficientNet: block0/conv, block2a/b/norm, block2a/SE/reduce, Top/conv, Top/logits

struct MobileBlock {
  int stage = 0;
  int index = 0;
  std::string letters;  ///< its index, as in block2a
  std::string op;       ///< within the block
  bool expands = false;
};

std::optional<MobileBlock> mobile_block(const Graph& graph, std::string_view op) {
  constexpr std::string_view kPrefix = "block";
  const std::size_t slash = op.find('/');
  if (!op.starts_with(kPrefix) || slash == std::string_view::npos) return std::nullopt;
  const std::string_view place = op.substr(kPrefix.size(), slash - kPrefix.size());
  const std::size_t digits = std::min(place.find_first_not_of("0123456789"), place.size());
  MobileBlock block;
  block.stage = parse_number<int>(place.substr(0, digits)).value_or(0);
  if (block.stage == 0 || digits == place.size()) return std::nullopt;
  block.letters = place.substr(digits);
  for (const char letter : block.letters) block.index = 26 * block.index + (letter - 'a' + 1);
  --block.index;
  block.op = op.substr(slash + 1);
  block.expands = graph.find(fmt::format("{}{}/conv", kPrefix, place)).valid();
  return block;
}

constexpr std::array kTorchTop = std::to_array<Word>({{"block0/conv", "features.0.0"},
                                                      {"block0/norm", "features.0.1"},
                                                      {"Top/conv", "features.8.0"},
                                                      {"Top/norm", "features.8.1"},
                                                      {"Top/logits", "classifier.1"}});

std::optional<std::string> torch_efficientnet(const Graph& graph, const Op& op) {
  if (auto name = find(kTorchTop, op.name)) return name;
  const auto block = mobile_block(graph, op.name);
  if (!block) return std::nullopt;
  const int depthwise = block->expands ? 1 : 0;
  const auto part = [&](int index, std::string_view inner) {
    return fmt::format("features.{}.{}.block.{}.{}", block->stage, block->index, index, inner);
  };
  if (block->op == "conv") return part(0, "0");
  if (block->op == "norm") return part(0, "1");
  if (block->op == "b/conv") return part(depthwise, "0");
  if (block->op == "b/norm") return part(depthwise, "1");
  if (block->op == "SE/reduce") return part(depthwise + 1, "fc1");
  if (block->op == "SE/expand") return part(depthwise + 1, "fc2");
  if (block->op == "c/conv") return part(depthwise + 2, "0");
  if (block->op == "c/norm") return part(depthwise + 2, "1");
  return std::nullopt;
}

constexpr std::array kTimmTop = std::to_array<Word>({{"block0/conv", "conv_stem"},
                                                     {"block0/norm", "bn1"},
                                                     {"Top/conv", "conv_head"},
                                                     {"Top/norm", "bn2"},
                                                     {"Top/logits", "classifier"}});
constexpr std::array kTimmInverted = std::to_array<Word>({{"conv", "conv_pw"},
                                                          {"norm", "bn1"},
                                                          {"b/conv", "conv_dw"},
                                                          {"b/norm", "bn2"},
                                                          {"SE/reduce", "se.conv_reduce"},
                                                          {"SE/expand", "se.conv_expand"},
                                                          {"c/conv", "conv_pwl"},
                                                          {"c/norm", "bn3"}});
constexpr std::array kTimmSeparable = std::to_array<Word>({{"b/conv", "conv_dw"},
                                                           {"b/norm", "bn1"},
                                                           {"SE/reduce", "se.conv_reduce"},
                                                           {"SE/expand", "se.conv_expand"},
                                                           {"c/conv", "conv_pw"},
                                                           {"c/norm", "bn2"}});

std::optional<std::string> timm_efficientnet(const Graph& graph, const Op& op) {
  if (auto name = find(kTimmTop, op.name)) return name;
  const auto block = mobile_block(graph, op.name);
  if (!block) return std::nullopt;
  const auto inner =
      block->expands ? find(kTimmInverted, block->op) : find(kTimmSeparable, block->op);
  if (!inner) return std::nullopt;
  return fmt::format("blocks.{}.{}.{}", block->stage - 1, block->index, *inner);
}

constexpr std::array kKerasTop = std::to_array<Word>({{"block0/conv", "stem_conv"},
                                                      {"block0/norm", "stem_bn"},
                                                      {"Top/conv", "top_conv"},
                                                      {"Top/norm", "top_bn"},
                                                      {"Top/logits", "predictions"}});
constexpr std::array kKerasMobile = std::to_array<Word>({{"conv", "expand_conv"},
                                                         {"norm", "expand_bn"},
                                                         {"b/conv", "dwconv"},
                                                         {"b/norm", "bn"},
                                                         {"SE/reduce", "se_reduce"},
                                                         {"SE/expand", "se_expand"},
                                                         {"c/conv", "project_conv"},
                                                         {"c/norm", "project_bn"}});

std::optional<std::string> keras_efficientnet(const Graph& graph, const Op& op) {
  if (auto name = find(kKerasTop, op.name)) return name;
  const auto block = mobile_block(graph, op.name);
  if (!block) return std::nullopt;
  const auto inner = find(kKerasMobile, block->op);
  if (!inner) return std::nullopt;
  return fmt::format("block{}{}_{}", block->stage, block->letters, *inner);
}

// ----

/// The library's name of an op; nothing if it has no such op.
std::optional<std::string> module_of(const Graph& graph, const Op& op, WeightStyle style) {
  const bool keras = style == WeightStyle::Keras;
  if (graph.name.starts_with("resnet-") || graph.name.starts_with("resnext-"))
    return keras ? keras_residual(graph, op) : torch_residual(graph, op, style);
  if (graph.name == "squeezenet" && style == WeightStyle::Torchvision) return torch_squeezenet(op);
  if (!graph.name.starts_with("efficientnet-")) return std::nullopt;
  if (keras) return keras_efficientnet(graph, op);
  if (style == WeightStyle::Torchvision) return torch_efficientnet(graph, op);
  if (style == WeightStyle::Timm) return timm_efficientnet(graph, op);
  return std::nullopt;
}

/// Why a library has no network with this op.
std::string why_unlike(const Graph& graph, const Op& op) {
  if (graph.name.starts_with("resnet-") && graph.find("post").valid())
    return "it has version 2, in which normalization comes before each convolution";
  const bool grouped = std::holds_alternative<models::GroupNorm>(op.kind);
  return fmt::format("nothing is like {}{}", op.name, grouped ? ", a group normalization" : "");
}

std::string_view torch_field(ParameterRole role) {
  switch (role) {
    case ParameterRole::Kernel:
    case ParameterRole::Gamma:
      return "weight";
    case ParameterRole::Bias:
    case ParameterRole::Beta:
      return "bias";
    case ParameterRole::MovingMean:
      return "running_mean";
    case ParameterRole::MovingVariance:
      return "running_var";
  }
  return "?";
}

/// One input channel a group: Keras has kernels of their own for it.
bool is_depthwise(const Graph& graph, const Parameter& parameter) {
  const auto* conv = std::get_if<Conv>(&graph.op(parameter.op).kind);
  return conv != nullptr && parameter.shape.size() == 4 && conv->groups > 1 &&
         parameter.shape[3] == 1;
}

std::string field_of(const Graph& graph, const Parameter& parameter, WeightStyle style) {
  if (style != WeightStyle::Keras) return fmt::format(".{}", torch_field(parameter.role));
  const bool depthwise = parameter.role == ParameterRole::Kernel && is_depthwise(graph, parameter);
  return fmt::format("/{}{}:0", depthwise ? "depthwise_" : "", role_name(parameter.role));
}

/// Which of our axes each axis of the library is.
std::vector<std::size_t> axes_of(const Graph& graph, const Parameter& parameter,
                                 WeightStyle style) {
  const std::size_t rank = parameter.shape.size();
  if (style != WeightStyle::Keras)
    return rank == 4   ? std::vector<std::size_t>{0, 3, 1, 2}
           : rank == 2 ? std::vector<std::size_t>{0, 1}
                       : std::vector<std::size_t>{0};
  if (rank == 4 && is_depthwise(graph, parameter)) return {1, 2, 0, 3};
  if (rank == 4) return {1, 2, 3, 0};
  if (rank == 2) return {1, 0};
  return {0};
}

}  // namespace

std::string_view name_of(WeightStyle style) {
  constexpr std::array<std::string_view, 4> kNames = {"torchvision", "timm", "akamaster", "keras"};
  return kNames.at(static_cast<std::size_t>(style));
}

ForeignParameters foreign_parameters(const Graph& graph, WeightStyle style) {
  ForeignParameters result;
  for (const Parameter& parameter : graph.parameters) {
    const Op& op = graph.op(parameter.op);
    const bool grouped = std::holds_alternative<models::GroupNorm>(op.kind);
    const std::optional<std::string> module = grouped ? std::nullopt : module_of(graph, op, style);
    if (!module) {
      result.misfit = fmt::format("{} has no network like this {}: {}", name_of(style), graph.name,
                                  why_unlike(graph, op));
      break;
    }
    ForeignParameter foreign = {*module + field_of(graph, parameter, style), {}};
    for (const std::size_t axis : axes_of(graph, parameter, style))
      foreign.shape.push_back(parameter.shape[axis]);
    result.all.push_back(std::move(foreign));
  }
  return result;
}

namespace {

/// Keras' ResNets read BGR.
bool reads_bgr(const Graph& graph, const Parameter& parameter, WeightStyle style) {
  const models::Op& op = graph.op(parameter.op);
  return style == WeightStyle::Keras && graph.name.starts_with("res") &&
         parameter.role == models::ParameterRole::Kernel && op.inputs.front() == Graph::input() &&
         parameter.shape.back() == 3;
}

/// Exchanges red and blue.
void turn_colors(std::vector<float>& ohwi) {
  constexpr std::size_t kColors = 3;
  for (std::size_t i = 0; i + kColors <= ohwi.size(); i += kColors) std::swap(ohwi[i], ohwi[i + 2]);
}

}  // namespace

std::vector<float> to_foreign(const Graph& graph, const Parameter& parameter, WeightStyle style,
                              std::span<const float> values) {
  const std::vector<std::size_t> axes = axes_of(graph, parameter, style);
  if (!reads_bgr(graph, parameter, style)) return permuted(values, parameter.shape, axes);
  std::vector<float> turned(values.begin(), values.end());
  turn_colors(turned);
  return permuted(turned, parameter.shape, axes);
}

std::vector<float> from_foreign(const Graph& graph, const Parameter& parameter, WeightStyle style,
                                std::span<const float> values) {
  std::vector<float> ours = unpermuted(values, parameter.shape, axes_of(graph, parameter, style));
  if (reads_bgr(graph, parameter, style)) turn_colors(ours);
  return ours;
}

}  // namespace millrace::io
