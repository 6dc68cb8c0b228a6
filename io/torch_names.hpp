// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "models/graph.hpp"

namespace millrace::io {

/// A parameter's value in canonical order (OHWI, [units][in], [C]).
struct ImportedParameter {
  std::string name;
  std::vector<float> values;
};

/// torchvision's name of a parameter of a residual network (ResNet, ResNeXt): `b3/1/conv2/kernel`
/// is `layer3.1.conv2.weight`, `b3/0/shortcut_norm/moving_mean` is
/// `layer3.0.downsample.1.running_mean`. Errors: Config, if torchvision has no such layer.
[[nodiscard]] std::string torch_name(const models::Graph& graph,
                                     const models::Parameter& parameter);

/// Maps a PyTorch state dictionary (torchvision's names, or those of the common CIFAR ResNet
/// repositories: conv1, bn1, layer<n>.<i>.conv<k>/bn<k>/downsample|shortcut.{0,1}, fc|linear, all
/// optionally prefixed with `module.`) to the parameters of `graph`, in its order, and converts
/// OIHW to OHWI. Every parameter of the graph must be found with its shape, and every tensor of the
/// file used (except num_batches_tracked); otherwise Error(Data) names the tensor, both shapes, and
/// the closest match.
[[nodiscard]] std::vector<ImportedParameter> import_torch(const SafeTensorsFile& file,
                                                          const models::Graph& graph);

}  // namespace millrace::io
