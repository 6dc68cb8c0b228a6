// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "models/graph.hpp"

namespace millrace::models {

enum class NormKind { Batch, Group };
/// Family of published tables: residual nets of 32x32 images, or of ImageNet.
enum class Task { Cifar, ImageNet };
enum class BlockKind { Auto, Basic, Bottleneck };
/// Where shortcut A puts its zero channels: all after (the seed trainer), or half on each side.
enum class ShortcutPadSide { End, Both };

/// Everything that decides which network is built; the command line fills it.
struct ModelOptions {
  std::string model = "resnet";
  std::string size = "20";
  Task task = Task::Cifar;
  std::int64_t classes = 10;
  Shape image = {32, 32, 3};
  NormKind norm = NormKind::Batch;
  std::int64_t groups = 32;  ///< of group norm
  double batch_norm_decay = 0.97;
  double norm_epsilon = 1e-5;         ///< of batch norm; group norm uses 1.53e-5
  BlockKind block = BlockKind::Auto;  ///< Auto: what the table of sizes says; 56 is bottleneck
  char shortcut = 'A';                ///< 'A' or 'B'; the caller resolves the task's default
  ShortcutPadSide shortcut_pad = ShortcutPadSide::End;
  friend bool operator==(const ModelOptions&, const ModelOptions&) = default;
};

/// Builds the network. Unknown models or sizes end with Error(Config) that lists what there is.
[[nodiscard]] Graph build_model(const ModelOptions& options);

}  // namespace millrace::models
