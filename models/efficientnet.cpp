// SPDX-License-Identifier: Apache-2.0
//
// EfficientNet (Tan and Le 2019, table 1): sizes B0 ... B7 and `cifar` of the IPU trainer. Upper
// and lower case are equal, and 0 ... 7 mean B0 ... B7.
//
// Layers: `block0`; then the blocks; then `Top` and `loss`. A block that adds its input is one
// layer, such as `block2b`. Other blocks are four: `block2a` (expansion, absent at ratio 1),
// `block2a/b` (kxk convolution), `block2a/SE` and `block2a/c` (projection). Op names follow the
// same pattern in both (`block2b/b/conv`, `block2b/SE`).
//
// `cifar` does not halve the image in block0 and block2a. The IPU trainer intends the same but
// halves it there, because it compares the size's name in the wrong case.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/graph.hpp"
#include "models/registry.hpp"

namespace millrace::models {
namespace {

/// Compound scaling: factors of the channels and of the number of blocks.
struct Size {
  std::string_view name;
  double width = 1;
  double depth = 1;
  double dropout_rate = 0;
  std::int64_t image = 224;
};

constexpr std::array<Size, 9> kSizes = {{{"B0", 1.0, 1.0, 0.2, 224},
                                         {"B1", 1.0, 1.1, 0.2, 240},
                                         {"B2", 1.1, 1.2, 0.3, 260},
                                         {"B3", 1.2, 1.4, 0.3, 300},
                                         {"B4", 1.4, 1.8, 0.4, 380},
                                         {"B5", 1.6, 2.2, 0.4, 456},
                                         {"B6", 1.8, 2.6, 0.5, 528},
                                         {"B7", 2.0, 3.1, 0.5, 600},
                                         {"cifar", 0.5, 1.0, 0.0, 32}}};

/// Rows of table 1 at width and depth 1. Only the first block of a stage has its stride and changes
/// the number of channels.
struct Stage {
  std::int64_t kernel = 3;
  int repeats = 1;
  std::int64_t out = 0;
  std::int64_t stride = 1;
  bool expands = true;
};

constexpr std::array<Stage, 7> kStages = {{{3, 1, 16, 1, false},
                                           {3, 2, 24, 2},
                                           {5, 2, 40, 2},
                                           {3, 3, 80, 2},
                                           {5, 3, 112, 1},
                                           {5, 4, 192, 2},
                                           {3, 1, 320, 1}}};

constexpr std::int64_t kStemWidth = 32;
/// Limit of the blocks in a stage: ten times the deepest published network.
constexpr double kMostRepeats = 130.0;
/// Input channels of a block per squeezed channel.
constexpr std::int64_t kSqueezeRatio = 4;

constexpr Initialiser kFanOut = {Initialiser::Kind::VarianceScaling, 2.0, Initialiser::Fan::Out};
constexpr Initialiser kFanIn = {Initialiser::Kind::VarianceScaling, 2.0, Initialiser::Fan::In};

const Size& find_size(std::string_view wanted) {
  const std::string name = to_lower(wanted);
  std::vector<std::string_view> names;
  for (const Size& size : kSizes) {
    const std::string candidate = to_lower(size.name);
    if (name == candidate || (candidate.starts_with('b') && name == candidate.substr(1))) {
      return size;
    }
    names.push_back(size.name);
  }
  fail(ErrorKind::Config, "model efficientnet has no size {}; sizes: {}", wanted,
       join(names, ", "));
}

template <class Value>
void require(bool holds, std::string_view what, const Value& value, std::string_view range) {
  if (!holds) fail(ErrorKind::Config, "model efficientnet: {} {} must be {}", what, value, range);
}

void check(const EfficientNetOptions& o) {
  const double width = o.width.value_or(1);
  const double depth = o.depth.value_or(1);
  const double dropout = o.dropout_rate.value_or(0);
  require(width > 0 && std::isfinite(width), "width coefficient", width, "positive");
  require(depth > 0 && std::isfinite(depth), "depth coefficient", depth, "positive");
  require(dropout >= 0 && dropout < 1, "dropout rate", dropout, "at least 0 and below 1");
  require(o.block_survival > 0 && o.block_survival <= 1, "block survival probability",
          o.block_survival, "above 0 and at most 1");
  const std::string range = fmt::format("from 1 to {}", kMostChannels);
  require(o.expand_ratio >= 1 && o.expand_ratio <= kMostChannels, "expand ratio", o.expand_ratio,
          range);
  require(o.group_dim >= 1, "group dim", o.group_dim, "at least 1");
  require(o.depth_divisor >= 1 && o.depth_divisor <= kMostChannels, "depth divisor",
          o.depth_divisor, range);
  require(o.top_width >= 0, "top width", o.top_width, "at least 0 (0: no top convolution)");
  if (o.activation == Activation::Sigmoid) {
    fail(ErrorKind::Config,
         "model efficientnet has no activation sigmoid; activations: swish, relu");
  }
}

/// Nearest multiple of `divisor` to filters * width, but at least 0.9 times that product. Errors:
/// Config if it is above kMostChannels.
std::int64_t scale_width(std::int64_t filters, double width, std::int64_t divisor) {
  const double wanted = static_cast<double>(filters) * width;
  const double half_up = wanted + static_cast<double>(divisor) / 2;
  if (half_up > static_cast<double>(kMostChannels)) {
    fail(ErrorKind::Config,
         "model efficientnet: {} channels at width coefficient {} in multiples of {} exceed the "
         "limit of {} per layer; lower the coefficient",
         filters, width, divisor, kMostChannels);
  }
  const std::int64_t nearest =
      std::max(divisor, static_cast<std::int64_t>(half_up) / divisor * divisor);
  return static_cast<double>(nearest) < 0.9 * wanted ? nearest + divisor : nearest;
}

class EfficientNet {
 public:
  EfficientNet(const ModelOptions& options, const Size& size)
      : options_(options),
        net_(options.efficientnet),
        cifar_(size.name == "cifar"),
        width_(net_.width.value_or(size.width)),
        depth_(net_.depth.value_or(size.depth)),
        dropout_rate_(net_.dropout_rate.value_or(size.dropout_rate)),
        builder_("efficientnet-" + std::string(size.name), options.image, options.classes) {}

  Graph build() && {
    builder_.begin_layer("block0");
    ValueId x = builder_.input();
    x = conv_norm_act("", x, {.out = scaled(kStemWidth), .kernel = 3, .stride = stride(0, 2)});
    for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
      for (int i = 0; i < repeats(kStages[stage]); ++i) x = block(x, block_of(x, stage, i));
    }
    top(x);
    return std::move(builder_).build();
  }

 private:
  struct Block {
    std::string name;
    std::int64_t kernel = 3;
    std::int64_t stride = 1;
    std::int64_t middle = 0;  ///< channels after the expansion
    std::int64_t out = 0;
    bool expands = true;
    bool skips = false;     ///< adds its input
    double survival = 1.0;  ///< of its branch
  };

  /// A square convolution.
  struct Square {
    std::int64_t out = 0;
    std::int64_t kernel = 1;
    std::int64_t stride = 1;
    std::int64_t groups = 1;
    Initialiser init = kFanOut;
  };

  [[nodiscard]] std::int64_t scaled(std::int64_t filters) const {
    return scale_width(filters, width_, net_.depth_divisor);
  }

  [[nodiscard]] int repeats(const Stage& stage) const {
    const double repeats = std::ceil(depth_ * stage.repeats);
    if (repeats > kMostRepeats) {
      fail(ErrorKind::Config,
           "model efficientnet: depth coefficient {} makes {:.6g} blocks of {}, above the limit of "
           "{} per stage; lower the coefficient",
           depth_, repeats, stage.repeats, kMostRepeats);
    }
    return static_cast<int>(repeats);
  }

  /// Stride of a stage's first block; stage 0 is the stem.
  [[nodiscard]] std::int64_t stride(std::size_t stage, std::int64_t published) const {
    return cifar_ && (stage == 0 || stage == 2) ? 1 : published;
  }

  [[nodiscard]] int blocks_before(std::size_t stage) const {
    int count = 0;
    for (std::size_t s = 0; s < stage; ++s) count += repeats(kStages[s]);
    return count;
  }

  [[nodiscard]] Block block_of(ValueId x, std::size_t stage, int i) const {
    const Stage& row = kStages[stage];
    const std::int64_t in = builder_.shape(x).c;
    const bool expands = row.expands && net_.expand_ratio != 1;
    const double depth = static_cast<double>(blocks_before(stage) + i) /
                         static_cast<double>(blocks_before(kStages.size()));
    Block block = {.name = fmt::format("block{}{}", stage + 1, letter(i)),
                   .kernel = row.kernel,
                   .stride = i == 0 ? stride(stage + 1, row.stride) : 1,
                   .middle = expands ? in * net_.expand_ratio : in,
                   .out = scaled(row.out),
                   .expands = expands,
                   .survival = 1.0 - (1.0 - net_.block_survival) * depth};
    block.skips = block.stride == 1 && in == block.out;
    return block;
  }

  /// a, b, ..., z, then aa, ab, ... (for depths above the published ones).
  static std::string letter(int i) {
    const std::string last(1, static_cast<char>('a' + i % 26));
    return i < 26 ? last : letter(i / 26 - 1) + last;
  }

  /// Begins a part of the current block and returns the prefix of its op names. A block that adds
  /// its input stays one layer; in other blocks each part is a layer of its own.
  std::string begin_part(const Block& block, const std::string& part) {
    if (block.skips) return part;
    builder_.begin_layer(part.empty() ? block.name : block.name + "/" + part);
    return "";
  }

  ValueId block(ValueId x, const Block& block) {
    const std::int64_t in = builder_.shape(x).c;
    if (block.skips) builder_.begin_layer(block.name);
    ValueId y = x;
    if (block.expands) y = conv_norm_act(begin_part(block, ""), y, {.out = block.middle});
    y = conv_norm_act(begin_part(block, "b"), y,
                      {.out = block.middle,
                       .kernel = block.kernel,
                       .stride = block.stride,
                       .groups = std::max<std::int64_t>(block.middle / net_.group_dim, 1),
                       .init = kFanIn});
    if (net_.squeeze_excitation == SqueezeExcitation::On) {
      y = squeeze_excite(builder_, begin_part(block, "SE"), y,
                         {std::max<std::int64_t>(1, in / kSqueezeRatio), net_.activation, kFanOut});
    }
    y = conv_norm(begin_part(block, "c"), y, {.out = block.out});
    return block.skips ? add(x, y, block.survival) : y;
  }

  ValueId add(ValueId x, ValueId branch, double survival) {
    if (survival < 1) branch = builder_.drop_connect("drop", branch, {.survival = survival});
    return builder_.add("add", branch, x);
  }

  void top(ValueId x) {
    builder_.begin_layer("Top");
    if (net_.top_width > 0) x = conv_norm_act("", x, {.out = scaled(net_.top_width)});
    x = builder_.global_average_pool("mean", x);
    if (dropout_rate_ > 0) x = builder_.dropout("dropout", x, {.rate = dropout_rate_});
    x = builder_.dense("logits", x, {.units = options_.classes});
    builder_.begin_layer("loss");
    builder_.softmax_loss("", x);
  }

  static std::string below(const std::string& part, std::string_view op) {
    return part.empty() ? std::string(op) : fmt::format("{}/{}", part, op);
  }

  ValueId conv_norm_act(const std::string& part, ValueId x, const Square& square) {
    return builder_.activation(below(part, "act"), conv_norm(part, x, square), {net_.activation});
  }

  ValueId conv_norm(const std::string& part, ValueId x, const Square& square) {
    const Extent window = {square.kernel, square.kernel};
    const Extent stride = {square.stride, square.stride};
    x = builder_.conv(below(part, "conv"), x,
                      {.out_channels = square.out,
                       .kernel = window,
                       .stride = stride,
                       .pad = options_.padding == PaddingRule::Torch
                                  ? same(square.kernel / 2)
                                  : padding_same(builder_.shape(x), window, stride),
                       .groups = square.groups,
                       .init = square.init});
    return norm(below(part, "norm"), x);
  }

  ValueId norm(std::string_view name, ValueId x) {
    if (options_.norm == NormKind::Batch) {
      return builder_.batch_norm(name, x,
                                 {.epsilon = net_.norm_epsilon,
                                  .decay = options_.batch_norm_decay,
                                  .span = options_.batch_norm_span});
    }
    const std::int64_t groups = std::min(builder_.shape(x).c, options_.groups);
    return builder_.group_norm(
        name, x, {.groups = groups, .epsilon = net_.norm_epsilon, .order = options_.group_order});
  }

  const ModelOptions& options_;
  const EfficientNetOptions& net_;
  bool cifar_;
  double width_;
  double depth_;
  double dropout_rate_;
  GraphBuilder builder_;
};

std::vector<std::string> sizes(Task task) {
  std::vector<std::string> names;
  for (const Size& size : kSizes)
    if ((size.name == "cifar") == (task == Task::Cifar)) names.emplace_back(size.name);
  return names;
}

Graph build(const ModelOptions& options) {
  check(options.efficientnet);
  return EfficientNet(options, find_size(options.size)).build();
}

/// 0 and b0 are B0.
std::string spelled(std::string_view asked) {
  std::string size = to_lower(asked);
  if (size.size() == 1 && std::isdigit(static_cast<unsigned char>(size[0])) != 0) size = "b" + size;
  if (size.starts_with('b')) size[0] = 'B';
  return size;
}

FamilyRecipe published_recipe() {
  FamilyRecipe recipe = imagenet_recipe(4);
  recipe.epochs = 350;
  recipe.weight_decay = 1e-5;
  recipe.label_smoothing = 0.1;
  recipe.sgd_exponent = -7;
  recipe.momentum_exponent = -10;
  recipe.rmsprop_exponent = -14;
  return recipe;
}

std::vector<NameMap> names() {
  const std::string expanding =
      "block{}{a}/conv";  // a block with a convolution before the wide one
  const std::string in_torch = "features.{}.{}.block.";
  const std::string in_timm = "blocks.{-1}.{}.";
  const std::string in_keras = "block{}{a}_";
  return {{"torchvision",
           {{"block0/conv", "features.0.0"},
            {"block0/norm", "features.0.1"},
            {"block{}{a}/conv", in_torch + "0.0"},
            {"block{}{a}/norm", in_torch + "0.1"},
            {"block{}{a}/b/conv", in_torch + "1.0", expanding},
            {"block{}{a}/b/norm", in_torch + "1.1", expanding},
            {"block{}{a}/SE/reduce", in_torch + "2.fc1", expanding},
            {"block{}{a}/SE/expand", in_torch + "2.fc2", expanding},
            {"block{}{a}/c/conv", in_torch + "3.0", expanding},
            {"block{}{a}/c/norm", in_torch + "3.1", expanding},
            {"block{}{a}/b/conv", in_torch + "0.0"},
            {"block{}{a}/b/norm", in_torch + "0.1"},
            {"block{}{a}/SE/reduce", in_torch + "1.fc1"},
            {"block{}{a}/SE/expand", in_torch + "1.fc2"},
            {"block{}{a}/c/conv", in_torch + "2.0"},
            {"block{}{a}/c/norm", in_torch + "2.1"},
            {"Top/conv", "features.8.0"},
            {"Top/norm", "features.8.1"},
            {"Top/logits", "classifier.1"}}},
          {"timm",
           {{"block0/conv", "conv_stem"},
            {"block0/norm", "bn1"},
            {"block{}{a}/conv", in_timm + "conv_pw"},
            {"block{}{a}/norm", in_timm + "bn1"},
            {"block{}{a}/b/conv", in_timm + "conv_dw"},
            {"block{}{a}/b/norm", in_timm + "bn2", expanding},
            {"block{}{a}/b/norm", in_timm + "bn1"},
            {"block{}{a}/SE/reduce", in_timm + "se.conv_reduce"},
            {"block{}{a}/SE/expand", in_timm + "se.conv_expand"},
            {"block{}{a}/c/conv", in_timm + "conv_pwl", expanding},
            {"block{}{a}/c/norm", in_timm + "bn3", expanding},
            {"block{}{a}/c/conv", in_timm + "conv_pw"},
            {"block{}{a}/c/norm", in_timm + "bn2"},
            {"Top/conv", "conv_head"},
            {"Top/norm", "bn2"},
            {"Top/logits", "classifier"}}},
          {"keras",
           {{"block0/conv", "stem_conv"},
            {"block0/norm", "stem_bn"},
            {"block{}{a}/conv", in_keras + "expand_conv"},
            {"block{}{a}/norm", in_keras + "expand_bn"},
            {"block{}{a}/b/conv", in_keras + "dwconv"},
            {"block{}{a}/b/norm", in_keras + "bn"},
            {"block{}{a}/SE/reduce", in_keras + "se_reduce"},
            {"block{}{a}/SE/expand", in_keras + "se_expand"},
            {"block{}{a}/c/conv", in_keras + "project_conv"},
            {"block{}{a}/c/norm", in_keras + "project_bn"},
            {"Top/conv", "top_conv"},
            {"Top/norm", "top_bn"},
            {"Top/logits", "predictions"}}}};
}

}  // namespace

Family efficientnet_family() {
  return {.name = "efficientnet",
          .run_name = "EfficientNet-{}",
          .build = build,
          .sizes = sizes,
          .imagenet = {.size = "B0", .recipe = published_recipe(), .groups = 4},
          .cifar = {.size = "cifar", .recipe = cifar_recipe(8, 300, -6), .groups = 4, .image = 32},
          .spelled = spelled,
          .image_side = [](std::string_view size) { return find_size(size).image; },
          .names = names()};
}

}  // namespace millrace::models
