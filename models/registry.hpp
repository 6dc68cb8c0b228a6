// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/graph.hpp"

namespace millrace::models {

enum class NormKind { Batch, Group };
/// Family of published tables: residual nets of 32x32 images, or of ImageNet.
enum class Task { Cifar, ImageNet };
enum class BlockKind { Auto, Basic, Bottleneck };
/// Where shortcut A puts its zero channels: all after (the seed trainer), or half on each side.
enum class ShortcutPadSide { End, Both };

/// Order inside the blocks of a ResNet. V15: convolution, norm, ReLU, and ReLU after the sum (He et
/// al. 2015), stride in the 3x3. V2: norm and ReLU before each convolution (He et al. 2016), as
/// keras.applications builds ResNet50V2.
enum class ResNetVersion { V15, V2 };
/// What the first block of stage 1 adds where its shapes match already: a projection all the same
/// (the seed trainer), or its input (torchvision).
enum class StageOneShortcut { Project, Identity };
/// Zero pixels around the strided windows of a ResNet or ResNeXt.
///   Ipu    convolutions k/2 on each side, stem pool TensorFlow's SAME
///   Torch  convolutions and stem pool k/2 on each side
///   Same   TensorFlow's SAME everywhere (Habana's ResNeXt, NVIDIA since 2020)
///   Keras  stem convolution k/2 on each side, all else SAME (Habana's Keras ResNet)
enum class PaddingRule { Ipu, Torch, Same, Keras };
/// How a ResNet or ResNeXt starts, by the trainer that does so. VS: VarianceScaling.
///   Ipu          VS(1, fan in), fc Glorot; gamma 0 in the last norm of bottlenecks that add their
///                input
///   Nvidia       VS(2, fan out), fc too;  NvidiaFanIn  VS(2, fan in), fc too
///   Habana       VS(1, fan in), fc Glorot
///   HabanaKeras  VS(2, fan in), fc N(0, 0.01)
///   Surfsara     VS(1, fan in), fc N(0, 0.01); gamma 0 in the last norm of every block
///   KerasApplications  Glorot everywhere
enum class InitialiserSet {
  Ipu,
  Nvidia,
  NvidiaFanIn,
  Habana,
  HabanaKeras,
  Surfsara,
  KerasApplications
};
enum class Widening { None, Widenet };
enum class SqueezeExcitation { Off, On };
enum class Bypass { None, Simple };

/// Of ResNet and ResNeXt.
struct ResidualOptions {
  ResNetVersion version = ResNetVersion::V15;
  StageOneShortcut stage_one = StageOneShortcut::Project;
  PaddingRule padding = PaddingRule::Ipu;
  InitialiserSet initialisers = InitialiserSet::Ipu;
  friend bool operator==(const ResidualOptions&, const ResidualOptions&) = default;
};

struct ResNeXtOptions {
  std::int64_t groups = 32;            ///< of the 3x3 convolutions
  std::int64_t group_dim = 4;          ///< channels of a group in stage 1
  Widening widening = Widening::None;  ///< Widenet: 64 channels after the stem of a CIFAR net
  SqueezeExcitation squeeze_excitation = SqueezeExcitation::Off;
  friend bool operator==(const ResNeXtOptions&, const ResNeXtOptions&) = default;
};

struct SqueezeNetOptions {
  Bypass bypass = Bypass::None;
  friend bool operator==(const SqueezeNetOptions&, const SqueezeNetOptions&) = default;
};

/// What is not set comes from the table of sizes.
struct EfficientNetOptions {
  std::optional<double> width;         ///< coefficient of all channel counts
  std::optional<double> depth;         ///< coefficient of the blocks in a stage
  std::optional<double> dropout_rate;  ///< before the logits; 0: none
  double block_survival = 0.8;         ///< of the last block; 1: no drop-connect
  double norm_epsilon = 1e-3;          ///< of batch norm and of group norm
  std::int64_t expand_ratio = 6;
  std::int64_t group_dim = 1;      ///< channels of a group in the kxk convolutions; 1: depthwise
  std::int64_t depth_divisor = 8;  ///< of which channel counts are multiples
  std::int64_t top_width = 1280;   ///< channels before the logits at width 1; 0: no such layer
  SqueezeExcitation squeeze_excitation = SqueezeExcitation::On;
  ActivationKind activation = ActivationKind::Swish;
  friend bool operator==(const EfficientNetOptions&, const EfficientNetOptions&) = default;
};

/// Everything that decides which network is built; the command line fills it.
struct ModelOptions {
  std::string model = "resnet";
  std::string size = "20";
  Task task = Task::Cifar;
  std::int64_t classes = 10;
  Shape image = {32, 32, 3};
  NormKind norm = NormKind::Batch;
  std::int64_t groups = 32;  ///< of group norm
  GroupOrder group_order = GroupOrder::Contiguous;
  double group_norm_epsilon = 1.53e-5;
  double batch_norm_decay = 0.97;
  double norm_epsilon = 1e-5;         ///< of batch norm
  std::int64_t batch_norm_span = 1;   ///< replicas that share the statistics of a micro-batch
  BlockKind block = BlockKind::Auto;  ///< Auto: what the table of sizes says; 56 is bottleneck
  char shortcut = 'A';                ///< 'A' or 'B'; the caller resolves the task's default
  ShortcutPadSide shortcut_pad = ShortcutPadSide::End;
  ResidualOptions residual;
  ResNeXtOptions resnext;
  SqueezeNetOptions squeezenet;
  EfficientNetOptions efficientnet;
  friend bool operator==(const ModelOptions&, const ModelOptions&) = default;
};

/// The seed trainer's defaults for a model and task: size, classes, image, norm and its groups,
/// shortcut. Unknown models end with Error(Config) that lists what there is.
[[nodiscard]] ModelOptions default_options(std::string_view model, Task task);

/// Builds the network. Unknown models or sizes end with Error(Config) that lists what there is.
[[nodiscard]] Graph build_model(const ModelOptions& options);

}  // namespace millrace::models
