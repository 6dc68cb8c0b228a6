// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/graph.hpp"
#include "models/model_options.hpp"
#include "tools/weights/keras.hpp"
#include "tools/weights/names.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::io {

/// A parameter's value in canonical order (OHWI, [units][in], [C]).
struct ImportedParameter {
  std::string name;
  std::vector<float> values;
};

/// What a file holds: a network whose parameters have the names and shapes of its tensors.
struct Identified {
  WeightStyle style = WeightStyle::Torchvision;
  models::ModelOptions model;
  KerasInput input = {};  ///< what a file of Keras says besides its tensors
};
/// "a resnet-20 for CIFAR with 10 classes, as in akamaster".
[[nodiscard]] std::string to_string(const Identified& found);

/// Sets batch normalization, and the padding, epsilon, side of zero channels and order of strides
/// of the library's own networks, which no shape shows.
void set_as_in(models::ModelOptions& options, WeightStyle style);

/// Looks among all networks that can be built for those that have exactly these tensors. Padding,
/// epsilon and the order of strides, which no shape shows, are those of the library. `styles`: the
/// libraries in question. The first of several that fit is taken. Errors: Data if none fits, with
/// the library whose names they are, or with all in which the nearest network differs; or as
/// keras_input().
[[nodiscard]] Identified identify(const TensorFile& file, std::span<const WeightStyle> styles);

/// The parameters of `graph`, in its order, from tensors with the library's names, as NamedTensors
/// takes them. Every parameter must be found with its shape and every tensor be used, except
/// counters of batches. Biases of convolutions before a batch normalization are taken into its
/// running mean, and Keras' order of colors, BGR, is turned. Errors: Data, naming the tensor, both
/// shapes, and the closest match.
[[nodiscard]] std::vector<ImportedParameter> import_weights(const TensorFile& file,
                                                            const models::Graph& graph,
                                                            WeightStyle style);

/// The same from tensors with millrace's own names and order.
[[nodiscard]] std::vector<ImportedParameter> import_own_weights(const TensorFile& file,
                                                                const models::Graph& graph);

/// The first library that gives the network's parameters the names and shapes of all these tensors;
/// millrace, if there is none.
[[nodiscard]] WeightStyle find_style(const TensorFile& file, const models::Graph& graph);

}  // namespace millrace::io
