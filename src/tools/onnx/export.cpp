// SPDX-License-Identifier: Apache-2.0
#include "tools/onnx/onnx_file.hpp"

#include <fmt/format.h>

#include <array>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "core/permute.hpp"
#include "models/graph_json.hpp"
#include "tools/onnx/importer.hpp"

namespace millrace::io {
namespace {

using models::Extent;
using models::Graph;
using models::Op;
using models::Padding;
using models::Parameter;
using models::ParameterId;
using models::ParameterRole;

constexpr int kVersion = 8;  // of the format
constexpr int kOpset = 13;
constexpr const char* kImages = "images";
constexpr const char* kLogits = "logits";

class Writer {
 public:
  /// Without `values`, tensors have no elements.
  Writer(const Graph& graph, const ParameterValues* values)
      : graph_(graph), values_(values), names_(graph.values.size()) {
    model_.set_ir_version(kVersion);
    model_.set_producer_name("millrace");
    model_.add_opset_import()->set_version(kOpset);
    model_.mutable_graph()->set_name(graph.name);
  }

  onnx::ModelProto write() && {
    names_[Graph::input().at()] = kImages;
    declare(model_.mutable_graph()->add_input(), kImages,
            {-1, graph_.input_shape.c, graph_.input_shape.h, graph_.input_shape.w});
    for (const Op& op : graph_.ops) std::visit([&](const auto& kind) { add(op, kind); }, op.kind);
    return std::move(model_);
  }

 private:
  // ---- parts of a file

  static void declare(onnx::ValueInfoProto* value, const std::string& name,
                      const std::vector<std::int64_t>& shape) {
    value->set_name(name);
    onnx::TypeProto::Tensor* type = value->mutable_type()->mutable_tensor_type();
    type->set_elem_type(onnx::TensorProto::FLOAT);
    for (const std::int64_t extent : shape) {
      auto* dimension = type->mutable_shape()->add_dim();
      extent < 0 ? dimension->set_dim_param("N") : dimension->set_dim_value(extent);
    }
  }

  struct Attribute {
    const char* name;
    std::variant<std::int64_t, float, std::vector<std::int64_t>> value;
  };
  using Attributes = std::vector<Attribute>;

  static void set(onnx::AttributeProto& made, std::int64_t value) {
    made.set_type(onnx::AttributeProto::INT);
    made.set_i(value);
  }
  static void set(onnx::AttributeProto& made, float value) {
    made.set_type(onnx::AttributeProto::FLOAT);
    made.set_f(value);
  }
  static void set(onnx::AttributeProto& made, const std::vector<std::int64_t>& values) {
    made.set_type(onnx::AttributeProto::INTS);
    for (const std::int64_t value : values) made.add_ints(value);
  }

  void node(const std::string& name, const char* type, const std::vector<std::string>& inputs,
            const std::string& output, const Attributes& attributes = {}) {
    onnx::NodeProto& made = *model_.mutable_graph()->add_node();
    made.set_name(name);
    made.set_op_type(type);
    for (const std::string& input : inputs) made.add_input(input);
    made.add_output(output);
    for (const Attribute& attribute : attributes) {
      onnx::AttributeProto& added = *made.add_attribute();
      added.set_name(attribute.name);
      std::visit([&](const auto& value) { set(added, value); }, attribute.value);
    }
  }
  static Attributes window(Extent kernel, Extent stride, const Padding& pad) {
    return {{"kernel_shape", std::vector{kernel.h, kernel.w}},
            {"strides", std::vector{stride.h, stride.w}},
            {"pads", std::vector{pad.top, pad.left, pad.bottom, pad.right}}};
  }

  template <class T>
  std::string tensor(const std::string& name, const std::vector<std::int64_t>& shape,
                     std::span<const T> values, onnx::TensorProto::DataType type) {
    onnx::TensorProto* made = model_.mutable_graph()->add_initializer();
    made->set_name(name);
    made->set_data_type(type);
    for (const std::int64_t extent : shape) made->add_dims(extent);
    if (!values.empty()) made->set_raw_data(values.data(), values.size_bytes());
    return name;
  }
  std::string floats(const std::string& name, const std::vector<std::int64_t>& shape,
                     std::span<const float> values) {
    return tensor(name, shape, values, onnx::TensorProto::FLOAT);
  }
  std::string number(const std::string& name, float value) {
    node(name, "Constant", {}, name, {{"value_float", value}});
    return name;
  }
  /// A parameter as a tensor of this shape. `axes`: the order of those of `own`, in which it lies
  /// here.
  std::string parameter(const Parameter& parameter, const std::vector<std::int64_t>& shape,
                        const std::vector<std::int64_t>& own = {},
                        std::span<const std::size_t> axes = {}) {
    if (values_ == nullptr) return floats(parameter.name, shape, {});
    const std::span<const float> values = (*values_)(parameter);
    if (axes.empty()) return floats(parameter.name, shape, values);
    return floats(parameter.name, shape, permuted(values, own, axes));
  }
  std::string numbers(const std::string& name, const std::vector<std::int64_t>& values) {
    return tensor(name, {std::ssize(values)}, std::span<const std::int64_t>(values),
                  onnx::TensorProto::INT64);
  }

  // ---- parts of a network

  [[nodiscard]] const std::string& input(const Op& op, std::size_t i = 0) const {
    return names_[op.inputs.at(i).at()];
  }
  [[nodiscard]] const Shape& shape(const Op& op, std::size_t i = 0) const {
    return graph_.value(op.inputs.at(i)).shape;
  }
  /// The name of what an op makes: that of the op, unless the file needs it for itself.
  const std::string& output(const Op& op) {
    const bool taken = op.name == kImages || op.name == kLogits;
    return names_[op.output.at()] = taken ? op.name + "/value" : op.name;
  }
  /// The name of a value with an axis for height and one for width.
  std::string image(const Op& op, std::size_t i = 0) {
    if (!is_flat(op, i)) return input(op, i);
    const Shape& in = shape(op, i);
    return reshape(fmt::format("{}/image{}", op.name, i), input(op, i), {0, in.c, in.h, in.w});
  }
  [[nodiscard]] bool is_flat(const Op& op, std::size_t i = 0) const {
    return flat_.contains(op.inputs.at(i).value);
  }
  /// The inputs of an op that makes a flat value of flat values alone.
  std::vector<std::string> alike(const Op& op) {
    bool flat = true;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) flat = flat && is_flat(op, i);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      names.push_back(flat ? input(op, i) : image(op, i));
    if (flat) flat_.insert(op.output.value);
    return names;
  }

  [[nodiscard]] const Parameter* find(const Op& op, ParameterRole role) const {
    for (const ParameterId id : op.parameters)
      if (graph_.parameter(id).role == role) return &graph_.parameter(id);
    return nullptr;
  }
  /// A parameter with one value a channel.
  std::string vector_of(const Op& op, ParameterRole role) {
    const Parameter& found = *find(op, role);
    return parameter(found, found.shape);
  }

  void add(const Op& op, const models::Conv& conv) {
    const Parameter& kernel = *find(op, ParameterRole::Kernel);
    const std::vector<std::int64_t>& s = kernel.shape;
    constexpr std::array<std::size_t, 4> kOihw = {0, 3, 1, 2};
    std::vector<std::string> inputs = {
        image(op), parameter(kernel, {s[0], s[3], s[1], s[2]}, kernel.shape, kOihw)};
    if (conv.bias) inputs.push_back(vector_of(op, ParameterRole::Bias));
    Attributes attributes = window(conv.kernel, conv.stride, conv.pad);
    attributes.push_back({"dilations", std::vector{conv.dilation.h, conv.dilation.w}});
    attributes.push_back({"group", conv.groups});
    node(op.name, "Conv", inputs, output(op), attributes);
  }

  void add(const Op& op, const models::Dense& dense) {
    const Shape& in = shape(op);
    std::string flat = input(op);
    if (!is_flat(op)) {
      flat = op.name + "/flat";
      node(flat, "Flatten", {input(op)}, flat, {{"axis", 1}});
    }
    const Parameter& kernel = *find(op, ParameterRole::Kernel);
    constexpr std::array<std::size_t, 3> kChannelsFirst = {0, 2, 1};
    std::vector<std::string> inputs = {
        flat, parameter(kernel, kernel.shape, {dense.units, in.pixels(), in.c}, kChannelsFirst)};
    if (dense.bias) inputs.push_back(vector_of(op, ParameterRole::Bias));
    node(op.name, "Gemm", inputs, output(op), {{"transB", 1}});
    flat_.insert(op.output.value);
  }

  void add(const Op& op, const models::BatchNorm& norm) {
    if (is_flat(op)) flat_.insert(op.output.value);
    node(op.name, "BatchNormalization",
         {input(op), vector_of(op, ParameterRole::Gamma), vector_of(op, ParameterRole::Beta),
          vector_of(op, ParameterRole::MovingMean), vector_of(op, ParameterRole::MovingVariance)},
         output(op),
         {{"epsilon", static_cast<float>(norm.epsilon)},
          {"momentum", static_cast<float>(norm.decay)}});
  }

  /// Groups as the channels of a normalization of single images, then gamma and beta.
  void add(const Op& op, const models::GroupNorm& norm) {
    const Shape& in = shape(op);
    const std::string at = op.name;
    std::string x = image(op);
    const bool strided = norm.order == models::GroupOrder::Strided;
    if (strided) x = channels(at + "/gather", x, in.c, norm.groups);
    x = reshape(at + "/groups", x, {0, norm.groups, -1});
    const std::vector<float> ones(static_cast<std::size_t>(norm.groups), 1.0f);
    const std::vector<float> zeros(ones.size(), 0.0f);
    node(
        at + "/normalize", "InstanceNormalization",
        {x, floats(at + "/ones", {norm.groups}, ones), floats(at + "/zeros", {norm.groups}, zeros)},
        at + "/normalized", {{"epsilon", static_cast<float>(norm.epsilon)}});
    x = reshape(at + "/channels", at + "/normalized", {0, in.c, in.h, in.w});
    if (strided) x = channels(at + "/scatter", x, in.c, in.c / norm.groups);
    const Parameter& gamma = *find(op, ParameterRole::Gamma);
    const Parameter& beta = *find(op, ParameterRole::Beta);
    node(at + "/scale", "Mul", {x, parameter(gamma, {in.c, 1, 1})}, at + "/scaled");
    node(op.name, "Add", {at + "/scaled", parameter(beta, {in.c, 1, 1})}, output(op));
  }
  /// Channels of equal index modulo `groups` beside each other.
  std::string channels(const std::string& name, const std::string& x, std::int64_t count,
                       std::int64_t groups) {
    std::vector<std::int64_t> order;
    for (std::int64_t group = 0; group < groups; ++group)
      for (std::int64_t c = group; c < count; c += groups) order.push_back(c);
    node(name, "Gather", {x, numbers(name + "/order", order)}, name, {{"axis", 1}});
    return name;
  }
  std::string reshape(const std::string& name, const std::string& x,
                      const std::vector<std::int64_t>& to) {
    node(name, "Reshape", {x, numbers(name + "/shape", to)}, name);
    return name;
  }

  void add(const Op& op, const models::Activate& activation) {
    if (is_flat(op)) flat_.insert(op.output.value);
    const ActivationNumbers n = activation.numbers;
    switch (activation.kind) {
      case Activation::None:
        names_[op.output.at()] = input(op);
        return;
      case Activation::Relu:
      case Activation::Sigmoid:
        node(op.name, activation.kind == Activation::Relu ? "Relu" : "Sigmoid", {input(op)},
             output(op));
        return;
      case Activation::Swish:
        node(op.name + "/sigmoid", "Sigmoid", {input(op)}, op.name + "/sigmoid");
        node(op.name, "Mul", {input(op), op.name + "/sigmoid"}, output(op));
        return;
      case Activation::Clip:
        node(op.name, "Clip",
             {input(op), number(op.name + "/low", n.a), number(op.name + "/high", n.b)},
             output(op));
        return;
      case Activation::LeakyRelu:
        node(op.name, "LeakyRelu", {input(op)}, output(op), {{"alpha", n.a}});
        return;
      case Activation::HardSigmoid:
        node(op.name, "HardSigmoid", {input(op)}, output(op), {{"alpha", n.a}, {"beta", n.b}});
        return;
      case Activation::HardSwish:  // a node of its own only from opset 14 on
        node(op.name + "/gate", "HardSigmoid", {input(op)}, op.name + "/gate",
             {{"alpha", 1.0f / 6.0f}, {"beta", 0.5f}});
        node(op.name, "Mul", {input(op), op.name + "/gate"}, output(op));
        return;
    }
  }

  void add(const Op& op, const models::Add&) { node(op.name, "Add", alike(op), output(op)); }
  void add(const Op& op, const models::Concat&) {
    node(op.name, "Concat", alike(op), output(op), {{"axis", 1}});
  }
  void add(const Op& op, const models::ScaleChannels&) {
    node(op.name, "Mul", alike(op), output(op));
  }
  void add(const Op& op, const models::Pool& pool) {
    const bool mean = pool.kind == models::PoolKind::Average;
    Attributes attributes = window(pool.kernel, pool.stride, pool.pad);
    if (mean) attributes.push_back({"count_include_pad", pool.count_padding ? 1 : 0});
    node(op.name, mean ? "AveragePool" : "MaxPool", {image(op)}, output(op), attributes);
  }
  void add(const Op& op, const models::GlobalAveragePool&) {
    node(op.name, "GlobalAveragePool", {image(op)}, output(op));
  }
  void add(const Op& op, const models::ShortcutPad& pad) {
    const std::string at = op.name;
    const Shape& in = shape(op);
    std::string x = image(op);
    const bool pads = pad.channels_before + pad.channels_after > 0;
    if (pad.stride != Extent{1, 1}) {
      const std::string sliced = pads ? at + "/pixels" : output(op);
      node(sliced, "Slice",
           {x, numbers(at + "/begins", {0, 0}), numbers(at + "/ends", {in.h, in.w}),
            numbers(at + "/axes", {2, 3}), numbers(at + "/steps", {pad.stride.h, pad.stride.w})},
           sliced);
      x = sliced;
    }
    if (pads)
      node(at, "Pad",
           {x, numbers(at + "/pads", {0, pad.channels_before, 0, 0, 0, pad.channels_after, 0, 0})},
           output(op));
    else
      names_[op.output.at()] = x;
  }
  void add(const Op& op, const models::Dropout&) { pass(op); }
  void add(const Op& op, const models::DropConnect&) { pass(op); }
  void pass(const Op& op) {
    names_[op.output.at()] = input(op);
    if (is_flat(op)) flat_.insert(op.output.value);
  }
  void add(const Op& op, const models::SoftmaxLoss&) {
    const bool flat = is_flat(op);
    node(kLogits, flat ? "Identity" : "Flatten", {input(op)}, kLogits,
         flat ? Attributes{} : Attributes{{"axis", 1}});
    const Shape& in = shape(op);
    declare(model_.mutable_graph()->add_output(), kLogits, {-1, in.h * in.w * in.c});
  }

  const Graph& graph_;
  const ParameterValues* values_;
  onnx::ModelProto model_;
  std::vector<std::string> names_;  ///< by value
  std::set<std::int32_t> flat_;     ///< values without axes for height and width
};

}  // namespace

onnx::ModelProto structure_of(const Graph& graph) { return Writer(graph, nullptr).write(); }

std::string to_onnx(const Graph& graph, const ParameterValues& values,
                    const std::map<std::string, std::string>& notes) {
  onnx::ModelProto model = Writer(graph, &values).write();
  const auto note = [&model](const std::string& key, const std::string& value) {
    onnx::StringStringEntryProto* entry = model.add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  };
  for (const auto& [key, value] : notes) note(key, value);
  note(kGraphNote, to_json(graph).dump());
  return model.SerializeAsString();
}

}  // namespace millrace::io
