// SPDX-License-Identifier: Apache-2.0
//
// From the nodes of a file to a graph. importer.cpp walks over the nodes, nodes.cpp has what
// becomes of each type, constants.cpp computes the values that no image changes, such as shapes.
// activations.cpp recognizes activations that the file has in several nodes. folding.cpp puts sums,
// products and the like with constants into the ops before them; stand_ins.cpp has what is known of
// values that nothing here makes, so that all such nodes are found at once.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.hpp"
#include "models/op.hpp"
#include "tools/onnx/node.hpp"

namespace millrace::io {

/// What a constant does to the elements of a parameter, by its first axis.
struct ChannelStep {
  enum class Does { Multiply, Divide, Add, Subtract };
  Does does = Does::Add;
  const onnx::TensorProto* tensor = nullptr;  ///< one element, or one for each channel
  float fill = 0.0f;                          ///< without a tensor: the constant of all channels
};

/// Where the elements of a parameter are in the file.
struct WeightSource {
  const onnx::TensorProto* tensor = nullptr;  ///< nullptr: all elements are `fill`
  bool transposed = false;                    ///< [in][units] rather than [units][in]
  float fill = 0.0f;
  std::vector<ChannelStep> steps = {};  ///< that follow, in their order
};

/// A graph made of a file's nodes.
struct ImportedGraph {
  models::Graph graph;
  std::vector<WeightSource> sources;  ///< by parameter
  std::vector<std::string> notices;   ///< one line each
};

/// Errors: Config, with all nodes that have no counterpart; Data if the file contradicts itself.
/// The result refers to `model`.
[[nodiscard]] ImportedGraph import_nodes(const onnx::ModelProto& model, const std::string& name,
                                         const OnnxPlace& place);

// ---- export.cpp, against which a file is compared that was written here

/// The key of the metadata in which a file that was written here keeps its graph as JSON: ONNX
/// knows neither layers nor drop-connect nor initializers.
inline constexpr const char* kGraphNote = "millrace.graph";

/// What to_onnx() writes for a graph, with tensors that have no elements.
[[nodiscard]] onnx::ModelProto structure_of(const models::Graph& graph);

/// What a network in a file reads.
struct OnnxInput {
  std::string name;
  std::int64_t batch = 0;  ///< images that the file is limited to; 0: any number
  Shape image;
};

/// What a node lacks a counterpart for, in words; "" if the type of the node says enough.
struct Unsupported {
  std::string reason;
};

/// What needs to know more of a value than is known: a node without a counterpart makes it.
struct UnknownValue {};

class OnnxImporter {
 public:
  OnnxImporter(const onnx::ModelProto& model, const std::string& name, const OnnxPlace& place);
  [[nodiscard]] ImportedGraph import();

 private:
  /// A scale or shift by channel.
  struct AffineSource {
    WeightSource source;
    bool fixed = false;  ///< no training changes it
  };
  /// PyTorch writes a group normalization as Reshape to the groups, InstanceNormalization, Reshape
  /// to the image, Mul, Add. The last one makes the op.
  struct GroupedNorm {
    enum class Reached { Groups, Normal, Image, Scaled };
    Reached reached = Reached::Groups;
    std::int64_t groups = 0;
    double epsilon = 0.0;
    const onnx::NodeProto* named_by = nullptr;
    AffineSource gamma = {};
  };
  /// A value of the file. Flat ones have one axis for channels, height and width, in this order.
  struct Value {
    models::ValueId id;  ///< invalid: unknown, or a stand-in (see shape())
    bool flat = false;
    models::Padding pad = {};  ///< added by a Pad before the next window
    /// The rest is of a value that only certain nodes may read, as no op makes it.
    bool third_axis = false;                    ///< flat, with an axis of 1 behind
    std::optional<models::Extent> spread = {};  ///< one pixel, repeated to this image
    const GroupedNorm* norm = nullptr;
  };
  /// A value that no image changes: a tensor of the file, integers, or one number everywhere.
  struct Constant {
    const onnx::TensorProto* tensor = nullptr;
    bool transposed = false;
    std::optional<Integers> integers = {};
    std::optional<double> fill = {};
    bool fixed = false;     ///< made by nodes: PyTorch's exporters write what learns as tensors
    bool real = false;      ///< integers as floating-point numbers, whose quotients are not rounded
    Integers extents = {};  ///< of what is no tensor; none: a scalar
  };
  /// Stands for the number of images among the integers of a shape.
  static constexpr std::int64_t kBatch = std::numeric_limits<std::int64_t>::min();

  /// Puts what a node makes, by its type.
  using Handler = void(const OnnxNode& node);
  static const std::map<std::string_view, Handler OnnxImporter::*>& table();

  // ---- importer.cpp: the file as a whole
  void find_makers();
  void find_values_of_images();
  void find_needed();
  void visit(const OnnxNode& node);
  void note_problem(const OnnxNode& node, std::string_view why);
  [[nodiscard]] models::Graph with_loss();
  [[noreturn]] void refuse() const;
  /// Whether an input is what no image changes. Throws UnknownValue if it is, but is unknown.
  [[nodiscard]] bool is_constant(const std::string& name) const;
  /// The only needed node that reads what this one makes; nullptr if there are several or none.
  [[nodiscard]] const onnx::NodeProto* sole_reader(const onnx::NodeProto& node) const;

  // ---- what nodes.cpp builds on
  [[nodiscard]] const Value& value(const OnnxNode& node, int input = 0) const;
  /// A value with an axis for height and one for width.
  [[nodiscard]] models::ValueId image(const OnnxNode& node, int input = 0) const;
  [[nodiscard]] const Constant& constant(const OnnxNode& node, int input) const;
  /// Input by channel; its other extents are 1.
  [[nodiscard]] AffineSource affine(const OnnxNode& node, int input, std::int64_t channels) const;
  /// The tensor of an input that must be a weight of these extents.
  [[nodiscard]] WeightSource weight(const OnnxNode& node, int input, const Integers& extents) const;
  [[nodiscard]] Integers integers(const OnnxNode& node, int input) const;
  /// The axes of an operator: an attribute in older files, an input in newer ones.
  [[nodiscard]] std::optional<Integers> axes(const OnnxNode& node, int input) const;
  /// Axes of a value of this rank, sorted; those that count from the end are made positive.
  static Integers from_the_front(Integers over, std::int64_t rank);
  [[nodiscard]] std::optional<double> number(const OnnxNode& node, int input) const;
  [[nodiscard]] const Shape& shape(const Value& value) const { return shape(value.id); }
  [[nodiscard]] Integers extents(const Value& value) const;
  /// Adds an op that is a layer of its own; one that reads a stand-in becomes another stand-in.
  models::ValueId add(const OnnxNode& node, const models::OpKind& kind,
                      std::vector<models::ValueId> inputs, std::vector<WeightSource> sources = {});
  void put(const OnnxNode& node, Value value) { values_.insert_or_assign(node.output(), value); }
  void put(const OnnxNode& node, Constant value) {
    constants_.insert_or_assign(node.output(), std::move(value));
  }
  /// What the node passes on unchanged.
  void pass(const OnnxNode& node);
  [[nodiscard]] std::string unique_name(const OnnxNode& node);
  [[nodiscard]] std::string unique_name(std::string name);

  struct Window {
    models::Extent kernel;
    models::Extent stride;
    models::Extent dilation;
    models::Padding pad;
  };
  [[nodiscard]] Window window(const OnnxNode& node, const Shape& x, models::Extent kernel) const;
  [[nodiscard]] models::Extent kernel_shape(const OnnxNode& node) const;
  [[nodiscard]] std::optional<WeightSource> bias_of(const OnnxNode& node, int input,
                                                    std::int64_t channels) const;

  // ---- nodes.cpp and norms.cpp
  Handler conv, gemm, mat_mul, batch_norm, group_norm, instance_norm, add_values, multiply, concat,
      pool, reduce_image, dropout, pad;
  void dense(const OnnxNode& node, bool transposed);
  [[nodiscard]] models::FixedAffine fixed(const OnnxNode& node, const AffineSource& gamma,
                                          const AffineSource& beta) const;
  /// Makes `norm` of a node, and perhaps of those before it, of which the layer has the name.
  void put_group_norm(const OnnxNode& node, const OnnxNode& named_by, models::ValueId x,
                      models::GroupNorm norm, const AffineSource& gamma, int beta_input);
  /// The part of a group normalization in which this node reads `norm` as its input `input`.
  void scale_groups(const OnnxNode& node, int input);
  void shift_groups(const OnnxNode& node, int input);
  void put(const OnnxNode& node, const Value& x, GroupedNorm next);
  [[nodiscard]] const GroupedNorm* norm_of(const std::string& name,
                                           GroupedNorm::Reached reached) const;

  // ---- activations.cpp
  Handler activation, swish, clip, softmax;
  /// A node of an activation that the file has in several: all but the last pass an input on.
  struct Part {
    int input = 0;
    std::optional<models::Activate> makes = {};
  };
  void find_parts();
  void find_parts_around(const OnnxNode& clip);
  void put_part(const OnnxNode& node, const Part& part);
  [[nodiscard]] const onnx::NodeProto* product_with(const onnx::NodeProto& gate,
                                                    const std::string& gated) const;
  [[nodiscard]] const onnx::NodeProto* sixth_of(const onnx::NodeProto& node) const;
  void activate(const OnnxNode& node, Activation function, ActivationNumbers numbers = {});

  // ---- constants.cpp
  Handler constant_node, shape_of, gather, slice, expand, expand_value, unsqueeze_constant,
      transpose, cast, flatten, reshape, squeeze, unsqueeze, split;
  /// The number that a tensor or a Constant holds, if it is one: known before any node is visited.
  [[nodiscard]] std::optional<double> literal(const std::string& name) const;
  [[nodiscard]] std::optional<Integers> resolved(Integers wanted, const Integers& from,
                                                 bool zero_copies) const;

  // ---- integers.cpp
  Handler arithmetic, negative, constant_of_shape, range, concat_integers, slice_integers,
      transpose_integers, reshape_integers, reshape_tensor;
  [[nodiscard]] bool computes_constant(const OnnxNode& node) const;

  // ---- folding.cpp
  Handler subtract_or_divide;
  /// What nodes right behind one do to its value with constants.
  struct Behind {
    bool adds = false;
    bool learned_factor = false;  ///< a tensor of the file, rather than made by nodes
    bool learned_addend = false;
  };
  [[nodiscard]] Behind behind(const OnnxNode& node) const;
  [[nodiscard]] bool is_learned(std::string name) const;
  /// The input with which constants that a node computes with are folded; none for other nodes.
  [[nodiscard]] std::optional<int> folding_input(const onnx::NodeProto& node) const;
  /// Whether a node is an op that constants behind it become part of, or follows such a one with
  /// constants of its own.
  [[nodiscard]] bool is_foldable(const onnx::NodeProto& maker) const;
  /// Makes the constant `by` of a node part of the op that made its input `input`.
  void fold(const OnnxNode& node, int input, int by);
  /// If one input of two is a constant: makes it part of the op that made the other one.
  [[nodiscard]] bool folds_pair(const OnnxNode& node);

  // ---- stand_ins.cpp
  /// The shape of a value or of a stand-in, which has a shape alone. Throws UnknownValue.
  [[nodiscard]] const Shape& shape(models::ValueId id) const;
  [[nodiscard]] models::ValueId stand_in(const Shape& shape);
  /// What the op would make of stand-ins.
  [[nodiscard]] models::ValueId stand_in(const models::OpKind& kind,
                                         const std::vector<models::ValueId>& inputs);
  /// What is known of what a node without a counterpart makes.
  [[nodiscard]] Value stand_in(const OnnxNode& node);
  [[nodiscard]] std::optional<Value> declared(const std::string& name);

  const onnx::GraphProto& file_;
  const OnnxPlace& place_;
  OnnxInput input_;
  models::GraphBuilder builder_;
  std::map<std::string, const onnx::NodeProto*> makers_;         ///< by value
  std::map<std::string, const onnx::ValueInfoProto*> declared_;  ///< values whose shape is noted
  std::set<const onnx::NodeProto*> needed_;
  std::map<std::string, std::vector<const onnx::NodeProto*>> readers_;  ///< of needed nodes
  std::map<std::string, Value> values_;
  std::deque<GroupedNorm> norms_;  ///< that values refer to
  std::map<std::string, Constant> constants_;
  std::set<std::string> of_images_;  ///< values that depend on the images, not on their shape alone
  std::vector<Shape> stand_ins_;
  /// The first of the parameters that a constant behind a value becomes part of, by the value: what
  /// multiplies channels, then what is added to them, if there is such a one.
  struct Foldable {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  std::map<std::string, Foldable> foldable_;
  std::map<const onnx::NodeProto*, Part> parts_;
  std::set<const onnx::TensorProto*> kernels_;  ///< used so far
  std::set<std::string> names_;
  std::vector<WeightSource> sources_;
  std::vector<std::string> problems_;
  std::vector<std::string> notices_;
  bool normalises_ = false;
};

}  // namespace millrace::io
