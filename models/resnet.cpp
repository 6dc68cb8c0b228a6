// SPDX-License-Identifier: Apache-2.0
#include "models/resnet.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace millrace::models {
namespace {

/// One row of the published tables: the number of blocks in each stage (zero: no such stage).
struct Table {
  std::string_view size;
  BlockKind block;
  std::array<int, 4> blocks;
};

/// Basic nets have 6n+2 layers, bottleneck nets 9n+2. 56 is both; the bottleneck one comes first
/// and is what Auto means.
constexpr std::array<Table, 13> kCifar = {{{"8", BlockKind::Basic, {1, 1, 1}},
                                           {"11", BlockKind::Bottleneck, {1, 1, 1}},
                                           {"14", BlockKind::Basic, {2, 2, 2}},
                                           {"20", BlockKind::Basic, {3, 3, 3}},
                                           {"29", BlockKind::Bottleneck, {3, 3, 3}},
                                           {"32", BlockKind::Basic, {5, 5, 5}},
                                           {"38", BlockKind::Bottleneck, {4, 4, 4}},
                                           {"44", BlockKind::Basic, {7, 7, 7}},
                                           {"47", BlockKind::Bottleneck, {5, 5, 5}},
                                           {"56", BlockKind::Bottleneck, {6, 6, 6}},
                                           {"56", BlockKind::Basic, {9, 9, 9}},
                                           {"65", BlockKind::Bottleneck, {7, 7, 7}},
                                           {"110", BlockKind::Basic, {18, 18, 18}}}};

constexpr std::array<Table, 8> kImageNet = {{{"10", BlockKind::Basic, {1, 1, 1, 1}},
                                             {"14", BlockKind::Bottleneck, {1, 1, 1, 1}},
                                             {"18", BlockKind::Basic, {2, 2, 2, 2}},
                                             {"26", BlockKind::Bottleneck, {2, 2, 2, 2}},
                                             {"34", BlockKind::Basic, {3, 4, 6, 3}},
                                             {"50", BlockKind::Bottleneck, {3, 4, 6, 3}},
                                             {"101", BlockKind::Bottleneck, {3, 4, 23, 3}},
                                             {"152", BlockKind::Bottleneck, {3, 8, 36, 3}}}};

std::string_view block_text(BlockKind block) {
  switch (block) {
    case BlockKind::Auto:
      return "";
    case BlockKind::Basic:
      return " with basic blocks";
    case BlockKind::Bottleneck:
      return " with bottleneck blocks";
  }
  return "";
}

Table find_table(const ModelOptions& options) {
  const bool cifar = options.task == Task::Cifar;
  const std::span<const Table> tables =
      cifar ? std::span<const Table>(kCifar) : std::span<const Table>(kImageNet);
  std::vector<std::string_view> sizes;
  for (const Table& table : tables) {
    if (options.block != BlockKind::Auto && options.block != table.block) continue;
    if (table.size == options.size) return table;
    if (sizes.empty() || sizes.back() != table.size) sizes.push_back(table.size);
  }
  fail(ErrorKind::Config, "model resnet has no size {}{} for {}; sizes: {}", options.size,
       block_text(options.block), cifar ? "CIFAR" : "ImageNet", fmt::join(sizes, ", "));
}

class ResNet {
 public:
  ResNet(const ModelOptions& options, const Table& table)
      : options_(options),
        table_(table),
        builder_("resnet-" + options.size, options.image, options.classes) {}

  Graph build() && {
    ValueId x = stem();
    std::int64_t width = first_width();
    for (std::size_t stage = 0; stage < table_.blocks.size(); ++stage, width *= 2) {
      for (int i = 0; i < table_.blocks[stage]; ++i) {
        const std::string name = fmt::format("b{}/{}", stage + 1, i);
        const Block block = {.width = width,
                             .stride = stage > 0 && i == 0 ? 2 : 1,
                             .place = i == 0 ? Place::First : Place::Later};
        builder_.begin_layer(name);
        x = table_.block == BlockKind::Basic ? basic_block(x, block) : bottleneck_block(x, block);
        builder_.begin_layer(name + "/relu");
        x = relu("", x);
      }
    }
    head(x);
    return std::move(builder_).build();
  }

 private:
  enum class Place { First, Later };  ///< of a block in its stage
  enum class Gamma { One, Zero };
  struct Block {
    std::int64_t width = 0;  ///< channels of its 3x3 convolutions
    std::int64_t stride = 1;
    Place place = Place::Later;
  };

  [[nodiscard]] std::int64_t first_width() const { return options_.task == Task::Cifar ? 16 : 64; }

  ValueId stem() {
    builder_.begin_layer("b0");
    if (options_.task == Task::Cifar) {
      return norm_relu("norm", "relu", conv("conv", builder_.input(), first_width(), 3, 1));
    }
    ValueId x = norm_relu("norm", "relu", conv("conv", builder_.input(), first_width(), 7, 2));
    const Extent window = {3, 3};
    const Extent stride = {2, 2};
    return builder_.pool("pool", x,
                         {.kind = PoolKind::Max,
                          .kernel = window,
                          .stride = stride,
                          .pad = padding_same(builder_.shape(x), window, stride)});
  }

  void head(ValueId x) {
    builder_.begin_layer("reduce_mean");
    x = builder_.global_average_pool("", x);
    builder_.begin_layer("fc1");
    x = builder_.dense("", x, {.units = options_.classes});
    builder_.begin_layer("loss");
    builder_.softmax_loss("", x);
  }

  ValueId basic_block(ValueId x, const Block& block) {
    ValueId y = norm_relu("norm1", "relu1", conv("conv1", x, block.width, 3, block.stride));
    y = norm("norm2", conv("conv2", y, block.width, 3, 1));
    return builder_.add("add", y, shortcut(x, block.width, block));
  }

  ValueId bottleneck_block(ValueId x, const Block& block) {
    const std::int64_t out = 4 * block.width;
    // Only where the shortcut is the identity does a zero gamma make the whole block one.
    const Gamma gamma = block.place == Place::First ? Gamma::One : Gamma::Zero;
    ValueId y = norm_relu("norm1", "relu1", conv("conv1", x, block.width, 1, 1));
    y = norm_relu("norm2", "relu2", conv("conv2", y, block.width, 3, block.stride));
    y = norm("norm3", conv("conv3", y, out, 1, 1), gamma);
    return builder_.add("add", y, shortcut(x, out, block));
  }

  /// The first block of every stage projects (B), even where the shapes match already, or pads (A);
  /// the other blocks add what came in. Bottleneck blocks know B only.
  ValueId shortcut(ValueId x, std::int64_t out, const Block& block) {
    if (block.place == Place::Later) return x;
    if (table_.block == BlockKind::Bottleneck || options_.shortcut == 'B') {
      return norm("shortcut_norm", conv("shortcut_conv", x, out, 1, block.stride));
    }
    const std::int64_t extra = out - builder_.shape(x).c;
    if (extra == 0 && block.stride == 1) return x;
    const std::int64_t before = options_.shortcut_pad == ShortcutPadSide::Both ? extra / 2 : 0;
    return builder_.shortcut_pad("shortcut", x,
                                 {.stride = {block.stride, block.stride},
                                  .channels_before = before,
                                  .channels_after = extra - before});
  }

  ValueId conv(std::string_view name, ValueId x, std::int64_t out, std::int64_t kernel,
               std::int64_t stride) {
    const Extent window = {kernel, kernel};
    const Padding pad =
        stride == 1 ? padding_same(builder_.shape(x), window, {1, 1}) : padding_explicit(window);
    return builder_.conv(
        name, x, {.out_channels = out, .kernel = window, .stride = {stride, stride}, .pad = pad});
  }

  ValueId norm(std::string_view name, ValueId x, Gamma gamma = Gamma::One) {
    const bool zero = gamma == Gamma::Zero;
    if (options_.norm == NormKind::Group) {
      return builder_.group_norm(name, x, {.groups = options_.groups, .zero_gamma = zero});
    }
    return builder_.batch_norm(
        name, x,
        {.epsilon = options_.norm_epsilon, .decay = options_.batch_norm_decay, .zero_gamma = zero});
  }

  ValueId relu(std::string_view name, ValueId x) {
    return builder_.activation(name, x, {ActivationKind::Relu});
  }

  ValueId norm_relu(std::string_view norm_name, std::string_view relu_name, ValueId x) {
    return relu(relu_name, norm(norm_name, x));
  }

  const ModelOptions& options_;
  Table table_;
  GraphBuilder builder_;
};

}  // namespace

Graph build_resnet(const ModelOptions& options) {
  if (options.shortcut != 'A' && options.shortcut != 'B') {
    fail(ErrorKind::Config, "model resnet has no shortcut type {}; types: A, B", options.shortcut);
  }
  return ResNet(options, find_table(options)).build();
}

}  // namespace millrace::models
