// SPDX-License-Identifier: Apache-2.0
//
// SqueezeNet 1.0 (Iandola et al. 2016, table 1) without normalization, optionally with the simple
// bypass of that paper. Layers have the published names: `conv1`, `pool1`, `fire2` ... `fire9` with
// `pool4` and `pool8` in between, `drop9`, `conv10` and `pool10` (ImageNet) or `fc10` (CIFAR),
// `loss`.
//
// For CIFAR the head is that of the IPU trainer: two units per class with a ReLU, which are used as
// 2 * options.classes logits.
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "models/registry.hpp"

namespace millrace::models {
namespace {

/// A row of the table: squeezes to `squeeze` channels, expands to twice `expand`. `bypass` marks
/// the modules whose input and output have the same shape.
struct Fire {
  std::string_view name;
  std::int64_t squeeze = 0;
  std::int64_t expand = 0;
  Bypass bypass = Bypass::None;
  std::string_view pool_after;  ///< name of the pooling layer; empty: none
};

constexpr std::array<Fire, 8> kFires = {{{"fire2", 16, 64, Bypass::None, ""},
                                         {"fire3", 16, 64, Bypass::Simple, ""},
                                         {"fire4", 32, 128, Bypass::None, "pool4"},
                                         {"fire5", 32, 128, Bypass::Simple, ""},
                                         {"fire6", 48, 192, Bypass::None, ""},
                                         {"fire7", 48, 192, Bypass::Simple, ""},
                                         {"fire8", 64, 256, Bypass::None, "pool8"},
                                         {"fire9", 64, 256, Bypass::Simple, ""}}};

constexpr double kDropoutRate = 0.5;
constexpr Initialiser kGlorot = {.kind = Initialiser::Kind::GlorotUniform};
constexpr Initialiser kNarrow = {.kind = Initialiser::Kind::TruncatedNormal, .scale = 0.01};

/// Units of the last layer. The CIFAR head has two per class.
std::int64_t logits_of(const ModelOptions& options) {
  return options.task == Task::Cifar ? 2 * options.classes : options.classes;
}

class SqueezeNet {
 public:
  explicit SqueezeNet(const ModelOptions& options)
      : options_(options), builder_("squeezenet", options.image, options.classes) {}

  Graph build() && {
    builder_.begin_layer("conv1");
    Conv stem = {.out_channels = 96,
                 .kernel = {7, 7},
                 .stride = {2, 2},
                 .bias = options_.squeezenet.bias,
                 .init = kGlorot};
    if (!like_torch()) stem.pad = padding_same(options_.image, stem.kernel, stem.stride);
    ValueId x = builder_.activation("relu", builder_.conv("conv", builder_.input(), stem),
                                    {Activation::Relu});
    x = pool("pool1", x);
    for (const Fire& module : kFires) {
      x = fire(x, module);
      if (!module.pool_after.empty()) x = pool(module.pool_after, x);
    }
    head(x);
    return std::move(builder_).build();
  }

 private:
  ValueId fire(ValueId x, const Fire& module) {
    builder_.begin_layer(std::string(module.name));
    const ValueId squeezed = conv_relu("squeeze1x1", "relu_squeeze1x1", x,
                                       {.out_channels = module.squeeze, .init = kGlorot});
    const ValueId one = conv_relu("expand1x1", "relu_expand1x1", squeezed,
                                  {.out_channels = module.expand, .init = kGlorot});
    const ValueId three =
        conv_relu("expand3x3", "relu_expand3x3", squeezed,
                  {.out_channels = module.expand, .kernel = {3, 3}, .init = kGlorot});
    const ValueId y = builder_.concat("concat", {one, three});
    const bool adds =
        options_.squeezenet.bypass == Bypass::Simple && module.bypass == Bypass::Simple;
    return adds ? builder_.add("add", y, x) : y;
  }

  void head(ValueId x) {
    builder_.begin_layer("drop9");
    x = builder_.dropout("", x, {.rate = kDropoutRate});
    x = options_.task == Task::Cifar ? dense_head(x) : conv_head(x);
    builder_.begin_layer("loss");
    builder_.softmax_loss("", x, {.logits = logits_of(options_)});
  }

  ValueId conv_head(ValueId x) {
    builder_.begin_layer("conv10");
    x = conv_relu("conv", "relu", x, {.out_channels = options_.classes, .init = kNarrow});
    builder_.begin_layer("pool10");
    return builder_.global_average_pool("", x);  // the table's 13x13 window at 224 pixels
  }

  ValueId dense_head(ValueId x) {
    builder_.begin_layer("fc10");
    x = builder_.dense("dense", x, {.units = logits_of(options_)});
    return builder_.activation("relu", x, {Activation::Relu});
  }

  ValueId pool(std::string_view layer, ValueId x) {
    builder_.begin_layer(std::string(layer));
    const Shape& shape = builder_.shape(x);
    Padding pad;
    if (like_torch()) pad = {.bottom = rest_behind(shape.h), .right = rest_behind(shape.w)};
    return builder_.pool("", x,
                         {.kind = PoolKind::Max, .kernel = {3, 3}, .stride = {2, 2}, .pad = pad});
  }

  [[nodiscard]] bool like_torch() const { return options_.padding == PaddingRule::Torch; }

  /// Pixels that are missing for the last window of a pool, which begins within the image.
  static std::int64_t rest_behind(std::int64_t pixels) { return pixels > 3 ? (pixels - 3) % 2 : 0; }

  ValueId conv_relu(std::string_view name, std::string_view relu_name, ValueId x, Conv conv) {
    conv.pad = padding_same(builder_.shape(x), conv.kernel, conv.stride);
    conv.bias = options_.squeezenet.bias;
    return builder_.activation(relu_name, builder_.conv(name, x, conv), {Activation::Relu});
  }

  const ModelOptions& options_;
  GraphBuilder builder_;
};

std::vector<std::string> sizes(Task) { return {"1.0"}; }

Graph build(const ModelOptions& options) {
  if (options.size != "1.0") {
    fail(ErrorKind::Config, "model squeezenet has no size {}; sizes: 1.0", options.size);
  }
  return SqueezeNet(options).build();
}

/// torchvision counts fires and pools: features.0 is conv1, features.1 its ReLU, features.2 a pool.
std::vector<NameRule> torchvision_names() {
  std::vector<NameRule> rules = {{"conv1/conv", "features.0"}, {"conv10/conv", "classifier.1"}};
  int at = 3;
  for (const Fire& fire : kFires) {
    rules.push_back(
        {fmt::format("{}/squeeze1x1", fire.name), fmt::format("features.{}.squeeze", at)});
    for (const char* window : {"1x1", "3x3"})
      rules.push_back({fmt::format("{}/expand{}", fire.name, window),
                       fmt::format("features.{}.expand{}", at, window)});
    at += fire.pool_after.empty() ? 1 : 2;
  }
  return rules;
}

}  // namespace

Family squeezenet_family() {
  return {.name = "squeezenet",
          .run_name = "SN",
          .build = build,
          .sizes = sizes,
          .imagenet = {.size = "1.0", .recipe = imagenet_recipe(2)},
          .cifar = {.size = "1.0", .recipe = cifar_recipe(128, 160, -10), .image = 32},
          .normed = false,
          .names = {{"torchvision", torchvision_names()}}};
}

}  // namespace millrace::models
