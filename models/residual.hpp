// SPDX-License-Identifier: Apache-2.0
//
// What ResNet and ResNeXt share: a stem, stages of residual blocks, a mean and a dense layer. A
// family says how many blocks and how wide; `build_residual` does the rest.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "models/registry.hpp"

namespace millrace::models {

/// One row of the published tables: the number of blocks in each stage (zero: no such stage).
struct ResidualTable {
  std::string_view size;
  BlockKind block = BlockKind::Auto;
  std::array<int, 4> blocks = {};
};

/// The first row with this size and, unless `options.block` is Auto, this kind of block. Error
/// (Config) that lists the sizes when there is none; `remark` stands behind the size in it.
[[nodiscard]] ResidualTable find_table(std::span<const ResidualTable> tables,
                                       const ModelOptions& options, std::string_view remark);

/// Extents of stage 1; each further stage doubles them.
struct ResidualWidths {
  std::int64_t stem = 0;    ///< channels after the stem; a bottleneck block has 4 times as many
  std::int64_t middle = 0;  ///< channels of the 3x3 convolutions
};

struct ResidualNet {
  std::string name;
  ResidualTable table;
  ResidualWidths widths;
  std::int64_t groups = 1;         ///< of the 3x3 convolutions
  std::int64_t squeeze_ratio = 0;  ///< channels of a block to one after its squeeze; 0: no squeeze
};

/// Layers `b0`, `b<stage>/<block>`, `b<stage>/<block>/relu`, `reduce_mean`, `fc1`, `loss`; in
/// version 2 blocks have no layer of their own for the last ReLU, and `post` follows the last.
[[nodiscard]] Graph build_residual(const ModelOptions& options, const ResidualNet& net);

}  // namespace millrace::models
