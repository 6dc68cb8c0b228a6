// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/import.hpp"

#include "models/registry.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/tools/weights/safetensors_file.hpp"

namespace millrace::io {
namespace {

using models::build_model;
using models::Graph;
using models::GraphBuilder;
using models::ModelOptions;
using models::Parameter;

Graph cifar(const std::string& size) {
  ModelOptions options;
  options.size = size;
  options.block = models::BlockKind::Basic;
  return build_model(options);
}

Graph image_net(const std::string& size) {
  ModelOptions options;
  options.size = size;
  options.task = models::Task::ImageNet;
  options.classes = 1000;
  options.image = {224, 224, 3};
  options.shortcut = 'B';
  return build_model(options);
}

const Parameter& parameter(const Graph& graph, const std::string& name) {
  const auto found = std::find_if(graph.parameters.begin(), graph.parameters.end(),
                                  [&](const Parameter& p) { return p.name == name; });
  if (found == graph.parameters.end()) throw std::runtime_error("no parameter " + name);
  return *found;
}

/// A library's name of a parameter.
std::string name_in(WeightStyle style, const Graph& graph, const Parameter& wanted) {
  const ForeignParameters names = foreign_parameters(graph, style);
  EXPECT_EQ(names.misfit, "");
  return names.all.at(static_cast<std::size_t>(&wanted - graph.parameters.data())).name;
}
std::vector<ImportedParameter> import_torch(const TensorFile& file, const Graph& graph) {
  return import_weights(file, graph, WeightStyle::Torchvision);
}

// A state dictionary for a graph: every element is unique, in PyTorch's order.
class StateDictionary {
 public:
  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto elements =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    auto& values = storage_.emplace_back(static_cast<std::size_t>(elements));
    std::iota(values.begin(), values.end(), static_cast<float>(100 * storage_.size()));
    content_[name] = {"F32", shape, std::as_bytes(std::span(values))};
  }
  void add_all(const Graph& graph, const std::string& prefix = "") {
    for (const Parameter& p : graph.parameters) {
      auto shape = p.shape;
      if (shape.size() == 4) shape = {p.shape[0], p.shape[3], p.shape[1], p.shape[2]};
      add(prefix + name_in(WeightStyle::Torchvision, graph, p), shape);
    }
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = content_.extract(from);
    node.key() = to;
    content_.insert(std::move(node));
  }
  void remove(const std::string& name) { content_.erase(name); }
  void set(const std::string& name, std::size_t element, float value) {
    const SafeTensor& tensor = content_.at(name);
    for (std::vector<float>& values : storage_)
      if (std::as_bytes(std::span(values)).data() == tensor.data.data()) values.at(element) = value;
  }
  void reshape(const std::string& name, const std::vector<std::int64_t>& shape) {
    content_.at(name).shape = shape;
  }
  [[nodiscard]] TensorFile file() const {
    write_safetensors(directory_ / "net.safetensors", content_);
    return read_tensor_file(directory_ / "net.safetensors");
  }

 private:
  TemporaryDirectory directory_;
  std::deque<std::vector<float>> storage_;
  SafeTensors content_;
};

// resnext50_32x4d has as many tensors under the same names; its grouped kernels have the channels
// of one group.
TEST(WeightsTest, ResNeXtHasTheNamesOfResNet) {
  ModelOptions options = models::default_options("resnext", models::Task::ImageNet);
  options.size = "50";
  options.norm = models::NormKind::Batch;
  const Graph graph = build_model(options);
  StateDictionary state;
  state.add_all(graph);
  const TensorFile file = state.file();
  EXPECT_EQ(file.tensors().size(), 161u + 2u * 53u);
  EXPECT_EQ(file.tensors().at("layer1.0.conv1.weight").shape,
            (std::vector<std::int64_t>{128, 64, 1, 1}));
  EXPECT_EQ(file.tensors().at("layer1.0.conv2.weight").shape,
            (std::vector<std::int64_t>{128, 4, 3, 3}));
  EXPECT_EQ(file.tensors().at("layer4.2.conv2.weight").shape,
            (std::vector<std::int64_t>{1024, 32, 3, 3}));
  EXPECT_EQ(file.tensors().at("layer4.0.downsample.0.weight").shape,
            (std::vector<std::int64_t>{2048, 1024, 1, 1}));
  EXPECT_EQ(import_torch(file, graph).size(), graph.parameters.size());
}

TEST(WeightsTest, OnlyKerasHasVersion2) {
  ModelOptions options;
  options.task = models::Task::ImageNet;
  options.size = "50";
  options.image = {32, 32, 3};
  options.shortcut = 'B';
  options.residual.version = models::ResNetVersion::V2;
  const Graph graph = build_model(options);
  for (const WeightStyle style : {WeightStyle::Torchvision, WeightStyle::Timm})
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
  StateDictionary state;
  state.add_all(graph);
  const TensorFile file = state.file();
  const auto imported = import_torch(file, graph);
  ASSERT_EQ(imported.size(), graph.parameters.size());
  const Parameter& stem = parameter(graph, "b0/conv/kernel");
  const auto found = std::find_if(imported.begin(), imported.end(),
                                  [&](const auto& p) { return p.name == stem.name; });
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
  StateDictionary state;
  state.add_all(graph, "module.");
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
                               "module.module.", "model.model."}) {
    StateDictionary state;
    state.add_all(graph, wrappers);
    EXPECT_EQ(import_torch(state.file(), graph).size(), graph.parameters.size()) << wrappers;
  }
  StateDictionary twice;
  twice.add_all(graph);
  twice.add("model.fc.bias", {10});
  expect_error(ErrorKind::Data, {"both fc.bias and model.fc.bias are fc.bias of a network"},
               [&] { (void)import_torch(twice.file(), graph); });
}

TEST(WeightsTest, TensorsThatDoNotFitAreNamed) {
  const Graph graph = cifar("8");
  struct Case {
    std::function<void(StateDictionary&)> change;
    std::vector<std::string> told;
  };
  for (const Case& one : std::vector<Case>{
           {[](StateDictionary& s) { s.rename("layer2.0.bn1.bias", "layer2.0.bnl.bias"); },
            {"net.safetensors", "no tensor layer2.0.bn1.bias (shape [32])", "b2/0/norm1/beta",
             "did you mean layer2.0.bnl.bias?"}},
           {[](StateDictionary& s) {
              s.reshape("conv1.weight", {16, 3, 9, 1});
            },
            {"conv1.weight has shape [16, 3, 9, 1]", "b0/conv/kernel", "needs [16, 3, 3, 3]"}},
           {[](StateDictionary& s) { s.add("layer1.0.extra.weight", {4}); },
            {"layer1.0.extra.weight [4] is not part of " + graph.name}}}) {
    StateDictionary state;
    state.add_all(graph);
    one.change(state);
    expect_error(ErrorKind::Data, one.told, [&] { (void)import_torch(state.file(), graph); });
  }
}

// PyTorch saves all values, usable or not.
TEST(WeightsLimitTest, UnusableValuesAreNamed) {
  const Graph graph = cifar("8");
  struct Case {
    const char* tensor;
    std::size_t element;
    float value;
    const char* message;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Case& bad :
       {Case{"layer1.0.conv1.weight", 150, std::nanf(""),
             "layer1.0.conv1.weight[1, 0, 2, 0] is nan: the network cannot"},
        Case{"fc.bias", 9, -infinity, "fc.bias[9] is -inf"},
        Case{"bn1.running_mean", 0, infinity, "bn1.running_mean[0] is inf"},
        Case{"bn1.running_var", 3, -0.5f,
             "bn1.running_var[3] is -0.5, but a variance must not be negative"}}) {
    StateDictionary dictionary;
    dictionary.add_all(graph);
    dictionary.set(bad.tensor, bad.element, bad.value);
    const TensorFile file = dictionary.file();
    expect_error(ErrorKind::Data, {file.path().string(), bad.message},
                 [&] { static_cast<void>(import_torch(file, graph)); });
  }
  StateDictionary dictionary;
  dictionary.add_all(graph);
  dictionary.set("bn1.running_mean", 0, -1.0f);
  dictionary.set("bn1.running_var", 0, 0.0f);
  EXPECT_NO_THROW(static_cast<void>(import_torch(dictionary.file(), graph)));
}

TEST(WeightsTest, AnotherSizeIsRecognised) {
  StateDictionary state;
  state.add_all(cifar("20"));
  const TensorFile file = state.file();
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

/// A state dictionary of any library for a graph.
void add_all(StateDictionary& state, const Graph& graph, WeightStyle style) {
  const ForeignParameters names = foreign_parameters(graph, style);
  ASSERT_EQ(names.misfit, "");
  for (const ForeignParameter& parameter : names.all) state.add(parameter.name, parameter.shape);
}

ModelOptions published(const char* model, const char* size) {
  ModelOptions options = models::default_options(model, models::Task::ImageNet);
  options.size = size;
  options.norm = models::NormKind::Batch;
  return options;
}

TEST(WeightsTest, NamesAreThoseOfTheLibrary) {
  const Graph photos = image_net("50");
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
  constexpr auto kTorchvision = WeightStyle::Torchvision;
  for (const Case& one :
       {Case{photos, kTorchvision, "b0/conv/kernel", "conv1.weight"},
        Case{photos, kTorchvision, "b0/norm/gamma", "bn1.weight"},
        Case{photos, kTorchvision, "b0/norm/moving_variance", "bn1.running_var"},
        Case{photos, kTorchvision, "b1/0/conv1/kernel", "layer1.0.conv1.weight"},
        Case{photos, kTorchvision, "b3/5/norm3/beta", "layer3.5.bn3.bias"},
        Case{photos, kTorchvision, "b4/0/shortcut_conv/kernel", "layer4.0.downsample.0.weight"},
        Case{photos, kTorchvision, "b4/0/shortcut_norm/moving_mean",
             "layer4.0.downsample.1.running_mean"},
        Case{photos, kTorchvision, "fc1/kernel", "fc.weight"},
        Case{photos, kTorchvision, "fc1/bias", "fc.bias"},
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
  for (const Parameter& p : photos.parameters) names.insert(name_in(kTorchvision, photos, p));
  EXPECT_EQ(names.size(), photos.parameters.size());
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
  for (const Case& one :
       {Case{"resnet", "18", WeightStyle::Torchvision, WeightStyle::Torchvision},
        Case{"resnet", "34", WeightStyle::Timm, WeightStyle::Torchvision},
        Case{"resnet", "50", WeightStyle::Keras, WeightStyle::Keras},
        Case{"resnext", "26", WeightStyle::Torchvision, WeightStyle::Torchvision},
        Case{"squeezenet", "1.0", WeightStyle::Torchvision, WeightStyle::Torchvision},
        Case{"efficientnet", "B2", WeightStyle::Torchvision, WeightStyle::Torchvision},
        Case{"efficientnet", "B0", WeightStyle::Timm, WeightStyle::Timm},
        Case{"efficientnet", "B1", WeightStyle::Keras, WeightStyle::Keras}}) {
    ModelOptions options = published(one.model, one.size);
    options.classes = 37;
    StateDictionary state;
    add_all(state, build_model(options), one.style);
    const Identified found = identify(state.file(), kWeightStyles);
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
  StateDictionary state;
  add_all(state, build_model(published("efficientnet", "B0")), WeightStyle::Torchvision);
  expect_error(ErrorKind::Data, {"; the file holds an efficientnet-B0 for ImageNet with 1000"},
               [&] {
                 (void)import_weights(state.file(), build_model(published("efficientnet", "B1")),
                                      WeightStyle::Torchvision);
               });
  state.add("extra.weight", {4});
  expect_error(
      ErrorKind::Data,
      {"the closest network is an efficientnet-B0 of torchvision with 1000 classes, but the file "
       "also has extra.weight [4]",
       "; if the file holds another network, export it as ONNX and train it with --model "
       "FILE.onnx (docs/own-networks.md)"},
      [&] { (void)identify(state.file(), kWeightStyles); });
}

/// What is said of a file of a network with something taken away or added.
std::string refusal(const Graph& graph, WeightStyle style, const std::string& removed,
                    const std::string& added) {
  StateDictionary state;
  for (const ForeignParameter& parameter : foreign_parameters(graph, style).all)
    if (removed.empty() || !parameter.name.starts_with(removed))
      state.add(parameter.name, parameter.shape);
  if (!added.empty()) state.add(added, {4});
  return message_of(ErrorKind::Data, [&] { (void)identify(state.file(), kWeightStyles); });
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
  for (const Case& one :
       {Case{small, WeightStyle::Akamaster, "linear.", "",
             "the closest network is a resnet-20 of akamaster, but the file lacks linear.weight, "
             "linear.bias; "
             "if"},
        Case{small, WeightStyle::Akamaster, "", "extra",
             "a resnet-20 of akamaster with 10 classes, but the file also has extra [4]; if"},
        Case{build_model(photos), WeightStyle::Torchvision, "bn1.", "extra",
             "a resnet-18 of torchvision with 5 classes, but the file lacks bn1.weight, bn1.bias, "
             "bn1.running_mean, bn1.running_var and also has extra [4]; if"},
        Case{build_model(published("efficientnet", "B0")), WeightStyle::Keras, "top_bn", "",
             "an efficientnet-B0 of keras with 1000 classes, but the file lacks top_bn/gamma:0, "
             "top_bn/beta:0, top_bn/moving_mean:0, top_bn/moving_variance:0; if"}}) {
    const std::string text = refusal(one.graph, one.style, one.removed, one.added);
    test::expect_in(text, {one.told});
  }
}

// A last layer of one's own behind include_top=False has the name that Keras or its owner gave it.
TEST(WeightsTest, TheHeadOfKerasMayHaveAnyName) {
  ModelOptions options = published("resnet", "50");
  options.classes = 5;
  set_as_in(options, WeightStyle::Keras);
  options.residual.stage_one = models::StageOneShortcut::Project;
  const Graph graph = build_model(options);
  StateDictionary state;
  add_all(state, graph, WeightStyle::Keras);
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
    StateDictionary state;
    add_all(state, build_model(published(model, size)), WeightStyle::Torchvision);
    expect_error(ErrorKind::Data,
                 {std::string("no network of ") + std::string(name_of(wrong)) +
                  " has these tensors: its names are those of torchvision: --like torchvision, "
                  "or leave --like out"},
                 [&] { (void)identify(state.file(), std::array{wrong}); });
  }
}

// timm trained its large EfficientNets with PyTorch's epsilon.
TEST(WeightsTest, LargeEfficientNetsHaveTheEpsilonOfTheirLibrary) {
  for (const auto& [style, epsilon] :
       {std::pair(WeightStyle::Torchvision, 1e-3), std::pair(WeightStyle::Timm, 1e-5),
        std::pair(WeightStyle::Keras, 1e-3)}) {
    ModelOptions options = published("efficientnet", "B5");
    set_as_in(options, style);
    EXPECT_EQ(options.efficientnet.norm_epsilon, epsilon) << name_of(style);
  }
}

// Keras' biases before a normalization go into its running mean, and BGR becomes RGB.
TEST(WeightsTest, TakesWhatKerasHasBesides) {
  const Graph graph = build_model(published("resnet", "50"));
  StateDictionary state;
  add_all(state, graph, WeightStyle::Keras);
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
