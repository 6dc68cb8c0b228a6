// SPDX-License-Identifier: Apache-2.0
//
// ResNeXt, a residual network with grouped 3x3 convolutions: Xie et al. 2017, "Aggregated residual
// transformations", table 1 (ImageNet: 14, 26, 50, 101, 152; CIFAR: 11, 29, 38, 47, 56, 65). Layers
// are named by `build_residual`; squeeze-and-excite ops are `b<stage>/<block>/SE...`.
#include <array>
#include <span>

#include "core/error.hpp"
#include "models/graph.hpp"
#include "models/registry.hpp"
#include "models/residual.hpp"

namespace millrace::models {
namespace {

constexpr std::array<ResidualTable, 5> kImageNet = {
    {{"14", BlockKind::Bottleneck, {1, 1, 1, 1}},
     {"26", BlockKind::Bottleneck, {2, 2, 2, 2}},
     {"50", BlockKind::Bottleneck, {3, 4, 6, 3}},
     {"101", BlockKind::Bottleneck, {3, 4, 23, 3}},
     {"152", BlockKind::Bottleneck, {3, 8, 36, 3}}}};

/// 9n+2 layers.
constexpr std::array<ResidualTable, 6> kCifar = {{{"11", BlockKind::Bottleneck, {1, 1, 1}},
                                                  {"29", BlockKind::Bottleneck, {3, 3, 3}},
                                                  {"38", BlockKind::Bottleneck, {4, 4, 4}},
                                                  {"47", BlockKind::Bottleneck, {5, 5, 5}},
                                                  {"56", BlockKind::Bottleneck, {6, 6, 6}},
                                                  {"65", BlockKind::Bottleneck, {7, 7, 7}}}};

/// Channels per squeezed channel, as in NVIDIA's SE-ResNeXt.
constexpr std::int64_t kSqueezeRatio = 16;

void check(const ModelOptions& options) {
  const ResNeXtOptions& resnext = options.resnext;
  if (options.block == BlockKind::Basic) {
    fail(ErrorKind::Config, "model resnext has no basic blocks; blocks: bottleneck");
  }
  if (options.residual.version != ResNetVersion::V15) {
    fail(ErrorKind::Config, "model resnext has no version 1 or 2; versions: 1.5");
  }
  if (resnext.groups < 1 || resnext.group_dim < 1) {
    fail(ErrorKind::Config, "model resnext: {} groups of {} channels: both must be at least 1",
         resnext.groups, resnext.group_dim);
  }
  if (resnext.groups > kMostChannels || resnext.group_dim > kMostChannels) {
    fail(ErrorKind::Config, "model resnext: {} groups of {} channels: both must be at most {}",
         resnext.groups, resnext.group_dim, kMostChannels);
  }
  if (resnext.widening == Widening::Widenet && options.task != Task::Cifar) {
    fail(ErrorKind::Config, "model resnext has no widenet for ImageNet; use it with CIFAR only");
  }
}

std::vector<std::string> sizes(Task task) {
  return task == Task::Cifar ? sizes_of(kCifar) : sizes_of(kImageNet);
}

Graph build(const ModelOptions& options) {
  check(options);
  const ResNeXtOptions& resnext = options.resnext;
  const bool cifar = options.task == Task::Cifar;
  const bool wide = resnext.widening == Widening::Widenet;
  const std::span<const ResidualTable> tables =
      cifar ? std::span<const ResidualTable>(kCifar) : std::span<const ResidualTable>(kImageNet);
  const bool squeeze = resnext.squeeze_excitation == SqueezeExcitation::On;
  return build_residual(options, {.name = "resnext-" + options.size,
                                  .table = find_table(tables, options, ""),
                                  .widths = {.stem = cifar && !wide ? 16 : 64,
                                             .middle = resnext.groups * resnext.group_dim},
                                  .groups = resnext.groups,
                                  .squeeze_ratio = squeeze ? kSqueezeRatio : 0});
}

}  // namespace

Family resnext_family() {
  return {.name = "resnext",
          .run_name = "RNX{}",
          .build = build,
          .sizes = sizes,
          .imagenet = {.size = "14", .recipe = imagenet_recipe(1)},
          .cifar = {.size = "11",
                    .recipe = cifar_recipe(8, 160, -6),
                    .norm = NormKind::Batch,
                    .groups = 16,
                    .image = 32},
          .names = residual_names()};
}

}  // namespace millrace::models
