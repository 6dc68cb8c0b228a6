// SPDX-License-Identifier: Apache-2.0
//
// The common part of ResNet and ResNeXt: a stem, stages of residual blocks, a mean and a dense
// layer. A family gives the number and width of its blocks; `build_residual` builds the network.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.hpp"
#include "models/model_options.hpp"
#include "models/registry.hpp"

namespace millrace::models {

/// One row of the published tables: the number of blocks in each stage (zero: no such stage).
struct ResidualTable {
  std::string_view size;
  BlockKind block = BlockKind::Auto;
  std::array<int, 4> blocks = {};
};

/// The first row with the size and, unless `options.block` is Auto, the kind of block of `options`.
/// Errors: Config if there is none, with the known sizes; `remark` follows the size in the message.
[[nodiscard]] ResidualTable find_table(std::span<const ResidualTable> tables,
                                       const ModelOptions& options, std::string_view remark);

/// The sizes in a table, each once.
[[nodiscard]] std::vector<std::string> sizes_of(std::span<const ResidualTable> tables);

/// Widths of stage 1; each later stage doubles them.
struct ResidualWidths {
  std::int64_t stem = 0;    ///< channels after the stem; a bottleneck block has 4 times as many
  std::int64_t middle = 0;  ///< channels of the 3x3 convolutions
};

struct ResidualNet {
  std::string name;
  ResidualTable table;
  ResidualWidths widths;
  std::int64_t groups = 1;         ///< of the 3x3 convolutions
  std::int64_t squeeze_ratio = 0;  ///< channels per squeezed channel; 0: no squeeze-and-excite
};

/// Layers `b0`, `b<stage>/<block>`, `b<stage>/<block>/relu`, `reduce_mean`, `fc1`, `loss`. In
/// version 2 there are no layers `b<stage>/<block>/relu`, and layer `post` follows the last block.
[[nodiscard]] Graph build_residual(const ModelOptions& options, const ResidualNet& net);

/// The names of these layers in torchvision, timm, akamaster/pytorch_resnet_cifar10 and Keras.
[[nodiscard]] std::vector<NameMap> residual_names();

}  // namespace millrace::models
