// SPDX-License-Identifier: Apache-2.0
#include "io/weights/libraries.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace millrace::io {

using models::ModelOptions;
using models::Task;

void set_as_in(ModelOptions& options, WeightStyle style) {
  const bool keras = style == WeightStyle::Keras;
  // torchvision took its large EfficientNets from TensorFlow, timm trained its own.
  const bool from_tensorflow = keras || (style == WeightStyle::Torchvision && options.size >= "B5");
  options.norm = models::NormKind::Batch;
  options.padding = keras ? models::PaddingRule::Same : models::PaddingRule::Torch;
  options.norm_epsilon = keras ? 1.001e-5 : 1e-5;
  options.efficientnet.norm_epsilon = from_tensorflow ? 1e-3 : 1e-5;
  options.shortcut_pad = models::ShortcutPadSide::Both;
  if (keras && options.model == "resnet") {
    options.padding = models::PaddingRule::Torch;
    options.residual.version = models::ResNetVersion::V1;
  }
}

std::string why_absent(const ModelOptions& options, WeightStyle style) {
  const std::string_view library = name_of(style);
  const bool cifar = options.task == Task::Cifar;
  if (style == WeightStyle::Akamaster) {
    if (!cifar || options.model != "resnet")
      return fmt::format("{} has no {}, only ResNets for the images of CIFAR", library,
                         options.model + '-' + options.size);
    return {};
  }
  if (cifar) return fmt::format("{} has no networks for the images of CIFAR", library);
  constexpr std::array<std::string_view, 3> kKeras = {"50", "101", "152"};
  if (style == WeightStyle::Keras && options.model == "resnet" &&
      std::ranges::find(kKeras, options.size) == kKeras.end())
    return fmt::format("{} has no ResNet-{}", library, options.size);
  if (style == WeightStyle::Keras && options.model == "resnext")
    return fmt::format("{} has no ResNeXt", library);
  return {};
}

ModelOptions own_network(ModelOptions options, WeightStyle style) {
  const bool akamaster = style == WeightStyle::Akamaster;
  const bool second = options.residual.version == models::ResNetVersion::V2;
  options.residual.version = models::ResNetVersion::V15;
  set_as_in(options, style);
  // Keras has ResNet50 and ResNet50V2; the names show which.
  if (second && style == WeightStyle::Keras) options.residual.version = models::ResNetVersion::V2;
  options.block = akamaster ? models::BlockKind::Basic : models::BlockKind::Auto;
  if (!akamaster) options.shortcut = 'B';
  options.residual.stage_one = models::StageOneShortcut::Identity;
  options.resnext.widening = models::Widening::None;
  options.squeezenet = {.bypass = models::Bypass::None, .bias = true};
  const double epsilon = options.efficientnet.norm_epsilon;
  options.efficientnet = {};
  options.efficientnet.norm_epsilon = epsilon;
  return options;
}

}  // namespace millrace::io
