// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/keras_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <vector>

#include "core/text.hpp"

namespace millrace::io {
namespace {

constexpr std::string_view kVars = "/vars/";

/// A class of layers and its variables in their order.
struct LayerClass {
  std::string_view name;
  std::size_t rank = 0;  ///< of the first variable
  std::array<std::string_view, 4> variables;
};
constexpr std::array kClasses = std::to_array<LayerClass>(
    {{"conv2d", 4, {"kernel:0", "bias:0"}},
     {"depthwise_conv2d", 4, {"depthwise_kernel:0", "bias:0"}},
     {"dense", 2, {"kernel:0", "bias:0"}},
     {"batch_normalization", 1, {"gamma:0", "beta:0", "moving_mean:0", "moving_variance:0"}}});

/// "conv2d" of "conv2d_12".
std::string_view without_count(std::string_view layer) {
  const std::size_t end = layer.find_last_not_of("0123456789");
  const bool counted = end != std::string_view::npos && layer[end] == '_';
  return counted ? layer.substr(0, end) : layer;
}

std::string layer_of(std::string_view parameter) {
  return std::string(parameter.substr(0, parameter.find('/')));
}
std::string_view variable_of(std::string_view parameter) {
  return parameter.substr(parameter.find('/') + 1);
}

/// The class whose first variable this is, or none.
const LayerClass* class_with_first(const ForeignParameter& parameter) {
  const auto found = std::ranges::find_if(kClasses, [&](const LayerClass& one) {
    return one.variables[0] == variable_of(parameter.name) && one.rank == parameter.shape.size();
  });
  return found == kClasses.end() ? nullptr : &*found;
}

/// The layers in the order of model.layers. Keras sorts by the distance from the output: the
/// shortcut of a block, which is as far as the third convolution and added first, is before it.
std::vector<std::string> in_order_of_keras(const ForeignParameters& parameters) {
  std::vector<std::string> layers;
  for (const ForeignParameter& parameter : parameters.all)
    if (std::string layer = layer_of(parameter.name);
        std::ranges::find(layers, layer) == layers.end())
      layers.push_back(std::move(layer));
  const std::vector<std::string> all = layers;
  for (const std::string& shortcut : all) {
    const std::size_t at = shortcut.find("_0_");
    if (at == std::string::npos) continue;
    std::string third = shortcut;
    third[at + 1] = '3';
    std::erase(layers, shortcut);
    layers.insert(std::ranges::find(layers, third), shortcut);
  }
  return layers;
}

}  // namespace

std::string_view keras_variable(std::string_view layer, std::string_view number) {
  const auto found = std::ranges::find(kClasses, without_count(layer), &LayerClass::name);
  const auto index = parse_number<std::size_t>(number);
  if (found == kClasses.end() || !index || *index >= found->variables.size()) return {};
  return found->variables.at(*index);
}

bool has_numbers(const TensorFile& file) {
  // Every network here begins with a convolution.
  return file.tensors().contains("conv2d/vars/0");
}

void replace_by_numbers(ForeignParameters& parameters) {
  std::map<std::string, const LayerClass*> classes;
  for (const ForeignParameter& parameter : parameters.all)
    if (const LayerClass* const found = class_with_first(parameter))
      classes[layer_of(parameter.name)] = found;
  std::map<std::string, std::string> numbered;
  std::map<std::string_view, int> counts;
  for (const std::string& layer : in_order_of_keras(parameters)) {
    const std::string_view name = classes.at(layer)->name;
    const int before = counts[name]++;
    numbered[layer] = before == 0 ? std::string(name) : fmt::format("{}_{}", name, before);
  }
  for (ForeignParameter& parameter : parameters.all) {
    const std::string layer = layer_of(parameter.name);
    const auto& variables = classes.at(layer)->variables;
    const auto place = std::ranges::find(variables, variable_of(parameter.name));
    parameter.name = fmt::format("{}{}{}", numbered.at(layer), kVars, place - variables.begin());
  }
}

std::string bias_beside(std::string_view kernel) {
  const bool numbered = kernel.find(kVars) != std::string_view::npos;
  return layer_of(kernel) + (numbered ? "/vars/1" : "/bias:0");
}

}  // namespace millrace::io
