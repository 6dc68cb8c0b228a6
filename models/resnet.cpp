// SPDX-License-Identifier: Apache-2.0
//
// ResNet. Version 1.5 (stride in the 3x3): He et al. 2015, "Deep residual learning", tables 1
// (ImageNet: 10, 14, 18, 26, 34, 50, 101, 152, and 200 of the TPU trainer) and 6 (CIFAR: 6n+2
// basic, 9n+2 bottleneck). Version 1 has the stride in the first convolution of a block. Version 2
// (normalization and ReLU first): ImageNet 50, 101, 152. Layers are named by `build_residual`.
#include <array>
#include <span>
#include <string_view>

#include "core/error.hpp"
#include "models/registry.hpp"
#include "models/residual.hpp"

namespace millrace::models {
namespace {

/// Basic nets have 6n+2 layers, bottleneck nets 9n+2. 56 is both; Auto picks the bottleneck net
/// because it comes first.
constexpr std::array<ResidualTable, 13> kCifar = {{{"8", BlockKind::Basic, {1, 1, 1}},
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

constexpr std::array<ResidualTable, 9> kImageNet = {
    {{"10", BlockKind::Basic, {1, 1, 1, 1}},
     {"14", BlockKind::Bottleneck, {1, 1, 1, 1}},
     {"18", BlockKind::Basic, {2, 2, 2, 2}},
     {"26", BlockKind::Bottleneck, {2, 2, 2, 2}},
     {"34", BlockKind::Basic, {3, 4, 6, 3}},
     {"50", BlockKind::Bottleneck, {3, 4, 6, 3}},
     {"101", BlockKind::Bottleneck, {3, 4, 23, 3}},
     {"152", BlockKind::Bottleneck, {3, 8, 36, 3}},
     {"200", BlockKind::Bottleneck, {3, 24, 36, 3}}}};

constexpr std::array<ResidualTable, 3> kVersion2 = {
    {{"50", BlockKind::Bottleneck, {3, 4, 6, 3}},
     {"101", BlockKind::Bottleneck, {3, 4, 23, 3}},
     {"152", BlockKind::Bottleneck, {3, 8, 36, 3}}}};

std::span<const ResidualTable> tables_of(const ModelOptions& options) {
  if (options.residual.version == ResNetVersion::V2) return kVersion2;
  if (options.task == Task::Cifar) return kCifar;
  return kImageNet;
}

std::string_view remark_on(const ModelOptions& options) {
  const bool v2 = options.residual.version == ResNetVersion::V2;
  switch (options.block) {
    case BlockKind::Auto:
      return v2 ? " in version 2" : "";
    case BlockKind::Basic:
      return " with basic blocks";
    case BlockKind::Bottleneck:
      return v2 ? " with bottleneck blocks in version 2" : " with bottleneck blocks";
  }
  return "";
}

void check(const ModelOptions& options) {
  if (options.shortcut != 'A' && options.shortcut != 'B') {
    fail(ErrorKind::Config, "model resnet has no shortcut type {}; types: A, B", options.shortcut);
  }
  if (options.residual.version == ResNetVersion::V2 && options.task == Task::Cifar) {
    fail(ErrorKind::Config, "model resnet has no version 2 for CIFAR; versions: 1.5");
  }
  if (options.residual.version == ResNetVersion::V2 && options.block == BlockKind::Basic) {
    fail(ErrorKind::Config, "model resnet has no basic blocks in version 2; blocks: bottleneck");
  }
}

std::vector<std::string> sizes(Task task) {
  return task == Task::Cifar ? sizes_of(kCifar) : sizes_of(kImageNet);
}

Graph build(const ModelOptions& options) {
  check(options);
  const std::int64_t width = options.task == Task::Cifar ? 16 : 64;
  return build_residual(options,
                        {.name = "resnet-" + options.size,
                         .table = find_table(tables_of(options), options, remark_on(options)),
                         .widths = {.stem = width, .middle = width}});
}

}  // namespace

Family resnet_family() {
  return {.name = "resnet",
          .run_name = "RN{}",
          .build = build,
          .sizes = sizes,
          .imagenet = {.size = "18", .recipe = imagenet_recipe(4)},
          .cifar = {.size = "20",
                    .recipe = cifar_recipe(32, 160, -6),
                    .norm = NormKind::Batch,
                    .groups = 16,
                    .image = 32},
          .names = residual_names()};
}

}  // namespace millrace::models
