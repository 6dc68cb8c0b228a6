// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/keras.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"

namespace millrace::io {
namespace {

using Colours = std::array<double, 3>;

/// What keras.applications has in the place of variances in the weights of ImageNet.
constexpr Colours kPublishedDeviations = {0.229, 0.224, 0.225};

/// value = byte x scale + offset
struct Affine {
  Colours scale = {1.0, 1.0, 1.0};
  Colours offset = {};

  void multiply(const Colours& by) {
    for (std::size_t c = 0; c < by.size(); ++c) {
      scale[c] *= by[c];
      offset[c] *= by[c];
    }
  }
  void add(const Colours& by) {
    for (std::size_t c = 0; c < by.size(); ++c) offset[c] += by[c];
  }
};

Colours reciprocal_roots(Colours values) {
  for (double& value : values) value = 1.0 / std::sqrt(value);
  return values;
}

/// Appends the numbers of a list of lists. Errors: JsonError for anything else.
void append_numbers(const Json& json, std::vector<double>& numbers) {
  if (!json.is_list()) return numbers.push_back(json.as_double());
  for (const Json& item : json.items()) append_numbers(item, numbers);
}

/// One number for each color, or one for all. Errors: JsonError.
Colours colours_of(const std::vector<double>& numbers) {
  if (numbers.size() == 1) return {numbers[0], numbers[0], numbers[0]};
  if (numbers.size() != 3) throw JsonError("it has no number for each color");
  return {numbers[0], numbers[1], numbers[2]};
}
Colours colours_of(const Json& json) {
  std::vector<double> numbers;
  append_numbers(json, numbers);
  return colours_of(numbers);
}

class InputReader {
 public:
  InputReader(const TensorFile& file, const models::ModelOptions& model)
      : file_(file), residual_(model.model.starts_with("res")) {}

  KerasInput read() && {
    const auto config = file_.metadata().find("model_config");
    KerasInput result;
    if (config != file_.metadata().end())
      read_network(config->second);
    else if (!residual_ && find_moment("", 0) != nullptr)
      read_weights_alone();
    result.image_side = image_side_;
    if (!prepares_) return result;
    ColourStatistics& statistics = result.statistics.emplace();
    for (std::size_t c = 0; c < statistics.mean.size(); ++c) {
      statistics.deviation[c] = 1.0 / affine_.scale[c];
      statistics.mean[c] = 0.0 - affine_.offset[c] / affine_.scale[c];
      if (!std::isfinite(statistics.mean[c]) || !(statistics.deviation[c] > 0.0) ||
          !std::isfinite(statistics.deviation[c]))
        refuse("its layers before the first convolution do not scale images by a positive number");
    }
    return result;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::Data, "{}: {}: export the network as ONNX instead (docs/own-networks.md)",
         file_.path().string(), what);
  }

  void read_network(const std::string& config) {
    try {
      const Json network = Json::parse(config);
      (void)read_layers(network);
      require_mean_pooling(network);
    } catch (const JsonError& error) {
      refuse(fmt::format("its configuration cannot be read: {}", error.what()));
    }
  }

  static const Json* layers_of(const Json& network) {
    const Json* const config = network.find("config");
    return config == nullptr ? nullptr : config->find("layers");
  }

  /// Follows the layers up to the first convolution; whether there is one.
  bool read_layers(const Json& network) {
    const Json* const layers = layers_of(network);
    if (layers == nullptr) return false;
    for (const Json& layer : layers->items()) {
      if (layers_of(layer) != nullptr) {
        if (read_layers(layer)) return true;
        continue;
      }
      const std::string& kind = layer.at("class_name").text();
      if (kind == "Conv2D") return true;
      read_layer(layer, kind);
    }
    return false;
  }

  void read_layer(const Json& layer, const std::string& kind) {
    const Json& config = layer.at("config");
    const std::string& name = config.at("name").text();
    if (kind == "InputLayer") return read_size(config, name);
    if (kind == "ZeroPadding2D" || kind.starts_with("Random")) return;
    if (residual_ ? is_usual_preparation(kind, name) : apply(layer, kind, config, name)) return;
    refuse(
        fmt::format("its layer {} ({}) changes images before the first convolution, in a way "
                    "that no option expresses",
                    name, kind));
  }

  /// [null, height, width, 3], which Keras 2 and Keras 3 call by different names. The outermost of
  /// nested networks comes first.
  void read_size(const Json& config, const std::string& name) {
    const Json* shape = config.find("batch_shape");
    if (shape == nullptr) shape = config.find("batch_input_shape");
    if (image_side_ || shape == nullptr || !shape->is_list() || shape->items().size() != 4) return;
    const Json& height = shape->items()[1];
    const Json& width = shape->items()[2];
    if (!height.is_integer() || !width.is_integer()) return;
    if (height.as_int64() != width.as_int64())
      refuse(fmt::format("its layer {} reads images of {} x {}, but here they are square", name,
                         height.as_int64(), width.as_int64()));
    image_side_ = height.as_int64();
  }

  /// preprocess_input() of Keras' ResNets, in the layers that TensorFlow or Keras 3 makes of it.
  static bool is_usual_preparation(const std::string& kind, const std::string& name) {
    return kind == "SlicingOpLambda" || name.starts_with("tf.nn.bias_add") || kind == "GetItem" ||
           kind == "Stack" || kind == "Add";
  }

  /// Whether the layer scales and shifts colors; then it is taken into the affine map.
  bool apply(const Json& layer, const std::string& kind, const Json& config,
             const std::string& name) {
    if (kind == "Rescaling") {
      affine_.multiply(colours_of(config.at("scale")));
      affine_.add(colours_of(config.at("offset")));
    } else if (kind == "Normalization") {
      normalise(config, name);
    } else if (name.starts_with("tf.math.multiply")) {
      affine_.multiply(factor_of(layer));
    } else {
      return false;
    }
    prepares_ = true;
    return true;
  }

  /// [["normalization", 0, 0, {"y": [[[[2.1, 2.1, 2.1]]]]}]]
  static Colours factor_of(const Json& layer) {
    for (const Json& node : layer.at("inbound_nodes").items())
      for (const Json& part : node.items())
        if (const Json* const factor = part.find("y")) return colours_of(*factor);
    throw JsonError("a product has no constant");
  }

  void normalise(const Json& config, const std::string& name) {
    if (const Json* const invert = config.find("invert");
        invert != nullptr && invert->dump() == "true")
      refuse(fmt::format("its layer {} inverts a normalization", name));
    const auto moment = [&](const char* key, std::size_t number) {
      const SafeTensor* const tensor = find_moment(name, number);
      if (tensor == nullptr) return colours_of(config.at(key));
      return colours_in(*tensor);
    };
    subtract_and_divide(moment("mean", 0), moment("variance", 1));
  }

  static Colours colours_in(const SafeTensor& tensor) {
    const std::vector<float> values = tensor.to_floats();
    return colours_of(std::vector<double>(values.begin(), values.end()));
  }

  void subtract_and_divide(const Colours& mean, const Colours& variance) {
    for (std::size_t c = 0; c < mean.size(); ++c) affine_.offset[c] -= mean[c];
    affine_.multiply(reciprocal_roots(variance));
  }

  /// Keras 2 calls the mean and the variance of a layer so, Keras 3 gives them numbers. Without its
  /// name, or where Keras 3 counted otherwise, the only layer of this class is meant.
  const SafeTensor* find_moment(const std::string& layer, std::size_t number) const {
    static constexpr std::array<std::array<std::string_view, 2>, 2> kFields = {
        {{"/mean:0", "/vars/0"}, {"/variance:0", "/vars/1"}}};
    const SafeTensor* only = nullptr;
    std::size_t count = 0;
    for (const auto& [name, tensor] : file_.tensors())
      for (const std::string_view field : kFields.at(number)) {
        if (!name.ends_with(field) || !name.starts_with("normalization")) continue;
        if (name.size() == layer.size() + field.size() && name.starts_with(layer)) return &tensor;
        only = &tensor;
        ++count;
      }
    return count == 1 ? only : nullptr;
  }

  /// Weights without their network: 1/255 and a normalization, as in keras.applications.
  void read_weights_alone() {
    const SafeTensor* const mean = find_moment("", 0);
    const SafeTensor* const variance = find_moment("", 1);
    if (variance == nullptr) refuse("its normalization has a mean, but no variance");
    try {
      affine_.multiply({1 / 255.0, 1 / 255.0, 1 / 255.0});
      const Colours divisors = colours_in(*variance);
      subtract_and_divide(colours_in(*mean), divisors);
      prepares_ = true;
      const bool published =
          std::ranges::equal(divisors, kPublishedDeviations,
                             [](double one, double other) { return std::abs(one - other) < 1e-5; });
      if (published) affine_.multiply(reciprocal_roots(divisors));
    } catch (const JsonError& error) {
      refuse(fmt::format("its normalization cannot be read: {}", error.what()));
    }
  }

  void require_mean_pooling(const Json& network) const {
    const Json* const layers = layers_of(network);
    if (layers == nullptr) return;
    for (const Json& layer : layers->items()) {
      if (layer.at("class_name").text() == "GlobalMaxPooling2D")
        refuse(
            fmt::format("its layer {} takes the largest values, where millrace's networks take "
                        "their mean",
                        layer.at("config").at("name").text()));
      require_mean_pooling(layer);
    }
  }

  const TensorFile& file_;
  bool residual_;
  bool prepares_ = false;
  std::optional<std::int64_t> image_side_;
  Affine affine_;
};

}  // namespace

KerasInput keras_input(const TensorFile& file, const models::ModelOptions& model) {
  return InputReader(file, model).read();
}

// ---- numbers in place of names
// -----------------------------------------------------------------------

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
