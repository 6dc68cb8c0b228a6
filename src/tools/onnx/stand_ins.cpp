// SPDX-License-Identifier: Apache-2.0
//
// What is known of the values of nodes without a counterpart, so that the nodes behind them are
// checked, too. A stand-in has a shape and nothing else; without a shape a value is unknown.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "models/graph.hpp"
#include "tools/onnx/importer.hpp"

namespace millrace::io {
namespace {

using models::ValueId;

/// Types that make a value of the shape of their largest input, whatever else they do.
constexpr std::string_view kKeepShape =
    " Abs Add BatchNormalization Cast Celu Clip Div Dropout Elu Erf Exp Gelu HardSigmoid"
    " HardSwish Identity InstanceNormalization LRN LeakyRelu LogSoftmax Max"
    " MeanVarianceNormalization Min Mish Mul Neg PRelu Pow Relu Selu Sigmoid Softmax Softplus"
    " Softsign Sqrt Sub Sum Tanh ThresholdedRelu ";

constexpr std::int32_t kFirstStandIn = -2;  // -1 is the invalid one

}  // namespace

const Shape& OnnxImporter::shape(ValueId id) const {
  if (id == ValueId{}) throw UnknownValue{};
  return id.valid() ? builder_.shape(id)
                    : stand_ins_[static_cast<std::size_t>(kFirstStandIn - id.value)];
}

/// Unknown if it is larger than any value may be.
ValueId OnnxImporter::stand_in(const Shape& shape) {
  const double pixels = static_cast<double>(shape.h) * static_cast<double>(shape.w);
  if (pixels * static_cast<double>(shape.c) > static_cast<double>(models::kMostElements)) return {};
  stand_ins_.push_back(shape);
  return {kFirstStandIn - static_cast<std::int32_t>(stand_ins_.size() - 1)};
}

ValueId OnnxImporter::stand_in(const models::OpKind& kind, const std::vector<ValueId>& inputs) {
  std::vector<Shape> shapes;
  for (const ValueId input : inputs) shapes.push_back(shape(input));
  const models::Inference made = models::infer(kind, shapes, 1);
  if (!made.misfit.empty()) throw Unsupported{made.misfit};
  return stand_in(made.output);
}

/// The shape that the file notes of a value.
std::optional<OnnxImporter::Value> OnnxImporter::declared(const std::string& name) {
  const auto found = declared_.find(name);
  if (found == declared_.end()) return {};
  const auto& dims = found->second->type().tensor_type().shape().dim();
  const bool flat = dims.size() == 2;
  if (!flat && dims.size() != 4) return {};
  const auto usable = [](const auto& dim) {
    return dim.dim_value() > 0 && dim.dim_value() <= models::kMostChannels;
  };
  if (!std::all_of(dims.begin() + 1, dims.end(), usable)) return {};
  if (flat) return Value{.id = stand_in(Shape{1, 1, dims[1].dim_value()}), .flat = true};
  return Value{.id =
                   stand_in(Shape{dims[2].dim_value(), dims[3].dim_value(), dims[1].dim_value()})};
}

OnnxImporter::Value OnnxImporter::stand_in(const OnnxNode& node) {
  if (const auto known = declared(node.output())) return *known;
  Value largest;
  for (const std::string& input : node.proto().input()) {
    const auto found = values_.find(input);
    if (found == values_.end()) continue;
    if (found->second.id == ValueId{}) return {};
    if (largest.id == ValueId{} || shape(found->second).elements() > shape(largest).elements())
      largest = found->second;
  }
  if (largest.id == ValueId{}) return {};
  const Shape& s = shape(largest);
  const Integers extents = {0, s.c, s.h, s.w};
  const Integers order = node.integers("perm", {});
  if (node.type() == "Transpose" && !largest.flat && order.size() == 4 &&
      from_the_front(order, 4) == Integers{0, 1, 2, 3} && order[0] == 0) {
    const auto extent = [&](std::size_t axis) {
      return extents[static_cast<std::size_t>(order[axis])];
    };
    return {.id = stand_in(Shape{extent(2), extent(3), extent(1)})};
  }
  if (kKeepShape.find(fmt::format(" {} ", node.proto().op_type())) == kKeepShape.npos) return {};
  return {.id = stand_in(Shape(s)), .flat = largest.flat};
}

}  // namespace millrace::io
