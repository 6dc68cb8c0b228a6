// SPDX-License-Identifier: Apache-2.0
//
// models: networks as plain data.
//
// A Graph is a list of primitive ops in topological order. Ops read and write *values* (activations
// of one sample, height x width x channels) and own *parameters*. Each op belongs to a *layer*, the
// unit that users name to cut a network: layer `b3/1` contains the ops `b3/1/conv1`,
// `b3/1/norm1`, `b3/1/relu1`, ..., `b3/1/add`, and layer `b3/1/relu` the single op of that name.
// The boundary before any op is a possible cut point. A layer's name means its first op.
//
// A Graph does not depend on batch size, precision, devices or kernels. Two builds of the same
// network compare equal.
//
// Example: 3x3 convolution, batch normalization, ReLU.
//   GraphBuilder b("tiny", {32, 32, 3}, 10);
//   b.begin_layer("b0");
//   ValueId x = b.conv("conv", b.input(), {.out_channels = 16, .kernel = {3, 3}, .pad = same(1)});
//   x = b.batch_norm("norm", x, {});
//   x = b.activation("relu", x, {Activation::Relu});
//
// Invariants:
// - an op's inputs are made by earlier ops, and every value is read by an op;
// - shapes and parameters are those that `infer` gives;
// - a layer is a run of consecutive ops, and the name of each op begins with its layer's name;
// - names of layers, ops and parameters are unique; an op with the name of a layer is its first op;
// - exactly one op, the last one, is a SoftmaxLoss.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.hpp"
#include "models/op.hpp"

namespace millrace::models {

/// Size limits of a network. They are far above what can be trained, and low enough that counts of
/// elements and bytes fit in 64 bits. GraphBuilder throws Error(Config) with the op, its number and
/// the limit when one is exceeded.
inline constexpr std::int64_t kMostChannels = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 32;  ///< of a value, for one image
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 40;  ///< of a tensor, and in all
inline constexpr std::int64_t kMostOps = 100'000;

/// Index into one of the graph's lists; distinct types so that they cannot be mixed up.
template <class Tag>
struct Index {
  std::int32_t value = -1;
  [[nodiscard]] constexpr bool valid() const noexcept { return value >= 0; }
  [[nodiscard]] constexpr std::size_t at() const noexcept {
    return static_cast<std::size_t>(value);
  }
  friend auto operator<=>(const Index&, const Index&) = default;  // NOLINT(modernize-use-nullptr)
};
using OpId = Index<struct OpTag>;
using ValueId = Index<struct ValueTag>;
using ParameterId = Index<struct ParameterTag>;
using LayerId = Index<struct LayerTag>;

/// A tensor that belongs to an op. Its name is layer/op/role (`b3/1/conv2/kernel`). Checkpoints,
/// weight-decay exclusions and filters depend on the name only.
struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< OHWI for Conv, [units][in] for Dense, [C] otherwise
  ParameterRole role = ParameterRole::Kernel;
  Initialiser init;
  OpId op;
  bool fixed = false;   ///< no training of this network changes it
  bool frozen = false;  ///< fixed, or excluded from training by a filter; see train_only()
  [[nodiscard]] std::int64_t elements() const noexcept;
  /// False for running statistics, which have no gradient.
  [[nodiscard]] bool trainable() const noexcept {
    return role != ParameterRole::MovingMean && role != ParameterRole::MovingVariance;
  }
  /// Whether training updates it by its gradient.
  [[nodiscard]] bool learns() const noexcept { return trainable() && !frozen; }
  friend bool operator==(const Parameter&, const Parameter&) = default;
};

struct Value {
  Shape shape;
  OpId producer;  ///< invalid for the network's input
  friend bool operator==(const Value&, const Value&) = default;
};

struct Op {
  std::string name;  ///< full: `b3/1/conv2`
  LayerId layer;
  OpKind kind;
  std::vector<ValueId> inputs;
  ValueId output;                       ///< invalid for SoftmaxLoss
  std::vector<ParameterId> parameters;  ///< in the order of ParameterRole
  friend bool operator==(const Op&, const Op&) = default;
};

struct Layer {
  std::string name;
  OpId first_op;
  friend bool operator==(const Layer&, const Layer&) = default;
};

/// A network; see the top of this file.
struct Graph {
  std::string name;
  Shape input_shape;
  /// Shape of an image as the network's first op reads it from memory, if it is not input_shape
  /// (ops/prepare_images.hpp). A matter of the machine: it does not belong to what is recorded of a
  /// network.
  std::optional<Shape> stored_image;
  std::int64_t classes = 0;
  std::vector<Layer> layers;
  std::vector<Op> ops;
  std::vector<Value> values;  ///< values[0] is the input
  std::vector<Parameter> parameters;

  [[nodiscard]] const Op& op(OpId id) const { return ops.at(id.at()); }
  [[nodiscard]] const Value& value(ValueId id) const { return values.at(id.at()); }
  [[nodiscard]] const Parameter& parameter(ParameterId id) const { return parameters.at(id.at()); }
  [[nodiscard]] static constexpr ValueId input() { return ValueId{0}; }

  /// The op with this name, or the first op of the layer with this name; invalid if there is none.
  [[nodiscard]] OpId find(std::string_view layer_or_op) const;
  /// Ops that read `value`, in topological order, each once.
  [[nodiscard]] std::vector<OpId> consumers(ValueId value) const;
  /// Logits of an image: at least one per class.
  [[nodiscard]] std::int64_t logits() const { return value(ops.back().inputs.front()).shape.c; }
  /// Elements of all trainable parameters that are not fixed: the count that papers publish.
  [[nodiscard]] std::int64_t trainable_elements() const;
  /// Multiply-accumulates of the forward pass for one sample (Conv and Dense only).
  [[nodiscard]] std::int64_t forward_macs() const;

  friend bool operator==(const Graph&, const Graph&) = default;
};

/// Freezes every trainable parameter that is fixed, or whose name contains none of `filters`.
/// Without filters nothing else is frozen. Running statistics are always updated. Errors: Config
/// for a filter that no name contains, with the nearest names.
void train_only(Graph& graph, std::span<const std::string> filters);

/// By ValueId: whether the gradient of the value is needed, because the op that makes the value or
/// one of that op's ancestors has a parameter that learns. The backward pass stops elsewhere.
[[nodiscard]] std::vector<bool> wanted_gradients(const Graph& graph);

/// Whether a parameter of the op learns.
[[nodiscard]] bool learns(const Graph& graph, OpId op);

/// What `infer` says about an op of the graph.
[[nodiscard]] Inference infer(const Graph& graph, const Op& op);

/// Builds a graph op by op: infers shapes and adds parameters. Names of ops are relative to the
/// current layer; an empty name means the layer itself. Errors: Config if shapes do not fit, with
/// the op and both shapes.
class GraphBuilder {
 public:
  GraphBuilder(std::string name, Shape input_shape, std::int64_t classes);

  [[nodiscard]] ValueId input() const { return Graph::input(); }
  [[nodiscard]] const Shape& shape(ValueId value) const { return graph_.value(value).shape; }
  void begin_layer(std::string name);

  /// Adds an op of any kind.
  ValueId op(std::string_view name, const OpKind& kind, std::vector<ValueId> inputs);

  ValueId conv(std::string_view name, ValueId x, const Conv& conv) { return op(name, conv, {x}); }
  ValueId dense(std::string_view name, ValueId x, const Dense& dense) {
    return op(name, dense, {x});
  }
  ValueId batch_norm(std::string_view name, ValueId x, const BatchNorm& norm) {
    return op(name, norm, {x});
  }
  ValueId group_norm(std::string_view name, ValueId x, const GroupNorm& norm) {
    return op(name, norm, {x});
  }
  ValueId activation(std::string_view name, ValueId x, const Activate& activation) {
    return op(name, activation, {x});
  }
  ValueId add(std::string_view name, ValueId a, ValueId b) { return op(name, Add{}, {a, b}); }
  ValueId concat(std::string_view name, const std::vector<ValueId>& inputs) {
    return op(name, Concat{}, inputs);
  }
  ValueId scale_channels(std::string_view name, ValueId x, ValueId scale) {
    return op(name, ScaleChannels{}, {x, scale});
  }
  ValueId pool(std::string_view name, ValueId x, const Pool& pool) { return op(name, pool, {x}); }
  ValueId global_average_pool(std::string_view name, ValueId x) {
    return op(name, GlobalAveragePool{}, {x});
  }
  ValueId shortcut_pad(std::string_view name, ValueId x, const ShortcutPad& pad) {
    return op(name, pad, {x});
  }
  ValueId dropout(std::string_view name, ValueId x, const Dropout& dropout) {
    return op(name, dropout, {x});
  }
  ValueId drop_connect(std::string_view name, ValueId x, const DropConnect& drop) {
    return op(name, drop, {x});
  }
  void softmax_loss(std::string_view name, ValueId logits, const SoftmaxLoss& loss = {}) {
    op(name, loss, {logits});
  }

  /// The finished graph. Errors: Config, if the calls make no network.
  [[nodiscard]] Graph build() &&;

 private:
  Graph graph_;
};

struct SqueezeExcite {
  std::int64_t squeezed = 1;  ///< channels between its two convolutions
  Activation activation = Activation::Relu;
  Initialiser init;  ///< of both kernels
};

/// Squeeze-and-excite (Hu et al. 2018): applies two 1x1 convolutions with bias to the channel means
/// of x, and scales each channel of x by the result. The ops are `name` (the mean), `name`/reduce,
/// /act, /expand, /sigmoid and /scale. An empty name means the current layer.
[[nodiscard]] ValueId squeeze_excite(GraphBuilder& builder, std::string_view name, ValueId x,
                                     const SqueezeExcite& squeeze);

/// Fills `out` (parameter.elements() floats, canonical order) with the parameter's initial values.
/// They depend only on the parameter and the seed, not on the rest of the network.
void initialise(const Parameter& parameter, std::uint64_t seed, std::span<float> out);

}  // namespace millrace::models

template <class Tag>
struct std::hash<millrace::models::Index<Tag>> {
  std::size_t operator()(const millrace::models::Index<Tag>& id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
