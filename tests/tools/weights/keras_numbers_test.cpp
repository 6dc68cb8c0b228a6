// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/keras.hpp"

#include "io/hdf5.hpp"
#include "io/tensor_checks.hpp"
#include "tests/tools/weights/published_networks.hpp"

namespace millrace::io {
namespace {

/// The numbers of a network's parameters by their names.
std::map<std::string, std::string> numbers_of(const Graph& graph) {
  const std::vector<ForeignParameter> names = names_in(WeightStyle::Keras, graph);
  ForeignParameters numbers = {names, ""};
  replace_by_numbers(numbers);
  std::map<std::string, std::string> result;
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(numbers.all[i].shape, names[i].shape);
    result[names[i].name] = numbers.all[i].name;
  }
  return result;
}

/// Bottlenecks with few channels, so that files are small.
Graph small_residual() {
  ModelOptions options;
  options.size = "29";
  options.block = models::BlockKind::Bottleneck;
  options.shortcut = 'B';
  return build_model(options);
}

// As Keras 3.15 numbers them.
TEST(KerasNumbersTest, AreThoseOfKeras) {
  ModelOptions second = published("resnet", "50");
  second.residual.version = models::ResNetVersion::V2;
  using Numbers = std::map<std::string, std::string>;
  for (const auto& [options, expected] : std::vector<std::pair<ModelOptions, Numbers>>{
           {published("resnet", "50"),
            {{"conv1_conv/kernel:0", "conv2d/vars/0"},
             {"conv1_bn/gamma:0", "batch_normalization/vars/0"},
             {"conv2_block1_2_bn/beta:0", "batch_normalization_2/vars/1"},
             {"conv2_block1_0_conv/kernel:0", "conv2d_3/vars/0"},
             {"conv2_block1_0_bn/moving_mean:0", "batch_normalization_3/vars/2"},
             {"conv2_block1_3_conv/kernel:0", "conv2d_4/vars/0"},
             {"conv2_block1_3_bn/moving_variance:0", "batch_normalization_4/vars/3"},
             {"conv3_block1_0_conv/kernel:0", "conv2d_13/vars/0"},
             {"conv5_block1_0_bn/gamma:0", "batch_normalization_45/vars/0"},
             {"conv5_block1_3_bn/gamma:0", "batch_normalization_46/vars/0"},
             {"conv5_block3_3_conv/kernel:0", "conv2d_52/vars/0"},
             {"predictions/kernel:0", "dense/vars/0"},
             {"predictions/bias:0", "dense/vars/1"}}},
           {second,
            {{"conv2_block1_preact_bn/gamma:0", "batch_normalization/vars/0"},
             {"conv2_block1_0_conv/kernel:0", "conv2d_3/vars/0"},
             {"conv5_block1_3_conv/kernel:0", "conv2d_46/vars/0"},
             {"post_bn/gamma:0", "batch_normalization_48/vars/0"}}},
           {published("efficientnet", "B0"),
            {{"block1a_dwconv/depthwise_kernel:0", "depthwise_conv2d/vars/0"},
             {"block1a_se_reduce/bias:0", "conv2d_1/vars/1"},
             {"block1a_project_conv/kernel:0", "conv2d_3/vars/0"},
             {"block2b_expand_bn/gamma:0", "batch_normalization_6/vars/0"},
             {"block7a_dwconv/depthwise_kernel:0", "depthwise_conv2d_15/vars/0"},
             {"top_conv/kernel:0", "conv2d_64/vars/0"},
             {"top_bn/moving_variance:0", "batch_normalization_48/vars/3"}}}}) {
    const Numbers numbers = numbers_of(build_model(options));
    for (const auto& [name, number] : expected) EXPECT_EQ(numbers.at(name), number) << name;
  }
}

TEST(KerasNumbersTest, SayWhatAVariableIs) {
  EXPECT_EQ(keras_variable("conv2d", "0"), "kernel:0");
  EXPECT_EQ(keras_variable("conv2d_12", "1"), "bias:0");
  EXPECT_EQ(keras_variable("depthwise_conv2d_3", "0"), "depthwise_kernel:0");
  EXPECT_EQ(keras_variable("batch_normalization_7", "3"), "moving_variance:0");
  for (const auto& [layer, number] :
       {std::pair("conv2d", "2"), std::pair("conv2d", "-1"), std::pair("conv2d", "x"),
        std::pair("dense", "4"), std::pair("conv2d_x", "0"), std::pair("123", "0"),
        std::pair("normalization", "0")})
    EXPECT_EQ(keras_variable(layer, number), "") << layer << ' ' << number;
}

using Values = std::map<std::string, std::vector<float>>;

/// How layers are known in a file.
enum class Layers { Named, Numbered };

/// Files of Keras 3 for a network, in which every tensor has other values.
class KerasNetwork {
 public:
  explicit KerasNetwork(const Graph& graph)
      : names_(names_in(WeightStyle::Keras, graph)), numbers_(numbers_of(graph)) {}

  /// Gives two layers the places of each other.
  void exchange(const std::string& one, const std::string& other) {
    for (const ForeignParameter& parameter : names_)
      if (parameter.name.starts_with(one + '/'))
        std::swap(numbers_.at(parameter.name),
                  numbers_.at(other + parameter.name.substr(one.size())));
  }

  [[nodiscard]] TensorFile file(Layers layers) const {
    const fs::path path = directory_ / "net.weights.h5";
    fs::remove(path);
    Hdf5Writer writer(path);
    float first = 1;
    for (const ForeignParameter& parameter : names_) {
      std::vector<float> values(
          static_cast<std::size_t>(checked_elements(parameter.shape, 1).value()));
      std::iota(values.begin(), values.end(), first++);
      const std::string place = "layers/" + numbers_.at(parameter.name);
      writer.write(place, DType::F32, parameter.shape, std::as_bytes(std::span(values)));
      if (layers == Layers::Named && place.ends_with("/0"))
        writer.describe(place.substr(0, place.size() - 2), "name",
                        Json(parameter.name.substr(0, parameter.name.find('/'))));
    }
    writer.close();
    return read_tensor_file(path);
  }

 private:
  TemporaryDirectory directory_;
  std::vector<ForeignParameter> names_;
  std::map<std::string, std::string> numbers_;
};

Values imported(const TensorFile& file, const Graph& graph) {
  Values values;
  for (ImportedParameter& parameter : import_weights(file, graph, WeightStyle::Keras))
    values[parameter.name] = std::move(parameter.values);
  return values;
}

TEST(KerasNumbersTest, LayersAreFoundByNameOrByOrder) {
  const Graph graph = small_residual();
  KerasNetwork network(graph);
  const TensorFile named = network.file(Layers::Named);
  EXPECT_TRUE(named.notices().empty());
  EXPECT_FALSE(has_numbers(named));
  EXPECT_EQ(named.tensors().count("conv2_block1_1_bn/moving_mean:0"), 1u);
  const Values values = imported(named, graph);
  EXPECT_EQ(values.at("b0/norm/gamma")[0] + 1, values.at("b0/norm/gamma")[1]);

  const TensorFile numbered = network.file(Layers::Numbered);
  ASSERT_EQ(numbered.notices().size(), 1u);
  test::expect_in(numbered.notices()[0],
                  {"net.weights.h5: its layers have no names, as Keras 3 wrote "
                   "before 3.6: they are taken to be in the order of"});
  EXPECT_TRUE(has_numbers(numbered));
  EXPECT_EQ(imported(numbered, graph), values);

  // Names come first: where the layers are does not matter then.
  network.exchange("conv3_block1_0_conv", "conv3_block1_3_conv");
  EXPECT_EQ(imported(network.file(Layers::Named), graph), values);
}

// A block whose shortcut comes behind its third convolution is not of keras.applications.
TEST(KerasNumbersTest, AnotherOrderIsRefused) {
  const Graph graph = small_residual();
  KerasNetwork network(graph);
  network.exchange("conv3_block1_0_conv", "conv3_block1_3_conv");
  const TensorFile file = network.file(Layers::Numbered);
  expect_error(ErrorKind::Data,
               {"net.weights.h5: conv2d_", "/vars/0 has shape [1, 1, ", "b2/0/", " needs [1, 1, "},
               [&] { (void)imported(file, graph); });
}

TEST(KerasNumbersTest, TheNetworkIsIdentified) {
  ModelOptions options = published("efficientnet", "B0");
  options.classes = 37;
  const KerasNetwork network(build_model(options));
  for (const Layers layers : {Layers::Named, Layers::Numbered}) {
    const Identified found = identify(network.file(layers), kWeightStyles);
    EXPECT_EQ(to_string(found), "an efficientnet-B0 for ImageNet with 37 classes, as in keras");
  }
}

TEST(KerasNumbersTest, BiasesAreBesideTheirKernels) {
  EXPECT_EQ(bias_beside("conv1_conv/kernel:0"), "conv1_conv/bias:0");
  EXPECT_EQ(bias_beside("conv2d_3/vars/0"), "conv2d_3/vars/1");
}

}  // namespace
}  // namespace millrace::io
