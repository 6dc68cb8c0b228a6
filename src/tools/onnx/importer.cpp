// SPDX-License-Identifier: Apache-2.0
#include "tools/onnx/importer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/graph.hpp"

namespace millrace::io {
namespace {

using models::Graph;
using models::ValueId;

/// The one input that is no weight.
const onnx::ValueInfoProto& images_of(const onnx::GraphProto& file, const OnnxPlace& place) {
  std::set<std::string> weights;  // older files list them as inputs
  for (const onnx::TensorProto& tensor : file.initializer()) weights.insert(tensor.name());
  const onnx::ValueInfoProto* found = nullptr;
  for (const onnx::ValueInfoProto& input : file.input()) {
    if (weights.contains(input.name())) continue;
    if (found != nullptr)
      fail(ErrorKind::Config, "{}: has the inputs '{}' and '{}': a network reads images alone",
           place.label, found->name(), input.name());
    found = &input;
  }
  if (found == nullptr)
    fail(ErrorKind::Data, "{}: has no input: the file is damaged, or holds no network",
         place.label);
  return *found;
}

OnnxInput input_of(const onnx::GraphProto& file, const OnnxPlace& place) {
  const onnx::ValueInfoProto& input = images_of(file, place);
  const onnx::TypeProto::Tensor& type = input.type().tensor_type();
  if (type.elem_type() != onnx::TensorProto::FLOAT)
    fail(ErrorKind::Config,
         "{}: input '{}' has elements of type {}, not float32: export the network in float32",
         place.label, input.name(), type.elem_type());
  Integers extents;  // 0: not fixed
  for (const auto& dimension : type.shape().dim())
    extents.push_back(std::max<std::int64_t>(dimension.dim_value(), 0));
  if (extents.size() != 4)
    fail(ErrorKind::Config,
         "{}: input '{}' has {} axes, but images have 4: batch, channels, height, width",
         place.label, input.name(), extents.size());
  const std::span<const std::int64_t> fixed = std::span(extents).subspan(1);
  if (std::ranges::find(fixed, 0) != fixed.end())
    fail(ErrorKind::Config,
         "{}: input '{}' leaves channels, height or width open: export the network with the size "
         "of its images; only the number of images may be dynamic",
         place.label, input.name());
  if (std::ranges::any_of(fixed, [](std::int64_t e) { return e > models::kMostChannels; }))
    fail(ErrorKind::Data, "{}: images of {} are larger than any network reads", place.label,
         join(fixed, "x"));
  return {input.name(), extents[0], {.h = extents[2], .w = extents[3], .c = extents[1]}};
}

/// What `build` makes. An op that cannot be is refused without the layer, which a list of nodes
/// names.
template <class Build>
ValueId built(const std::string& layer, const Build& build) {
  try {
    return build();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Config) throw;
    std::string why = error.what();
    if (const std::size_t at = why.find(": " + layer); at != std::string::npos)
      why.erase(0, why.find_first_not_of(": ", at + 2 + layer.size()));
    throw Unsupported{why};
  }
}

void require_opset(const onnx::ModelProto& model, const OnnxPlace& place) {
  constexpr std::int64_t kOldest = 7;  // broadcasting was another before it
  for (const onnx::OperatorSetIdProto& set : model.opset_import())
    if ((set.domain().empty() || set.domain() == "ai.onnx") && set.version() < kOldest)
      fail(ErrorKind::Config, "{}: was written for opset {}: export it again for opset 13 or later",
           place.label, set.version());
}

}  // namespace

ImportedGraph import_nodes(const onnx::ModelProto& model, const std::string& name,
                           const OnnxPlace& place) {
  require_opset(model, place);
  return OnnxImporter(model, name, place).import();
}

OnnxImporter::OnnxImporter(const onnx::ModelProto& model, const std::string& name,
                           const OnnxPlace& place)
    : file_(model.graph()),
      place_(place),
      input_(input_of(file_, place)),
      builder_(name, input_.image, 1) {
  for (const onnx::TensorProto& tensor : file_.initializer()) {
    const Constant weight{.tensor = &tensor, .extents = extents_of(tensor, place)};
    if (!constants_.emplace(tensor.name(), weight).second)
      fail(ErrorKind::Data, "{}: has two tensors '{}'", place.label, tensor.name());
  }
  for (const onnx::ValueInfoProto& value : file_.value_info()) declared_[value.name()] = &value;
}

ImportedGraph OnnxImporter::import() {
  values_[input_.name] = {models::Graph::input()};
  find_makers();
  find_needed();
  find_parts();
  for (const onnx::NodeProto& proto : file_.node())
    if (needed_.contains(&proto)) visit(OnnxNode(proto, place_));
  if (!problems_.empty()) refuse();
  Graph graph = with_loss();
  if (!normalises_ && !graph.parameters.empty())
    notices_.push_back(fmt::format(
        "{}: has no normalization; if the network has one, export it so that it is not merged into "
        "the convolutions, from PyTorch with training=torch.onnx.TrainingMode.PRESERVE",
        place_.label));
  return {std::move(graph), std::move(sources_), std::move(notices_)};
}

/// Which node makes which value.
void OnnxImporter::find_makers() {
  if (file_.node_size() > models::kMostOps)
    fail(ErrorKind::Data, "{}: {} nodes exceed the limit of {}", place_.label, file_.node_size(),
         models::kMostOps);
  for (const onnx::NodeProto& node : file_.node())
    for (const std::string& output : node.output()) {
      const bool twice = values_.contains(output) || constants_.contains(output);
      if (!output.empty() && (!makers_.emplace(output, &node).second || twice))
        fail(ErrorKind::Data, "{}: two nodes or tensors make the value '{}'", place_.label, output);
    }
}

/// What nodes make of the images, rather than of shapes and tensors.
void OnnxImporter::find_values_of_images() {
  of_images_ = {input_.name};
  for (const onnx::NodeProto& node : file_.node()) {
    const bool reads = std::ranges::any_of(
        node.input(), [&](const std::string& input) { return of_images_.contains(input); });
    if (reads && node.op_type() != "Shape")
      of_images_.insert(node.output().begin(), node.output().end());
  }
}

bool OnnxImporter::is_constant(const std::string& name) const {
  if (constants_.contains(name)) return true;
  if (!of_images_.contains(name)) throw UnknownValue{};
  return false;
}

/// The nodes from which the logits follow, and who reads what they make.
void OnnxImporter::find_needed() {
  if (file_.output_size() != 1)
    fail(ErrorKind::Config,
         "{}: has {} outputs, but millrace trains networks with one, the logits: export it without "
         "the others",
         place_.label, file_.output_size());
  find_values_of_images();
  std::vector<std::string> open = {file_.output(0).name()};
  while (!open.empty()) {
    const auto maker = makers_.find(open.back());
    open.pop_back();
    if (maker == makers_.end() || !needed_.insert(maker->second).second) continue;
    for (const std::string& input : maker->second->input()) {
      readers_[input].push_back(maker->second);
      // A shape does not make its value necessary, unless that is computed from shapes itself.
      if (maker->second->op_type() != "Shape" || !of_images_.contains(input)) open.push_back(input);
    }
  }
}

const onnx::NodeProto* OnnxImporter::sole_reader(const onnx::NodeProto& node) const {
  const auto readers = readers_.find(node.output(0));
  const bool is_output = node.output(0) == file_.output(0).name();
  if (is_output || readers == readers_.end() || readers->second.size() != 1) return nullptr;
  return readers->second.front();
}

void OnnxImporter::visit(const OnnxNode& node) {
  const auto row = table().find(node.type());
  try {
    if (node.proto().output_size() < 1) node.damaged("makes nothing");
    for (const std::string& input : node.proto().input())
      if (!input.empty() && !values_.contains(input) && !constants_.contains(input))
        node.damaged(
            makers_.contains(input)
                ? fmt::format("reads '{}', which only a later node makes, or a node that "
                              "reads what this one makes",
                              input)
                : fmt::format("reads '{}', which neither a node nor a tensor makes", input));
    if (const auto part = parts_.find(&node.proto()); part != parts_.end())
      return put_part(node, part->second);
    if (row == table().end()) throw Unsupported{};
    return (this->*row->second)(node);
  } catch (const UnknownValue&) {
    if (problems_.empty()) node.damaged("lacks an input");
  } catch (const Unsupported& why) {
    note_problem(node, why.reason);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Config) throw;
    std::string_view why = error.what();
    if (why.starts_with(place_.label + ": ")) why.remove_prefix(place_.label.size() + 2);
    note_problem(node, why);
  }
  for (const std::string& output : node.proto().output()) values_.emplace(output, Value{});
}

void OnnxImporter::note_problem(const OnnxNode& node, std::string_view why) {
  problems_.push_back(
      fmt::format("{} ({}){}{}", node.name(), node.type(), why.empty() ? "" : ": ", why));
  values_.emplace(node.output(), stand_in(node));
}

void OnnxImporter::refuse() const {
  const bool turned = std::ranges::any_of(file_.node(), [&](const onnx::NodeProto& node) {
    return needed_.contains(&node) && node.op_type() == "Transpose" &&
           of_images_.contains(node.output(0));
  });
  const std::string remedy =
      turned ? fmt::format(
                   ": images must be batch, channels, height, width throughout: convert with "
                   "tf2onnx's --inputs-as-nchw {}, or export from PyTorch",
                   input_.name)
             : "";
  fail(ErrorKind::Config, "{}: {} of {} nodes have no counterpart in millrace: {}{}", place_.label,
       problems_.size(), needed_.size(), join(problems_, "; "), remedy);
}

Graph OnnxImporter::with_loss() {
  const std::string& output = file_.output(0).name();
  const auto logits = values_.find(output);
  if (logits == values_.end())
    fail(ErrorKind::Data, "{}: no node makes the output '{}'", place_.label, output);
  const Shape made = shape(logits->second);
  if (made.pixels() != 1 || logits->second.id == Graph::input())
    fail(ErrorKind::Config,
         "{}: the output '{}' has shape {}, but a classifier ends with one number per class",
         place_.label, output, made);
  std::string name = "loss";
  while (!names_.insert(name).second) name += '_';
  builder_.begin_layer(name);
  builder_.softmax_loss("", logits->second.id, {.logits = made.c});
  Graph graph = std::move(builder_).build();
  graph.classes = made.c;  // known only now
  std::get<models::SoftmaxLoss>(graph.ops.back().kind).logits = 0;
  return graph;
}

// ---- what the nodes build on

const OnnxImporter::Value& OnnxImporter::value(const OnnxNode& node, int input) const {
  const std::string& name = node.input(input);
  if (name.empty()) node.damaged(fmt::format("lacks its input {}", input));
  const auto found = values_.find(name);
  if (found == values_.end()) throw Unsupported{fmt::format("of the constant '{}'", name)};
  if (found->second.id == ValueId{}) throw UnknownValue{};
  if (found->second.pad != models::Padding{} && node.type() != "Conv")
    throw Unsupported{"behind a Pad; only a Conv may read what is padded"};
  if (found->second.third_axis && node.type() != "Unsqueeze")
    throw Unsupported{"of a value of three axes"};
  if (found->second.spread && node.type() != "Mul")
    throw Unsupported{"behind an Expand; only a Mul may read what is repeated"};
  if (found->second.norm != nullptr)
    throw Unsupported{"of channels in groups, other than in a group normalization"};
  return found->second;
}

ValueId OnnxImporter::image(const OnnxNode& node, int input) const {
  const Value& found = value(node, input);
  if (found.flat) throw Unsupported{"of a value without height and width"};
  return found.id;
}

const OnnxImporter::Constant& OnnxImporter::constant(const OnnxNode& node, int input) const {
  const std::string& name = node.input(input);
  if (name.empty()) node.damaged(fmt::format("lacks its input {}", input));
  if (!is_constant(name))
    throw Unsupported{fmt::format("'{}' must be a tensor of the file, but is computed", name)};
  return constants_.at(name);
}

WeightSource OnnxImporter::weight(const OnnxNode& node, int input, const Integers& extents) const {
  const Constant& found = constant(node, input);
  if (found.tensor == nullptr)
    throw Unsupported{fmt::format("the weight '{}' is computed", node.input(input))};
  if (found.extents != extents)
    node.damaged(fmt::format("reads '{}' of shape {}, but needs {}", node.input(input),
                             join(found.extents, "x"), join(extents, "x")));
  return {found.tensor, found.transposed};
}

Integers OnnxImporter::integers(const OnnxNode& node, int input) const {
  const Constant& found = constant(node, input);
  if (found.integers) return *found.integers;
  if (found.tensor == nullptr || !has_integers(*found.tensor))
    throw Unsupported{"of numbers that are no integers"};
  return integers_of(*found.tensor, place_);
}

std::optional<Integers> OnnxImporter::axes(const OnnxNode& node, int input) const {
  if (node.has("axes")) return node.integers("axes", {});
  if (node.input(input).empty()) return std::nullopt;
  return integers(node, input);
}

Integers OnnxImporter::from_the_front(Integers over, std::int64_t rank) {
  for (std::int64_t& axis : over) axis += axis < 0 ? rank : 0;
  std::ranges::sort(over);
  return over;
}

std::optional<double> OnnxImporter::number(const OnnxNode& node, int input) const {
  if (node.input(input).empty()) return std::nullopt;
  const Constant& found = constant(node, input);
  if (found.fill) return found.fill;
  if (found.tensor == nullptr) throw Unsupported{"of a number that is computed"};
  const std::vector<float> values = floats_of(*found.tensor, place_);
  if (values.size() != 1) node.damaged(fmt::format("reads {} numbers, not one", values.size()));
  return decimal_of(values.front());
}

Integers OnnxImporter::extents(const Value& value) const {
  const Shape& s = shape(value);
  if (value.flat) return {kBatch, s.elements()};
  return {kBatch, s.c, s.h, s.w};
}

ValueId OnnxImporter::add(const OnnxNode& node, const models::OpKind& kind,
                          std::vector<ValueId> inputs, std::vector<WeightSource> sources) {
  const bool stands_in = std::ranges::any_of(inputs, [](ValueId id) { return !id.valid(); });
  if (!sources.empty())
    foldable_[node.output()] = {sources_.size(),
                                stands_in ? 0 : std::min<std::size_t>(sources.size(), 2)};
  if (stands_in) return stand_in(kind, inputs);
  const std::string name = unique_name(node);
  // The inputs of an op differ, so that each has a gradient of its own: y + y adds a copy of y.
  for (auto input = inputs.begin(); input != inputs.end(); ++input) {
    if (std::find(inputs.begin(), input, *input) == input) continue;
    builder_.begin_layer(unique_name(name + "/copy"));
    *input = builder_.op("", models::ShortcutPad{}, {*input});
  }
  builder_.begin_layer(name);
  const ValueId made = built(name, [&] { return builder_.op("", kind, std::move(inputs)); });
  sources_.insert(sources_.end(), sources.begin(), sources.end());
  return made;
}

void OnnxImporter::pass(const OnnxNode& node) {
  if (is_constant(node.input(0))) return put(node, Constant(constants_.at(node.input(0))));
  put(node, Value(value(node)));
}

std::string OnnxImporter::unique_name(const OnnxNode& node) {
  std::string name = node.layer_name();
  if (name.empty()) name = fmt::format("{}_{}", to_lower(node.proto().op_type()), names_.size());
  return unique_name(std::move(name));
}

std::string OnnxImporter::unique_name(std::string name) {
  const std::string first = name;
  for (int i = 2; !names_.insert(name).second; ++i) name = fmt::format("{}_{}", first, i);
  return name;
}

}  // namespace millrace::io
