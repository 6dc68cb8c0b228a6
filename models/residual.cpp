// SPDX-License-Identifier: Apache-2.0
#include "models/residual.hpp"

#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/graph.hpp"

namespace millrace::models {
namespace {

enum class ZeroGamma { Never, IdentityBottleneck, EveryBlock };

/// Row of the table at InitialiserSet.
struct Start {
  Initialiser conv;
  Initialiser dense;
  ZeroGamma zero_gamma = ZeroGamma::Never;
};

Start start_of(InitialiserSet set) {
  using Kind = Initialiser::Kind;
  using Fan = Initialiser::Fan;
  const Initialiser fan_in = {Kind::VarianceScaling, 1.0, Fan::In};
  const Initialiser he_in = {Kind::VarianceScaling, 2.0, Fan::In};
  const Initialiser he_out = {Kind::VarianceScaling, 2.0, Fan::Out};
  const Initialiser glorot = {.kind = Kind::GlorotUniform};
  const Initialiser narrow = {.kind = Kind::Normal, .scale = 0.01};
  switch (set) {
    case InitialiserSet::Ipu:
      return {fan_in, glorot, ZeroGamma::IdentityBottleneck};
    case InitialiserSet::Nvidia:
      return {he_out, he_out};
    case InitialiserSet::NvidiaFanIn:
      return {he_in, he_in};
    case InitialiserSet::Habana:
      return {fan_in, glorot};
    case InitialiserSet::HabanaKeras:
      return {he_in, narrow};
    case InitialiserSet::Surfsara:
      return {fan_in, narrow, ZeroGamma::EveryBlock};
    case InitialiserSet::KerasApplications:
      return {glorot, glorot};
  }
  return {fan_in, glorot};
}

enum class Place { First, Later };  ///< of a block in its stage
enum class Gamma { One, Zero };

struct Block {
  std::int64_t middle = 0;  ///< channels of its 3x3 convolutions
  std::int64_t out = 0;
  std::int64_t stride = 1;
  Place place = Place::Later;
  Gamma gamma = Gamma::One;  ///< of its last norm
  StageOneShortcut shortcut = StageOneShortcut::Project;
};

/// A square convolution.
struct Square {
  std::int64_t out = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t groups = 1;
  bool bias = false;
};

class Builder {
 public:
  Builder(const ModelOptions& options, const ResidualNet& net)
      : options_(options),
        net_(net),
        start_(start_of(options.residual.initialisers)),
        builder_(net.name, options.image, options.classes) {}

  Graph build() && {
    ValueId x = stem();
    for (std::size_t stage = 0; stage < net_.table.blocks.size(); ++stage) {
      for (int i = 0; i < net_.table.blocks[stage]; ++i) x = layers_of_block(x, stage, i);
    }
    if (preactivated()) {
      builder_.begin_layer("post");
      x = norm_relu("norm", "relu", x);
    }
    head(x);
    return std::move(builder_).build();
  }

 private:
  [[nodiscard]] bool preactivated() const { return options_.residual.version == ResNetVersion::V2; }
  [[nodiscard]] bool bottleneck() const { return net_.table.block == BlockKind::Bottleneck; }

  /// Version 1.5 strides in the first block of every stage but the first; version 2 in the last
  /// block of every stage but the last.
  [[nodiscard]] std::int64_t stride_of(std::size_t stage, int i) const {
    if (!preactivated()) return stage > 0 && i == 0 ? 2 : 1;
    const bool last = i + 1 == net_.table.blocks[stage];
    return last && stage + 1 < net_.table.blocks.size() ? 2 : 1;
  }

  [[nodiscard]] Gamma gamma_of(Place place) const {
    // A zero gamma makes the block an identity only if its shortcut is one.
    const bool zero = start_.zero_gamma == ZeroGamma::EveryBlock ||
                      (start_.zero_gamma == ZeroGamma::IdentityBottleneck && bottleneck() &&
                       place == Place::Later);
    return zero ? Gamma::Zero : Gamma::One;
  }

  ValueId layers_of_block(ValueId x, std::size_t stage, int i) {
    const std::string name = fmt::format("b{}/{}", stage + 1, i);
    const std::int64_t factor = std::int64_t{1} << stage;
    const Place place = i == 0 ? Place::First : Place::Later;
    const Block block = {
        .middle = net_.widths.middle * factor,
        .out = net_.widths.stem * factor * (bottleneck() ? 4 : 1),
        .stride = stride_of(stage, i),
        .place = place,
        .gamma = gamma_of(place),
        .shortcut = stage == 0 ? options_.residual.stage_one : StageOneShortcut::Project};
    builder_.begin_layer(name);
    if (preactivated()) return preactivated_block(x, block);
    x = bottleneck() ? bottleneck_block(x, block) : basic_block(x, block);
    builder_.begin_layer(name + "/relu");
    return relu("", x);
  }

  ValueId stem() {
    builder_.begin_layer("b0");
    const std::int64_t width = net_.widths.stem;
    if (options_.task == Task::Cifar) {
      return norm_relu("norm", "relu", conv("conv", builder_.input(), {width, 3}));
    }
    const Square first = {.out = width, .kernel = 7, .stride = 2, .bias = preactivated()};
    ValueId x = conv("conv", builder_.input(), first);
    if (!preactivated()) x = norm_relu("norm", "relu", x);
    const Extent window = {3, 3};
    const Extent stride = {2, 2};
    const Padding pad = options_.padding == PaddingRule::Torch
                            ? same(1)
                            : padding_same(builder_.shape(x), window, stride);
    return builder_.pool("pool", x,
                         {.kind = PoolKind::Max, .kernel = window, .stride = stride, .pad = pad});
  }

  void head(ValueId x) {
    builder_.begin_layer("reduce_mean");
    x = builder_.global_average_pool("", x);
    builder_.begin_layer("fc1");
    x = builder_.dense("", x, {.units = options_.classes, .init = start_.dense});
    builder_.begin_layer("loss");
    builder_.softmax_loss("", x);
  }

  ValueId basic_block(ValueId x, const Block& block) {
    ValueId y = conv("conv1", x, {block.middle, 3, block.stride});
    y = norm_relu("norm1", "relu1", y);
    y = norm("norm2", conv("conv2", y, {block.out, 3}), block.gamma);
    return builder_.add("add", y, shortcut(x, block));
  }

  ValueId bottleneck_block(ValueId x, const Block& block) {
    const bool first = options_.residual.version == ResNetVersion::V1;
    const Square reduced = {block.middle, 1, first ? block.stride : 1};
    const Square middle = {block.middle, 3, first ? 1 : block.stride, net_.groups};
    ValueId y = norm_relu("norm1", "relu1", conv("conv1", x, reduced));
    y = norm_relu("norm2", "relu2", conv("conv2", y, middle));
    y = norm("norm3", conv("conv3", y, {block.out}), block.gamma);
    if (net_.squeeze_ratio > 0) {
      y = squeeze_excite(builder_, "SE", y,
                         {block.out / net_.squeeze_ratio, Activation::Relu, start_.conv});
    }
    return builder_.add("add", y, shortcut(x, block));
  }

  /// As in keras.applications: the projection reads the input of the first convolution and has no
  /// normalization. It and the last convolution have a bias. A later block with a stride adds every
  /// stride-th pixel of its input.
  ValueId preactivated_block(ValueId x, const Block& block) {
    const ValueId activated = norm_relu("norm1", "relu1", x);
    ValueId y = norm_relu("norm2", "relu2", conv("conv1", activated, {block.middle}));
    y = norm_relu("norm3", "relu3", conv("conv2", y, {block.middle, 3, block.stride, net_.groups}));
    y = conv("conv3", y, {.out = block.out, .bias = true});
    ValueId other = x;
    if (block.place == Place::First) {
      other = conv("shortcut_conv", activated,
                   {.out = block.out, .stride = block.stride, .bias = true});
    } else if (block.stride > 1) {
      other = builder_.shortcut_pad("shortcut", x, {.stride = {block.stride, block.stride}});
    }
    return builder_.add("add", y, other);
  }

  /// The first block of every stage projects (B) or pads (A); B projects even if the shapes match,
  /// unless StageOneShortcut::Identity is set. Other blocks add their input. Bottleneck blocks
  /// always use B.
  ValueId shortcut(ValueId x, const Block& block) {
    if (block.place == Place::Later) return x;
    const std::int64_t extra = block.out - builder_.shape(x).c;
    const bool matches = extra == 0 && block.stride == 1;
    if (matches && block.shortcut == StageOneShortcut::Identity) return x;
    if (bottleneck() || options_.shortcut == 'B') {
      const Square projection = {.out = block.out, .stride = block.stride};
      return norm("shortcut_norm", conv("shortcut_conv", x, projection));
    }
    if (matches) return x;
    const std::int64_t before = options_.shortcut_pad == ShortcutPadSide::Both ? extra / 2 : 0;
    return builder_.shortcut_pad("shortcut", x,
                                 {.stride = {block.stride, block.stride},
                                  .channels_before = before,
                                  .channels_after = extra - before});
  }

  /// Padding of a convolution with a stride. With stride 1 all rules equal SAME.
  [[nodiscard]] Padding padding(const Shape& x, Extent window, Extent stride) const {
    const PaddingRule rule = options_.padding;
    const bool same_rule =
        rule == PaddingRule::Same || (rule == PaddingRule::Keras && window.h != 7);
    return same_rule ? padding_same(x, window, stride) : padding_explicit(window);
  }

  ValueId conv(std::string_view name, ValueId x, const Square& square) {
    const Extent window = {square.kernel, square.kernel};
    const Extent stride = {square.stride, square.stride};
    const Shape& shape = builder_.shape(x);
    const Padding pad =
        square.stride == 1 ? padding_same(shape, window, stride) : padding(shape, window, stride);
    return builder_.conv(name, x,
                         {.out_channels = square.out,
                          .kernel = window,
                          .stride = stride,
                          .pad = pad,
                          .groups = square.groups,
                          .bias = square.bias,
                          .init = start_.conv});
  }

  ValueId norm(std::string_view name, ValueId x, Gamma gamma = Gamma::One) {
    const bool zero = gamma == Gamma::Zero;
    if (options_.norm == NormKind::Group) {
      return builder_.group_norm(name, x,
                                 {.groups = options_.groups,
                                  .epsilon = options_.group_norm_epsilon,
                                  .order = options_.group_order,
                                  .zero_gamma = zero});
    }
    return builder_.batch_norm(name, x,
                               {.epsilon = options_.norm_epsilon,
                                .decay = options_.batch_norm_decay,
                                .zero_gamma = zero,
                                .span = options_.batch_norm_span});
  }

  ValueId relu(std::string_view name, ValueId x) {
    return builder_.activation(name, x, {Activation::Relu});
  }

  ValueId norm_relu(std::string_view norm_name, std::string_view relu_name, ValueId x) {
    return relu(relu_name, norm(norm_name, x));
  }

  const ModelOptions& options_;
  const ResidualNet& net_;
  Start start_;
  GraphBuilder builder_;
};

}  // namespace

ResidualTable find_table(std::span<const ResidualTable> tables, const ModelOptions& options,
                         std::string_view remark) {
  std::vector<std::string_view> sizes;
  for (const ResidualTable& table : tables) {
    if (options.block != BlockKind::Auto && options.block != table.block) continue;
    if (table.size == options.size) return table;
    if (sizes.empty() || sizes.back() != table.size) sizes.push_back(table.size);
  }
  fail(ErrorKind::Config, "model {} has no size {}{} for {}; sizes: {}", options.model,
       options.size, remark, options.task == Task::Cifar ? "CIFAR" : "ImageNet", join(sizes, ", "));
}

std::vector<std::string> sizes_of(std::span<const ResidualTable> tables) {
  std::vector<std::string> sizes;
  for (const ResidualTable& table : tables)
    if (sizes.empty() || sizes.back() != table.size) sizes.emplace_back(table.size);
  return sizes;
}

Graph build_residual(const ModelOptions& options, const ResidualNet& net) {
  return Builder(options, net).build();
}

std::vector<NameMap> residual_names() {
  const std::vector<NameRule> torch = {
      {"b0/conv", "conv1"},
      {"b0/norm", "bn1"},
      {"b{}/{}/conv{}", "layer{}.{}.conv{}"},
      {"b{}/{}/norm{}", "layer{}.{}.bn{}"},
      {"b{}/{}/shortcut_conv", "layer{}.{}.downsample.0"},
      {"b{}/{}/shortcut_norm", "layer{}.{}.downsample.1"},
      {"fc1", "fc"},
      {.ours = "post/norm",
       .theirs = "",
       .why = "it has version 2, in which normalization comes before each convolution"}};
  const auto torch_but = [&torch](std::vector<NameRule> rules) {
    rules.insert(rules.end(), torch.begin(), torch.end());
    return rules;
  };
  return {{"torchvision", torch},
          {"timm", torch_but({{"b{}/{}/SE/reduce", "layer{}.{}.se.fc1"},
                              {"b{}/{}/SE/expand", "layer{}.{}.se.fc2"}})},
          {"akamaster", torch_but({{"b{}/{}/shortcut_conv", "layer{}.{}.shortcut.0"},
                                   {"b{}/{}/shortcut_norm", "layer{}.{}.shortcut.1"},
                                   {"fc1", "linear"}})},
          {"keras",
           {{"b0/conv", "conv1_conv"},
            {"b0/norm", "conv1_bn"},
            {"b{}/{}/norm1", "conv{+1}_block{+1}_preact_bn", "post/norm"},
            {"b{}/{}/norm2", "conv{+1}_block{+1}_1_bn", "post/norm"},
            {"b{}/{}/norm3", "conv{+1}_block{+1}_2_bn", "post/norm"},
            {"b{}/{}/norm{}", "conv{+1}_block{+1}_{}_bn"},
            {"b{}/{}/conv{}", "conv{+1}_block{+1}_{}_conv"},
            {"b{}/{}/shortcut_conv", "conv{+1}_block{+1}_0_conv"},
            {"b{}/{}/shortcut_norm", "conv{+1}_block{+1}_0_bn"},
            {"post/norm", "post_bn"},
            {"fc1", "predictions"}},
           /*reads_bgr=*/true}};
}

}  // namespace millrace::models
