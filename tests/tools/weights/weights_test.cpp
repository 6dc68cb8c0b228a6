// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/weights/published_networks.hpp"

namespace millrace::io {
namespace {

using models::GraphBuilder;
using Extents = std::vector<std::int64_t>;

constexpr auto kTorchvision = WeightStyle::Torchvision;

Graph cifar(const std::string& size) {
  ModelOptions options;
  options.size = size;
  options.block = models::BlockKind::Basic;
  return build_model(options);
}

const Parameter& parameter(const Graph& graph, const std::string& name) {
  const auto found = std::ranges::find(graph.parameters, name, &Parameter::name);
  if (found == graph.parameters.end()) throw std::runtime_error("no parameter " + name);
  return *found;
}

/// A library's name of a parameter.
std::string name_in(WeightStyle style, const Graph& graph, const Parameter& wanted) {
  return names_in(style, graph)
      .at(static_cast<std::size_t>(&wanted - graph.parameters.data()))
      .name;
}
std::vector<ImportedParameter> import_torch(const TensorFile& file, const Graph& graph) {
  return import_weights(file, graph, kTorchvision);
}

/// A state dictionary, of which every element is unique.
class StateDictionary {
 public:
  StateDictionary() = default;
  /// That of a graph.
  explicit StateDictionary(const Graph& graph, WeightStyle style = kTorchvision,
                           const std::string& prefix = "") {
    for (const ForeignParameter& p : names_in(style, graph)) add(prefix + p.name, p.shape);
  }
  void add(const std::string& name, const Extents& shape) {
    const auto elements =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<float> values(static_cast<std::size_t>(elements));
    std::iota(values.begin(), values.end(), static_cast<float>(100 * ++added_));
    content_[name] = {shape, std::move(values)};
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = content_.extract(from);
    node.key() = to;
    content_.insert(std::move(node));
  }
  void remove(const std::string& begin) {
    std::erase_if(content_, [&](const auto& tensor) { return tensor.first.starts_with(begin); });
  }
  void set(const std::string& name, std::size_t element, float value) {
    content_.at(name).second.at(element) = value;
  }
  void reshape(const std::string& name, const Extents& shape) { content_.at(name).first = shape; }
  [[nodiscard]] TensorFile file() const {
    TensorFile file("net.safetensors");
    for (const auto& [name, tensor] : content_) {
      const auto bytes = std::as_bytes(std::span(tensor.second));
      file.add(name, {"F32", tensor.first, file.keep({bytes.begin(), bytes.end()})});
    }
    return file;
  }

 private:
  std::size_t added_ = 0;
  std::map<std::string, std::pair<Extents, std::vector<float>>> content_;
};

// ---- names and order

// resnext50_32x4d has as many tensors under the same names; its grouped kernels have the channels
// of one group.
TEST(WeightsTest, ResNeXtHasTheNamesOfResNet) {
  const Graph graph = build_model(published("resnext", "50"));
  const TensorFile file = StateDictionary(graph).file();
  EXPECT_EQ(file.tensors().size(), 161u + 2u * 53u);
  for (const auto& [name, shape] :
       std::map<std::string, Extents>{{"layer1.0.conv1.weight", {128, 64, 1, 1}},
                                      {"layer1.0.conv2.weight", {128, 4, 3, 3}},
                                      {"layer4.2.conv2.weight", {1024, 32, 3, 3}},
                                      {"layer4.0.downsample.0.weight", {2048, 1024, 1, 1}}})
    EXPECT_EQ(file.tensors().at(name).shape, shape) << name;
  EXPECT_EQ(import_torch(file, graph).size(), graph.parameters.size());
}

TEST(WeightsTest, OnlyKerasHasVersion2) {
  ModelOptions options = published("resnet", "50");
  options.residual.version = models::ResNetVersion::V2;
  const Graph graph = build_model(options);
  for (const WeightStyle style : {kTorchvision, WeightStyle::Timm})
    test::expect_in(foreign_parameters(graph, style).misfit, {"it has version 2"});
  EXPECT_EQ(foreign_parameters(graph, WeightStyle::Keras).misfit, "");
}

TEST(WeightsTest, OtherNetworksHaveNone) {
  GraphBuilder builder("tiny", {4, 4, 3}, 2);
  builder.begin_layer("features");
  auto x = builder.conv("conv9", builder.input(), {.out_channels = 2});
  builder.begin_layer("pool");
  x = builder.global_average_pool("", x);
  builder.begin_layer("loss");
  builder.softmax_loss("", x);
  const Graph graph = std::move(builder).build();
  EXPECT_EQ(foreign_parameters(graph, WeightStyle::Torchvision).misfit,
            "torchvision has no network like this tiny: nothing is like features/conv9");
}

TEST(WeightsTest, TurnsKernelsToChannelsLast) {
  const Graph graph = cifar("8");
  const TensorFile file = StateDictionary(graph).file();
  const auto imported = import_torch(file, graph);
  ASSERT_EQ(imported.size(), graph.parameters.size());
  const auto found = std::ranges::find(imported, "b0/conv/kernel", &ImportedParameter::name);
  ASSERT_NE(found, imported.end());
  const auto oihw = file.tensors().at("conv1.weight").to_floats();
  for (std::size_t o = 0; o < 16; ++o)
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t h = 0; h < 3; ++h)
        for (std::size_t w = 0; w < 3; ++w)
          ASSERT_EQ(found->values[((o * 3 + h) * 3 + w) * 3 + i],
                    oihw[((o * 3 + i) * 3 + h) * 3 + w]);
  for (std::size_t p = 0; p < imported.size(); ++p) {
    EXPECT_EQ(imported[p].name, graph.parameters[p].name);
    EXPECT_EQ(imported[p].values.size(), static_cast<std::size_t>(graph.parameters[p].elements()));
  }
  EXPECT_EQ(imported.back().values, file.tensors().at("fc.bias").to_floats());
}

TEST(WeightsTest, AcceptsPrefixSynonymsAndCounters) {
  ModelOptions options;
  options.size = "8";
  options.shortcut = 'B';
  const Graph graph = build_model(options);
  StateDictionary state(graph, kTorchvision, "module.");
  for (const std::string field : {"weight", "bias"}) {
    state.rename("module.fc." + field, "module.linear." + field);
    state.rename("module.layer2.0.downsample.1." + field, "module.layer2.0.shortcut.1." + field);
  }
  state.rename("module.layer2.0.downsample.0.weight", "module.layer2.0.shortcut.0.weight");
  state.add("module.bn1.num_batches_tracked", {});
  EXPECT_EQ(import_torch(state.file(), graph).size(), graph.parameters.size());
}

// DataParallel, torch.compile and Lightning, around each other.
TEST(WeightsTest, AcceptsWrappersInAnyOrder) {
  const Graph graph = cifar("8");
  for (const char* wrappers : {"_orig_mod.module.", "module._orig_mod.", "model._orig_mod.module.",
                               "module.module.", "model.model."})
    EXPECT_EQ(import_torch(StateDictionary(graph, kTorchvision, wrappers).file(), graph).size(),
              graph.parameters.size())
        << wrappers;
  StateDictionary twice(graph);
  twice.add("model.fc.bias", {10});
  expect_error(ErrorKind::Data, {"both fc.bias and model.fc.bias are fc.bias of a network"},
               [&] { (void)import_torch(twice.file(), graph); });
}

// ---- what does not fit

using Change = std::function<void(StateDictionary&)>;

/// What is said of a network with a change.
struct Misfit {
  Change change;
  std::vector<std::string> told;
};

// PyTorch saves all values, usable or not.
TEST(WeightsTest, WhatDoesNotFitIsNamed) {
  const Graph graph = cifar("8");
  const float infinity = std::numeric_limits<float>::infinity();
  const auto set = [](const char* tensor, std::size_t element, float value) -> Change {
    return [=](StateDictionary& s) { s.set(tensor, element, value); };
  };
  for (const auto& [change, told] : std::vector<Misfit>{
           {[](StateDictionary& s) { s.rename("layer2.0.bn1.bias", "layer2.0.bnl.bias"); },
            {"no tensor layer2.0.bn1.bias (shape [32])", "b2/0/norm1/beta",
             "did you mean layer2.0.bnl.bias?"}},
           {[](StateDictionary& s) {
              s.reshape("conv1.weight", {16, 3, 9, 1});
            },
            {"conv1.weight has shape [16, 3, 9, 1]", "b0/conv/kernel", "needs [16, 3, 3, 3]"}},
           {[](StateDictionary& s) { s.add("layer1.0.extra.weight", {4}); },
            {"layer1.0.extra.weight [4] is not part of " + graph.name}},
           {set("layer1.0.conv1.weight", 150, std::nanf("")),
            {"layer1.0.conv1.weight[1, 0, 2, 0] is nan: the network cannot"}},
           {set("fc.bias", 9, -infinity), {"fc.bias[9] is -inf"}},
           {set("bn1.running_mean", 0, infinity), {"bn1.running_mean[0] is inf"}},
           {set("bn1.running_var", 3, -0.5f),
            {"bn1.running_var[3] is -0.5, but a variance must not be negative"}}}) {
    StateDictionary state(graph);
    change(state);
    const std::string message =
        message_of(ErrorKind::Data, [&] { (void)import_torch(state.file(), graph); });
    EXPECT_TRUE(message.starts_with("net.safetensors: ")) << message;
    test::expect_in(message, told);
  }
  StateDictionary usable(graph);
  usable.set("bn1.running_mean", 0, -1.0f);
  usable.set("bn1.running_var", 0, 0.0f);
  EXPECT_NO_THROW(static_cast<void>(import_torch(usable.file(), graph)));
}

TEST(WeightsTest, AnotherSizeIsRecognised) {
  const TensorFile file = StateDictionary(cifar("20")).file();
  for (const char* size : {"8", "32"})
    expect_error(ErrorKind::Data, {"the file holds a resnet-20 for CIFAR with 10 classes"},
                 [&] { static_cast<void>(import_torch(file, cifar(size))); });
}

TEST(WeightsTest, ImportsTheTrainedNetworks) {
  const auto folder = real_data("models/resnet_cifar10");
  if (!folder) GTEST_SKIP() << "the trained CIFAR-10 networks are not at hand";
  for (const auto& [size, name] : {std::pair("20", "resnet20-12fca82f.safetensors"),
                                   std::pair("56", "resnet56-4bfd9763.safetensors")}) {
    const TensorFile file = read_tensor_file(*folder / name);
    const Graph graph = cifar(size);
    const auto imported = import_torch(file, graph);
    EXPECT_EQ(imported.size(), file.tensors().size());
    EXPECT_EQ(imported.back().name, "fc1/bias");
    EXPECT_EQ(imported.back().values, file.tensors().at("linear.bias").to_floats());
  }
}

TEST(WeightsTest, NamesAreThoseOfTheLibrary) {
  const Graph squeeze = build_model(published("squeezenet", "1.0"));
  const Graph mobile = build_model(published("efficientnet", "B0"));
  const Graph residual = build_model(published("resnet", "50"));
  const Graph small = cifar("8");
  struct Case {
    const Graph& graph;
    WeightStyle style;
    const char* ours;
    const char* theirs;
  };
  for (const Case& one :
       {Case{residual, kTorchvision, "b0/conv/kernel", "conv1.weight"},
        Case{residual, kTorchvision, "b0/norm/gamma", "bn1.weight"},
        Case{residual, kTorchvision, "b0/norm/moving_variance", "bn1.running_var"},
        Case{residual, kTorchvision, "b1/0/conv1/kernel", "layer1.0.conv1.weight"},
        Case{residual, kTorchvision, "b3/5/norm3/beta", "layer3.5.bn3.bias"},
        Case{residual, kTorchvision, "b4/0/shortcut_conv/kernel", "layer4.0.downsample.0.weight"},
        Case{residual, kTorchvision, "b4/0/shortcut_norm/moving_mean",
             "layer4.0.downsample.1.running_mean"},
        Case{residual, kTorchvision, "fc1/kernel", "fc.weight"},
        Case{residual, kTorchvision, "fc1/bias", "fc.bias"},
        Case{squeeze, kTorchvision, "fire5/expand3x3/kernel", "features.7.expand3x3.weight"},
        Case{squeeze, kTorchvision, "conv10/conv/kernel", "classifier.1.weight"},
        Case{mobile, kTorchvision, "block1a/c/conv/kernel", "features.1.0.block.2.0.weight"},
        Case{mobile, kTorchvision, "block2b/SE/expand/bias", "features.2.1.block.2.fc2.bias"},
        Case{mobile, WeightStyle::Timm, "block1a/c/norm/gamma", "blocks.0.0.bn2.weight"},
        Case{mobile, WeightStyle::Timm, "block3b/c/conv/kernel", "blocks.2.1.conv_pwl.weight"},
        Case{mobile, WeightStyle::Keras, "block2a/b/conv/kernel",
             "block2a_dwconv/depthwise_kernel:0"},
        Case{mobile, WeightStyle::Keras, "Top/logits/bias", "predictions/bias:0"},
        Case{residual, WeightStyle::Keras, "b1/0/shortcut_norm/moving_mean",
             "conv2_block1_0_bn/moving_mean:0"},
        Case{small, WeightStyle::Akamaster, "fc1/kernel", "linear.weight"}})
    EXPECT_EQ(name_in(one.style, one.graph, parameter(one.graph, one.ours)), one.theirs);
  // torchvision's resnet50 has 161 parameters and 53 running means and variances each.
  std::set<std::string> names;
  for (const Parameter& p : residual.parameters) names.insert(name_in(kTorchvision, residual, p));
  EXPECT_EQ(names.size(), residual.parameters.size());
  EXPECT_EQ(names.size(), 161u + 2u * 53u);
}

// What one of them gives, the other takes back. The largest kernels have only more of the same.
TEST(WeightsTest, OrdersAreInverse) {
  for (const WeightStyle style : kWeightStyles)
    for (const auto& [model, size] : {std::pair("resnet", "50"),
                                      std::pair("resnext", "50"),
                                      std::pair("squeezenet", "1.0"),
                                      {"efficientnet", "B0"}}) {
      ModelOptions options = published(model, size);
      options.classes = 10;
      const Graph graph = build_model(options);
      if (!foreign_parameters(graph, style).misfit.empty()) continue;
      for (const Parameter& p : graph.parameters) {
        if (p.elements() > 100'000) continue;
        std::vector<float> values(static_cast<std::size_t>(p.elements()));
        std::iota(values.begin(), values.end(), 0.0f);
        EXPECT_EQ(from_foreign(graph, p, style, to_foreign(graph, p, style, values)), values)
            << p.name;
      }
    }
}

TEST(WeightsTest, IdentifiesEveryFamily) {
  struct Case {
    const char* model;
    const char* size;
    WeightStyle style;
    WeightStyle found;
  };
  for (const Case& one : {Case{"resnet", "18", kTorchvision, kTorchvision},
                          Case{"resnet", "34", WeightStyle::Timm, kTorchvision},
                          Case{"resnet", "50", WeightStyle::Keras, WeightStyle::Keras},
                          Case{"resnext", "26", kTorchvision, kTorchvision},
                          Case{"squeezenet", "1.0", kTorchvision, kTorchvision},
                          Case{"efficientnet", "B2", kTorchvision, kTorchvision},
                          Case{"efficientnet", "B0", WeightStyle::Timm, WeightStyle::Timm},
                          Case{"efficientnet", "B1", WeightStyle::Keras, WeightStyle::Keras}}) {
    ModelOptions options = published(one.model, one.size);
    options.classes = 37;
    const Identified found =
        identify(StateDictionary(build_model(options), one.style).file(), kWeightStyles);
    EXPECT_EQ(found.model.model, one.model);
    EXPECT_EQ(found.model.size, one.size);
    EXPECT_EQ(found.model.classes, 37);
    EXPECT_EQ(found.style, one.found) << one.model;
  }
}

TEST(WeightsTest, SaysWhatAFileHolds) {
  EXPECT_EQ(to_string(Identified{WeightStyle::Torchvision, published("resnet", "18")}),
            "a resnet-18 for ImageNet with 1000 classes, as in torchvision");
  models::ModelOptions small = models::default_options("resnet", models::Task::Cifar);
  small.size = "20";
  EXPECT_EQ(to_string(Identified{WeightStyle::Akamaster, small}),
            "a resnet-20 for CIFAR with 10 classes, as in akamaster");
  EXPECT_EQ(to_string(Identified{WeightStyle::Keras, published("efficientnet", "B0")}),
            "an efficientnet-B0 for ImageNet with 1000 classes, as in keras");
  // A network that was asked for, but is not in the file.
  const StateDictionary state(build_model(published("efficientnet", "B0")));
  expect_error(ErrorKind::Data, {"; the file holds an efficientnet-B0 for ImageNet with 1000"},
               [&] {
                 (void)import_weights(state.file(), build_model(published("efficientnet", "B1")),
                                      WeightStyle::Torchvision);
               });
}

TEST(WeightsTest, TheNearestNetworkIsComparedTensorByTensor) {
  ModelOptions photos = published("resnet", "18");
  photos.classes = 5;
  photos.residual.stage_one = models::StageOneShortcut::Identity;
  struct Case {
    Graph graph;
    WeightStyle style;
    const char* removed;
    const char* added;
    const char* told;
  };
  const Graph small = cifar("20");
  const Graph mobile = build_model(published("efficientnet", "B0"));
  for (const Case& one :
       {Case{small, WeightStyle::Akamaster, "linear.", nullptr,
             "the closest network is a resnet-20 of akamaster, but the file lacks linear.weight, "
             "linear.bias; if"},
        Case{small, WeightStyle::Akamaster, nullptr, "extra",
             "a resnet-20 of akamaster with 10 classes, but the file also has extra [4]; if"},
        Case{build_model(photos), kTorchvision, "bn1.", "extra",
             "a resnet-18 of torchvision with 5 classes, but the file lacks bn1.weight, bn1.bias, "
             "bn1.running_mean, bn1.running_var and also has extra [4]; if"},
        Case{mobile, kTorchvision, nullptr, "extra.weight",
             "the closest network is an efficientnet-B0 of torchvision with 1000 classes, but the "
             "file also has extra.weight [4]; if the file holds another network, export it as ONNX "
             "and train it with --model FILE.onnx (docs/own-networks.md)"},
        Case{mobile, WeightStyle::Keras, "top_bn", nullptr,
             "an efficientnet-B0 of keras with 1000 classes, but the file lacks top_bn/gamma:0, "
             "top_bn/beta:0, top_bn/moving_mean:0, top_bn/moving_variance:0; if"}}) {
    StateDictionary state(one.graph, one.style);
    if (one.removed != nullptr) state.remove(one.removed);
    if (one.added != nullptr) state.add(one.added, {4});
    expect_error(ErrorKind::Data, {one.told}, [&] { (void)identify(state.file(), kWeightStyles); });
  }
}

// A last layer of one's own behind include_top=False has the name that Keras or its owner gave it.
TEST(WeightsTest, TheHeadOfKerasMayHaveAnyName) {
  ModelOptions options = published("resnet", "50");
  options.classes = 5;
  set_as_in(options, WeightStyle::Keras);
  options.residual.stage_one = models::StageOneShortcut::Project;
  const Graph graph = build_model(options);
  StateDictionary state(graph, WeightStyle::Keras);
  for (const char* const field : {"/kernel:0", "/bias:0"})
    state.rename(std::string("predictions") + field, std::string("photos") + field);
  const TensorFile file = state.file();
  EXPECT_EQ(identify(file, kWeightStyles).model.classes, 5);
  EXPECT_EQ(import_weights(file, graph, WeightStyle::Keras).back().values,
            file.tensors().at("photos/bias:0").to_floats());
  state.add("hidden/kernel:0", {2048, 5});
  expect_error(ErrorKind::Data, {"it has 2 dense layers, hidden, photos, where the networks here"},
               [&] { (void)identify(state.file(), kWeightStyles); });
}

TEST(WeightsTest, NamesOfAnotherLibraryAreCalledSo) {
  for (const auto& [model, size, wrong] : {std::tuple("efficientnet", "B0", WeightStyle::Timm),
                                           {"resnet", "18", WeightStyle::Keras}}) {
    const StateDictionary state(build_model(published(model, size)));
    expect_error(ErrorKind::Data,
                 {std::string("no network of ") + std::string(name_of(wrong)) +
                  " has these tensors: its names are those of torchvision: --like torchvision, "
                  "or leave --like out"},
                 [&, style = wrong] { (void)identify(state.file(), std::array{style}); });
  }
}

// timm trained its large EfficientNets with PyTorch's epsilon.
TEST(WeightsTest, LargeEfficientNetsHaveTheEpsilonOfTheirLibrary) {
  for (const auto& [style, epsilon] :
       {std::pair(kTorchvision, 1e-3), std::pair(WeightStyle::Timm, 1e-5),
        std::pair(WeightStyle::Keras, 1e-3)}) {
    ModelOptions options = published("efficientnet", "B5");
    set_as_in(options, style);
    EXPECT_EQ(options.efficientnet.norm_epsilon, epsilon) << name_of(style);
  }
}

// Keras' biases before a normalization go into its running mean, and BGR becomes RGB.
TEST(WeightsTest, TakesWhatKerasHasBesides) {
  const Graph graph = build_model(published("resnet", "50"));
  StateDictionary state(graph, WeightStyle::Keras);
  const TensorFile plain = state.file();
  for (const Parameter& p : graph.parameters)
    if (std::holds_alternative<models::Conv>(graph.op(p.op).kind)) {
      const std::string kernel = name_in(WeightStyle::Keras, graph, p);
      state.add(kernel.substr(0, kernel.find('/')) + "/bias:0", {p.shape[0]});
    }
  const TensorFile file = state.file();
  const auto without = import_weights(plain, graph, WeightStyle::Keras);
  const auto with = import_weights(file, graph, WeightStyle::Keras);
  const auto bias = file.tensors().at("conv1_conv/bias:0").to_floats();
  for (std::size_t i = 0; i < with.size(); ++i) {
    if (with[i].name == "b0/norm/moving_mean") {
      for (std::size_t c = 0; c < bias.size(); ++c)
        EXPECT_EQ(with[i].values[c], without[i].values[c] - bias[c]);
    }
    if (with[i].name == "b0/conv/kernel") {
      const auto hwio = file.tensors().at("conv1_conv/kernel:0").to_floats();
      EXPECT_EQ(with[i].values[0], hwio[2 * 64]);
      EXPECT_EQ(with[i].values[2], hwio[0]);
      EXPECT_EQ(
          to_foreign(graph, parameter(graph, "b0/conv/kernel"), WeightStyle::Keras, with[i].values),
          hwio);
    }
  }
}

}  // namespace
}  // namespace millrace::io
