// SPDX-License-Identifier: Apache-2.0
//
// The options that define a network. The command line sets them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/op.hpp"

namespace millrace::models {

enum class NormKind { Batch, Group };
/// Which of the published networks is built: the one for 32x32 images, or the one for ImageNet.
enum class Task { Cifar, ImageNet };
enum class BlockKind { Auto, Basic, Bottleneck };
/// Where shortcut A adds its zero channels: all at the end (the IPU trainer), or half on each side.
enum class ShortcutPadSide { End, Both };

/// Order of ops in the blocks of a ResNet. V15: convolution, normalization, ReLU, with a ReLU after
/// the sum (He et al. 2015) and the stride in the 3x3 convolution. V2: normalization and ReLU
/// before each convolution (He et al. 2016), as in ResNet50V2 of keras.applications. V1: as V15,
/// with the stride in the first convolution of a bottleneck block, as in the paper and in ResNet50
/// of keras.applications.
enum class ResNetVersion { V15, V2, V1 };
/// Shortcut of the first block of stage 1 if its shapes match already: a projection anyway (the IPU
/// trainer), or the identity (torchvision).
enum class StageOneShortcut { Project, Identity };
/// Padding of the strided windows of a ResNet or ResNeXt.
///   Ipu    convolutions k/2 on each side, stem pool TensorFlow's SAME
///   Torch  convolutions and stem pool k/2 on each side
///   Same   TensorFlow's SAME everywhere (Habana's ResNeXt, NVIDIA since 2020)
///   Keras  stem convolution k/2 on each side, others SAME (Habana's Keras ResNet)
/// EfficientNet has SAME, or k/2 on each side with Torch. So has SqueezeNet, but with Torch its
/// stem is not padded, and its pools end with the last pixel even if the window does not fit.
enum class PaddingRule { Ipu, Torch, Same, Keras };
/// Initializers of a ResNet or ResNeXt, named after the trainer that uses them. VS:
/// VarianceScaling.
///   Ipu          VS(1, fan in), fc Glorot; gamma 0 in the last norm of bottleneck blocks with an
///                identity shortcut
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

/// Options of ResNet and ResNeXt.
struct ResidualOptions {
  ResNetVersion version = ResNetVersion::V15;
  StageOneShortcut stage_one = StageOneShortcut::Project;
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
  bool bias = false;  ///< of the convolutions
  friend bool operator==(const SqueezeNetOptions&, const SqueezeNetOptions&) = default;
};

/// Values that are not set come from the table of sizes.
struct EfficientNetOptions {
  std::optional<double> width = {};         ///< factor of all channel counts
  std::optional<double> depth = {};         ///< factor of the number of blocks in a stage
  std::optional<double> dropout_rate = {};  ///< before the logits; 0: none
  double block_survival = 0.8;              ///< of the last block; 1: no drop-connect
  double norm_epsilon = 1e-3;               ///< of batch and group normalization
  std::int64_t expand_ratio = 6;
  std::int64_t group_dim = 1;      ///< channels of a group in the kxk convolutions; 1: depthwise
  std::int64_t depth_divisor = 8;  ///< channel counts are multiples of it
  std::int64_t top_width = 1280;   ///< channels before the logits at width 1; 0: no such layer
  SqueezeExcitation squeeze_excitation = SqueezeExcitation::On;
  Activation activation = Activation::Swish;
  friend bool operator==(const EfficientNetOptions&, const EfficientNetOptions&) = default;
};

struct Graph;

/// A network that no family builds, for example that of a file.
struct GivenNetwork {
  std::shared_ptr<const Graph> graph = {};  ///< none: a family builds the network
  /// Whether the graphs are equal.
  friend bool operator==(const GivenNetwork& a, const GivenNetwork& b);
};
/// The model of such a network, in place of a family's name.
inline constexpr const char* kGivenModel = "onnx";

/// Everything that defines a network.
struct ModelOptions {
  std::string model = "resnet";
  std::string size = "20";
  Task task = Task::Cifar;
  std::int64_t classes = 10;
  Shape image = {32, 32, 3};
  NormKind norm = NormKind::Batch;
  std::int64_t groups = 32;  ///< of group normalization
  GroupOrder group_order = GroupOrder::Contiguous;
  double group_norm_epsilon = 1.53e-5;
  double batch_norm_decay = 0.97;
  double norm_epsilon = 1e-5;         ///< of batch normalization
  std::int64_t batch_norm_span = 1;   ///< replicas that share the statistics of a micro-batch
  BlockKind block = BlockKind::Auto;  ///< Auto: as in the table of sizes; 56 is bottleneck
  char shortcut = 'A';                ///< 'A' or 'B'; the caller sets the task's default
  ShortcutPadSide shortcut_pad = ShortcutPadSide::End;
  PaddingRule padding = PaddingRule::Ipu;
  ResidualOptions residual = {};
  ResNeXtOptions resnext = {};
  SqueezeNetOptions squeezenet = {};
  EfficientNetOptions efficientnet = {};
  GivenNetwork given = {};  ///< if the model is kGivenModel
  friend bool operator==(const ModelOptions&, const ModelOptions&) = default;
};

}  // namespace millrace::models
