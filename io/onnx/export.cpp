// SPDX-License-Identifier: Apache-2.0
#include "io/onnx/export.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>
#include <vector>

#include "onnx.pb.h"

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

class Writer {
 public:
  Writer(const Graph& graph, const ParameterValues& values)
      : graph_(graph), values_(values), names_(graph.values.size()) {
    model_.set_ir_version(kVersion);
    model_.set_producer_name("millrace");
    model_.add_opset_import()->set_version(kOpset);
    model_.mutable_graph()->set_name(graph.name);
  }

  std::string write(const std::map<std::string, std::string>& notes) && {
    names_[Graph::input().at()] = "images";
    declare(model_.mutable_graph()->add_input(), "images",
            {-1, graph_.input_shape.c, graph_.input_shape.h, graph_.input_shape.w});
    for (const Op& op : graph_.ops) std::visit([&](const auto& kind) { add(op, kind); }, op.kind);
    for (const auto& [key, value] : notes) {
      onnx::StringStringEntryProto* entry = model_.add_metadata_props();
      entry->set_key(key);
      entry->set_value(value);
    }
    return model_.SerializeAsString();
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

  onnx::NodeProto* node(const std::string& name, const char* type,
                        const std::vector<std::string>& inputs, const std::string& output) {
    onnx::NodeProto* made = model_.mutable_graph()->add_node();
    made->set_name(name);
    made->set_op_type(type);
    for (const std::string& input : inputs) made->add_input(input);
    made->add_output(output);
    return made;
  }
  static onnx::AttributeProto* attribute(onnx::NodeProto* node, const char* name,
                                         onnx::AttributeProto::AttributeType type) {
    onnx::AttributeProto* made = node->add_attribute();
    made->set_name(name);
    made->set_type(type);
    return made;
  }
  static void set(onnx::NodeProto* node, const char* name, std::int64_t value) {
    attribute(node, name, onnx::AttributeProto::INT)->set_i(value);
  }
  static void set(onnx::NodeProto* node, const char* name, double value) {
    attribute(node, name, onnx::AttributeProto::FLOAT)->set_f(static_cast<float>(value));
  }
  static void set(onnx::NodeProto* node, const char* name,
                  std::initializer_list<std::int64_t> values) {
    onnx::AttributeProto* made = attribute(node, name, onnx::AttributeProto::INTS);
    for (const std::int64_t value : values) made->add_ints(value);
  }
  static void set_window(onnx::NodeProto* node, Extent kernel, Extent stride, const Padding& pad) {
    set(node, "kernel_shape", {kernel.h, kernel.w});
    set(node, "strides", {stride.h, stride.w});
    set(node, "pads", {pad.top, pad.left, pad.bottom, pad.right});
  }

  template <class T>
  std::string tensor(const std::string& name, const std::vector<std::int64_t>& shape,
                     std::span<const T> values, onnx::TensorProto::DataType type) {
    onnx::TensorProto* made = model_.mutable_graph()->add_initializer();
    made->set_name(name);
    made->set_data_type(type);
    for (const std::int64_t extent : shape) made->add_dims(extent);
    made->set_raw_data(values.data(), values.size_bytes());
    return name;
  }
  std::string floats(const std::string& name, const std::vector<std::int64_t>& shape,
                     std::span<const float> values) {
    return tensor(name, shape, values, onnx::TensorProto::FLOAT);
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
  /// The name of what an op makes.
  const std::string& output(const Op& op) { return names_[op.output.at()] = op.name; }

  [[nodiscard]] const Parameter* find(const Op& op, ParameterRole role) const {
    for (const ParameterId id : op.parameters)
      if (graph_.parameter(id).role == role) return &graph_.parameter(id);
    return nullptr;
  }
  /// A parameter with one value a channel.
  std::string vector_of(const Op& op, ParameterRole role) {
    const Parameter& parameter = *find(op, role);
    return floats(parameter.name, parameter.shape, values_(parameter));
  }

  /// OIHW from OHWI.
  std::string kernel_of(const Op& op) {
    const Parameter& parameter = *find(op, ParameterRole::Kernel);
    const std::vector<std::int64_t>& s = parameter.shape;
    return floats(parameter.name, {s[0], s[3], s[1], s[2]},
                  turned(values_(parameter), s[0], s[1] * s[2], s[3]));
  }
  /// Rows of `pixels` x `channels` as channels x pixels. Valid until the next call.
  std::span<const float> turned(std::span<const float> from, std::int64_t rows, std::int64_t pixels,
                                std::int64_t channels) {
    turned_.resize(from.size());
    const auto p = static_cast<std::size_t>(pixels);
    const auto c = static_cast<std::size_t>(channels);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
      for (std::size_t i = 0; i < p; ++i)
        for (std::size_t j = 0; j < c; ++j)
          turned_[(row * c + j) * p + i] = from[(row * p + i) * c + j];
    return turned_;
  }

  void add(const Op& op, const models::Conv& conv) {
    std::vector<std::string> inputs = {input(op), kernel_of(op)};
    if (conv.bias) inputs.push_back(vector_of(op, ParameterRole::Bias));
    onnx::NodeProto* made = node(op.name, "Conv", inputs, output(op));
    set_window(made, conv.kernel, conv.stride, conv.pad);
    set(made, "dilations", {conv.dilation.h, conv.dilation.w});
    set(made, "group", conv.groups);
  }

  void add(const Op& op, const models::Dense& dense) {
    const Shape& in = shape(op);
    std::string flat = input(op);
    if (!flat_.contains(op.inputs.front().value)) {
      flat = op.name + "/flat";
      set(node(flat, "Flatten", {input(op)}, flat), "axis", std::int64_t{1});
    }
    const Parameter& kernel = *find(op, ParameterRole::Kernel);
    std::vector<std::string> inputs = {
        flat,
        floats(kernel.name, kernel.shape, turned(values_(kernel), dense.units, in.h * in.w, in.c))};
    if (dense.bias) inputs.push_back(vector_of(op, ParameterRole::Bias));
    set(node(op.name, "Gemm", inputs, output(op)), "transB", std::int64_t{1});
    flat_.insert(op.output.value);
  }

  void add(const Op& op, const models::BatchNorm& norm) {
    onnx::NodeProto* made = node(
        op.name, "BatchNormalization",
        {input(op), vector_of(op, ParameterRole::Gamma), vector_of(op, ParameterRole::Beta),
         vector_of(op, ParameterRole::MovingMean), vector_of(op, ParameterRole::MovingVariance)},
        output(op));
    set(made, "epsilon", norm.epsilon);
    set(made, "momentum", norm.decay);
  }

  /// Groups as the channels of a normalization of single images, then gamma and beta.
  void add(const Op& op, const models::GroupNorm& norm) {
    const Shape& in = shape(op);
    const std::string at = op.name;
    std::string x = input(op);
    const bool strided = norm.order == models::GroupOrder::Strided;
    if (strided) x = channels(at + "/gather", x, in.c, norm.groups);
    x = reshape(at + "/groups", x, {0, norm.groups, -1});
    const std::vector<float> ones(static_cast<std::size_t>(norm.groups), 1.0f);
    const std::vector<float> zeros(ones.size(), 0.0f);
    onnx::NodeProto* made = node(
        at + "/normalize", "InstanceNormalization",
        {x, floats(at + "/ones", {norm.groups}, ones), floats(at + "/zeros", {norm.groups}, zeros)},
        at + "/normalized");
    set(made, "epsilon", norm.epsilon);
    x = reshape(at + "/channels", at + "/normalized", {0, in.c, in.h, in.w});
    if (strided) x = channels(at + "/scatter", x, in.c, in.c / norm.groups);
    const Parameter& gamma = *find(op, ParameterRole::Gamma);
    const Parameter& beta = *find(op, ParameterRole::Beta);
    node(at + "/scale", "Mul", {x, floats(gamma.name, {in.c, 1, 1}, values_(gamma))},
         at + "/scaled");
    node(op.name, "Add", {at + "/scaled", floats(beta.name, {in.c, 1, 1}, values_(beta))},
         output(op));
  }
  /// Channels of equal index modulo `groups` beside each other.
  std::string channels(const std::string& name, const std::string& x, std::int64_t count,
                       std::int64_t groups) {
    std::vector<std::int64_t> order;
    for (std::int64_t group = 0; group < groups; ++group)
      for (std::int64_t c = group; c < count; c += groups) order.push_back(c);
    set(node(name, "Gather", {x, numbers(name + "/order", order)}, name), "axis", std::int64_t{1});
    return name;
  }
  std::string reshape(const std::string& name, const std::string& x,
                      const std::vector<std::int64_t>& to) {
    node(name, "Reshape", {x, numbers(name + "/shape", to)}, name);
    return name;
  }

  void add(const Op& op, const models::Activate& activation) {
    if (flat_.contains(op.inputs.front().value)) flat_.insert(op.output.value);
    switch (activation.kind) {
      case Activation::None:
        names_[op.output.at()] = input(op);
        return;
      case Activation::Relu:
        node(op.name, "Relu", {input(op)}, output(op));
        return;
      case Activation::Sigmoid:
        node(op.name, "Sigmoid", {input(op)}, output(op));
        return;
      case Activation::Swish:
        node(op.name + "/sigmoid", "Sigmoid", {input(op)}, op.name + "/sigmoid");
        node(op.name, "Mul", {input(op), op.name + "/sigmoid"}, output(op));
        return;
    }
  }

  void add(const Op& op, const models::Add&) {
    node(op.name, "Add", {input(op, 0), input(op, 1)}, output(op));
  }
  void add(const Op& op, const models::Concat&) {
    std::vector<std::string> inputs;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs.push_back(input(op, i));
    set(node(op.name, "Concat", inputs, output(op)), "axis", std::int64_t{1});
  }
  void add(const Op& op, const models::ScaleChannels&) {
    node(op.name, "Mul", {input(op, 0), input(op, 1)}, output(op));
  }
  void add(const Op& op, const models::Pool& pool) {
    const bool mean = pool.kind == models::PoolKind::Average;
    onnx::NodeProto* made =
        node(op.name, mean ? "AveragePool" : "MaxPool", {input(op)}, output(op));
    set_window(made, pool.kernel, pool.stride, pool.pad);
    if (mean) set(made, "count_include_pad", std::int64_t{pool.count_padding ? 1 : 0});
  }
  void add(const Op& op, const models::GlobalAveragePool&) {
    node(op.name, "GlobalAveragePool", {input(op)}, output(op));
  }
  void add(const Op& op, const models::ShortcutPad& pad) {
    const std::string at = op.name;
    const Shape& in = shape(op);
    std::string x = input(op);
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
    if (flat_.contains(op.inputs.front().value)) flat_.insert(op.output.value);
  }
  void add(const Op& op, const models::SoftmaxLoss&) {
    const bool flat = flat_.contains(op.inputs.front().value);
    onnx::NodeProto* made = node("logits", flat ? "Identity" : "Flatten", {input(op)}, "logits");
    if (!flat) set(made, "axis", std::int64_t{1});
    const Shape& in = shape(op);
    declare(model_.mutable_graph()->add_output(), "logits", {-1, in.h * in.w * in.c});
  }

  const Graph& graph_;
  const ParameterValues& values_;
  onnx::ModelProto model_;
  std::vector<std::string> names_;  ///< by value
  std::set<std::int32_t> flat_;     ///< values without pixels
  std::vector<float> turned_;
};

}  // namespace

std::string to_onnx(const Graph& graph, const ParameterValues& values,
                    const std::map<std::string, std::string>& notes) {
  return Writer(graph, values).write(notes);
}

}  // namespace millrace::io
