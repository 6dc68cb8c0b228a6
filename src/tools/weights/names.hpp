// SPDX-License-Identifier: Apache-2.0
//
// weights: parameters on their way to and from other libraries.
//
// Every library has its own names and its own order of a tensor's elements. Here a parameter is
// `b3/1/conv2/kernel` with the elements in the order OHWI; torchvision calls it
// `layer3.1.conv2.weight` and stores OIHW, Keras `conv4_block2_2_conv/kernel:0` and HWIO. A family
// of networks says what libraries call its ops (`Family::names`); this folder makes names and
// orders of parameters of it (names.hpp), reads files as named tensors (tensor_file.hpp), and finds
// out whose names a file has and what network it holds (import.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.hpp"

namespace millrace::io {

/// A library, or a well-known repository, whose names and order of elements a file may have.
enum class WeightStyle {
  Torchvision,
  Timm,       ///< the library pytorch-image-models
  Akamaster,  ///< akamaster/pytorch_resnet_cifar10
  Keras,      ///< keras.applications
  Millrace,   ///< our own names and order, which no library has
};
/// Those of other libraries.
inline constexpr std::array kWeightStyles = {WeightStyle::Torchvision, WeightStyle::Timm,
                                             WeightStyle::Akamaster, WeightStyle::Keras};
/// "torchvision", "timm", "akamaster", "keras", "millrace".
[[nodiscard]] std::string_view name_of(WeightStyle style);

/// A parameter in a file of another library.
struct ForeignParameter {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// The parameters of a network under the library's names.
struct ForeignParameters {
  std::vector<ForeignParameter> all;  ///< in the graph's order
  std::string misfit;                 ///< why the library has no such network, or empty
};
[[nodiscard]] ForeignParameters foreign_parameters(const models::Graph& graph, WeightStyle style);

/// The elements of a parameter in the library's order, from ours, and back. Colors are an order,
/// too: Keras' ResNets read blue, green, red.
[[nodiscard]] std::vector<float> to_foreign(const models::Graph& graph,
                                            const models::Parameter& parameter, WeightStyle style,
                                            std::span<const float> values);
[[nodiscard]] std::vector<float> from_foreign(const models::Graph& graph,
                                              const models::Parameter& parameter, WeightStyle style,
                                              std::span<const float> values);

}  // namespace millrace::io
