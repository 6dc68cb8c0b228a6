// SPDX-License-Identifier: Apache-2.0
#include "tools/onnx/onnx_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/permute.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "models/graph_json.hpp"
#include "tools/onnx/importer.hpp"

namespace millrace::io {
namespace {

using models::Graph;
using models::Op;
using models::Parameter;
using models::ParameterRole;

/// Protocol buffers count bytes in 32 bits.
constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int32_t>::max();

/// The graph that the file notes; nothing if it notes none, or one that cannot be.
std::optional<Graph> noted_graph(const onnx::ModelProto& model) {
  for (const onnx::StringStringEntryProto& entry : model.metadata_props()) {
    if (entry.key() != kGraphNote) continue;
    try {
      return models::graph_from_json(Json::parse(entry.value()));
    } catch (const JsonError&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

/// Tensors by name: nullptr for one that occurs twice.
std::map<std::string, const onnx::TensorProto*> tensors_of(const onnx::GraphProto& graph) {
  std::map<std::string, const onnx::TensorProto*> tensors;
  for (const onnx::TensorProto& tensor : graph.initializer())
    if (const auto [at, is_new] = tensors.emplace(tensor.name(), &tensor); !is_new)
      at->second = nullptr;
  return tensors;
}

/// Whether both have the same nodes, inputs, outputs, and names and shapes of tensors.
bool are_alike(const onnx::GraphProto& a, const onnx::GraphProto& b) {
  const auto same = [](const auto& x, const auto& y) {
    return std::ranges::equal(x, y, [](const auto& one, const auto& other) {
      return one.SerializeAsString() == other.SerializeAsString();
    });
  };
  return same(a.node(), b.node()) && same(a.input(), b.input()) && same(a.output(), b.output()) &&
         std::ranges::equal(a.initializer(), b.initializer(), [](const auto& x, const auto& y) {
           return x.name() == y.name() && x.data_type() == y.data_type() &&
                  std::ranges::equal(x.dims(), y.dims());
         });
}

/// A file that was written here; nothing if it was not, or was changed since.
std::optional<ImportedGraph> import_noted(const onnx::ModelProto& model) {
  std::optional<Graph> graph = noted_graph(model);
  if (!graph || !are_alike(model.graph(), structure_of(*graph).graph())) return std::nullopt;
  const auto tensors = tensors_of(model.graph());
  ImportedGraph result;
  for (const Parameter& parameter : graph->parameters) {
    const auto found = tensors.find(parameter.name);
    if (found == tensors.end() || found->second == nullptr) return std::nullopt;
    result.sources.push_back({found->second});
  }
  result.graph = std::move(*graph);
  return result;
}

/// The order in which a file has the elements, as axes of `shape`, the order that we have.
struct Order {
  Integers shape;
  std::vector<std::size_t> axes;
};

Order order_of(const Graph& graph, const Parameter& parameter, bool transposed) {
  if (parameter.role != ParameterRole::Kernel) return {parameter.shape, {0}};
  const Op& op = graph.op(parameter.op);
  if (parameter.shape.size() == 4) return {parameter.shape, {0, 3, 1, 2}};
  const Shape& in = graph.value(op.inputs.front()).shape;
  const Order rows = {{parameter.shape.front(), in.pixels(), in.c}, {0, 2, 1}};
  return transposed ? Order{rows.shape, {2, 1, 0}} : rows;
}

/// The elements of a tensor that must have some.
std::vector<float> floats_in(const onnx::TensorProto& tensor, const OnnxPlace& place) {
  if (!has_elements(tensor))
    fail(ErrorKind::Data,
         "{}: has no elements of '{}': it holds a network without weights: give --init-weights "
         "fresh",
         place.label, tensor.name());
  return floats_of(tensor, place);
}

/// In the order that we have.
std::vector<float> elements_of(const Graph& graph, const Parameter& parameter,
                               const WeightSource& source, const OnnxPlace& place) {
  if (source.tensor == nullptr)
    return std::vector<float>(static_cast<std::size_t>(parameter.elements()), source.fill);
  const std::vector<float> values = floats_in(*source.tensor, place);
  if (std::ssize(values) != parameter.elements())
    fail(ErrorKind::Data, "{}: tensor '{}' has {} elements, but {} needs {}", place.label,
         source.tensor->name(), values.size(), parameter.name, parameter.elements());
  const Order order = order_of(graph, parameter, source.transposed);
  return unpermuted(values, order.shape, order.axes);
}

/// Elements of a channel lie beside each other.
void apply(const std::vector<ChannelStep>& steps, std::vector<float>& values,
           const OnnxPlace& place) {
  using Does = ChannelStep::Does;
  std::vector<double> exact(values.begin(), values.end());
  for (const ChannelStep& step : steps) {
    const std::vector<float> by =
        step.tensor == nullptr ? std::vector{step.fill} : floats_in(*step.tensor, place);
    MILLRACE_ASSERT(!by.empty() && exact.size() % by.size() == 0);
    if (step.does == Does::Divide && std::ranges::find(by, 0.0f) != by.end())
      fail(ErrorKind::Data, "{}: divides channels by 0: export the network again", place.label);
    const std::size_t run = exact.size() / by.size();
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const auto constant = static_cast<double>(by[i / run]);
      exact[i] = step.does == Does::Multiply ? exact[i] * constant
                 : step.does == Does::Divide ? exact[i] / constant
                 : step.does == Does::Add    ? exact[i] + constant
                                             : exact[i] - constant;
    }
  }
  std::ranges::transform(exact, values.begin(), [](double v) { return static_cast<float>(v); });
}

/// What is read of a file, and refers to parts of itself.
struct Content {
  OnnxPlace place;
  onnx::ModelProto model;
  ImportedGraph imported;
};

std::vector<float> values_of(const Content& content, models::ParameterId id) {
  const Graph& graph = content.imported.graph;
  const WeightSource& source = content.imported.sources.at(id.at());
  std::vector<float> values = elements_of(graph, graph.parameter(id), source, content.place);
  if (!source.steps.empty()) apply(source.steps, values, content.place);
  return values;
}

/// The network in a model, if it was `parsed`.
NetworkFile network_of(std::shared_ptr<Content> content, bool parsed, const std::string& name) {
  Content& c = *content;
  if (!parsed || c.model.graph().node_size() == 0)
    fail(ErrorKind::Data,
         "{}: is not a network in the format of ONNX, or is cut off: export it again",
         c.place.label);
  if (std::optional<ImportedGraph> noted = import_noted(c.model))
    c.imported = std::move(*noted);
  else
    c.imported = import_nodes(c.model, name.empty() ? "network" : printable(name), c.place);
  MILLRACE_ASSERT(c.imported.sources.size() == c.imported.graph.parameters.size());
  NetworkFile file;
  file.graph = c.imported.graph;
  file.notices = c.imported.notices;
  for (const onnx::StringStringEntryProto& entry : c.model.metadata_props())
    file.metadata.emplace(entry.key(), entry.value());
  file.values = [content = std::move(content)](models::ParameterId id) {
    return values_of(*content, id);
  };
  return file;
}

}  // namespace

NetworkFile read_onnx(const std::filesystem::path& path) {
  const auto content = std::make_shared<Content>();
  const std::filesystem::path folder = path.parent_path();
  content->place = {path.string(), folder.empty() ? "." : folder};
  const UniqueFd file = open_file(path, O_RDONLY);
  google::protobuf::io::FileInputStream stream(file.get());
  const bool fits = regular_size(file.get(), path) <= kMostBytes;
  const bool parsed = fits && content->model.ParseFromZeroCopyStream(&stream);
  if (stream.GetErrno() != 0) fail_io("read", path, stream.GetErrno());
  return network_of(content, parsed, path.stem().string());
}

NetworkFile parse_onnx(std::string_view bytes, const std::string& label, const std::string& name) {
  const auto content = std::make_shared<Content>();
  content->place = {label, {}};
  const bool parsed = bytes.size() <= kMostBytes &&
                      content->model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return network_of(content, parsed, name);
}

}  // namespace millrace::io
