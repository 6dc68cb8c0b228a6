// SPDX-License-Identifier: Apache-2.0
//
// Compiles a range of a graph into a StageProgram. Grouping says which ops run together as one
// kernel. Compiler owns what all ops have in common: buffers, values that cross the stage's border,
// recomputation, and the sum of the gradients of a value. The calls of an op are emitted by its
// `Lowering` (pipeline/ops/lowering.hpp), through the public functions.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// Ops that become one kernel: a leader and the ops fused after it.
struct Node {
  /// Operand of a concatenation, with the activation that is fused into it.
  struct Part {
    ValueId input;
    OpId reader;  ///< the op that reads it: the activation, or the concatenation
    Activation fn = Activation::None;
  };
  OpId leader;  ///< norm, convolution, pool, add, activation, loss ...
  OpId last;    ///< last op of the group; nodes run in this order
  ValueId input;
  ValueId skip;  ///< other operand of an addition
  ValueId output;
  Activation fn = Activation::None;
  OpId adder = {};               ///< the addition, which reads `skip`
  OpId skip_norm = {};           ///< the norm that makes `skip`, if this node applies it
  bool applied_behind = false;   ///< a norm that another node applies
  bool counted = false;          ///< a norm whose statistics another node computes
  std::vector<Part> parts = {};  ///< of a concatenation
};

/// The groups of a range of ops. The `Fusion` of the leader's kind (pipeline/ops/lowering.hpp)
/// decides what is fused.
class Grouping {
 public:
  Grouping(const Graph& graph, OpRange range, const ProgramOptions& options);

  /// In the order in which they run.
  [[nodiscard]] std::vector<Node> nodes() const;
  [[nodiscard]] const std::vector<OpId>& readers(ValueId value) const {
    return readers_[value.at()];
  }
  [[nodiscard]] bool read_here(ValueId value) const;
  [[nodiscard]] bool read_behind(ValueId value) const;
  /// The value that `value` is a copy of: in evaluation the input of a dropout of the range.
  [[nodiscard]] ValueId source(ValueId value) const;

 private:
  [[nodiscard]] bool is_identity(OpId op) const;
  [[nodiscard]] OpId sole_reader(ValueId value) const;
  void fuse_activation(Node& node, bool relu_only, std::vector<bool>& taken) const;
  void fuse_addition(Node& node, std::vector<bool>& taken) const;
  void fuse_into_concat(std::vector<Node>& nodes) const;
  void fuse_norms(std::vector<Node>& nodes) const;
  void split_norms(std::vector<Node>& nodes) const;
  [[nodiscard]] Node group_from(OpId id, std::vector<bool>& taken) const;

  const Graph& graph_;
  OpRange range_;
  const ProgramOptions& options_;
  std::vector<std::vector<OpId>> readers_;
};

/// Buffers that a forward pass keeps.
struct ForwardBuffers {
  std::vector<BufferId> activation;  ///< by ValueId
  std::vector<BufferId> statistics;  ///< by OpId of the norm
  std::vector<BufferId> winner;      ///< by OpId of the pool
  std::vector<BufferId> mask;        ///< by OpId of the norm

  [[nodiscard]] BufferId of(ValueId value) const { return activation[value.at()]; }
};

/// The forward phase, or its repetition in the backward phase (`repeated`).
struct ForwardPass {
  Phase phase;
  bool repeated;
  ForwardBuffers& kept;
};

class Compiler {
 public:
  Compiler(const Graph& graph, OpRange range, const ProgramOptions& options);
  [[nodiscard]] StageProgram run() &&;

  // ---- for lowerings
  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] StageProgram& program() { return program_; }
  [[nodiscard]] std::int64_t batch() const { return program_.options.batch; }
  [[nodiscard]] bool training() const { return program_.options.mode == Mode::Training; }
  [[nodiscard]] const std::string& op_name(OpId op) const { return graph_.op(op).name; }
  template <class Kind>
  [[nodiscard]] const Kind& kind_of(const Node& node) const {
    return std::get<Kind>(graph_.op(node.leader).kind);
  }

  BufferId make_buffer(std::string name, std::int64_t bytes);
  BufferId make_gradient(ValueId value);
  /// The buffer of the node's output.
  BufferId make_output(const Node& node, ForwardPass& pass);
  /// One buffer for the images and the labels if both are in this stage.
  BufferId mixing_buffer();
  Call& emit(Phase phase, KernelKind kind, OpId op,
             std::initializer_list<std::pair<Role, BufferId>> buffers);
  /// The value that an op reads, without dropouts in evaluation.
  [[nodiscard]] ValueId source(ValueId value) const { return grouping_.source(value); }
  /// Buffers of the forward pass, or of its repetition.
  [[nodiscard]] const ForwardBuffers& kept() const { return kept_; }

  /// The norm that makes `value`, if its readers compute the value from the norm's input instead
  /// (ops/inlined_norm.hpp); nullptr if `value` is stored.
  [[nodiscard]] const Node* inlined_norm(ValueId value) const;

  /// Whether the backward pass needs the gradient of a value; see models::wanted_gradients.
  [[nodiscard]] bool wants_gradient(ValueId v) const { return wanted_[v.at()]; }
  /// Adds `buffer` to the gradient of `value`, which `reader` read.
  void contribute(ValueId value, OpId reader, BufferId buffer);
  /// The gradient of `value` as at most `at_most` buffers, of which it is the rounded sum. The
  /// buffers are released; the caller must read them in the next call that it emits.
  std::vector<BufferId> take_gradients(ValueId value, std::size_t at_most);
  BufferId take_gradient(ValueId value) { return take_gradients(value, 1).front(); }
  /// The gradient before the activation that is fused at the node's end. It is computed from the
  /// activation's output, as ReLU allows.
  BufferId undo_fused(const Node& node, BufferId dy);
  /// A buffer for the gradient of `value`: `in_place` if nothing else needs it any more.
  BufferId output_gradient(ValueId value, BufferId in_place);
  /// A buffer for the gradient before an addition, or for the sum of two contributions; in place of
  /// one of them if possible.
  BufferId joined_gradient(const Node& node, std::span<const BufferId> dy);
  [[nodiscard]] Phase weight_phase() const {
    return program_.options.backward == Backward::Split ? Phase::BackwardWeight
                                                        : Phase::BackwardInput;
  }
  /// Keeps a gradient that the weight phase reads from being overwritten.
  void keep_for_weights(BufferId gradient) {
    if (weight_phase() == Phase::BackwardWeight) read_later_[gradient.at()] = true;
  }

 private:
  struct Contribution {
    OpId reader;
    BufferId buffer;
  };

  [[nodiscard]] std::int64_t activation_bytes(ValueId v) const;
  [[nodiscard]] bool names_layer_of(OpId op) const;
  void make_crossings();
  BufferId make_arrival();
  void prepare_images(ForwardPass pass);
  [[nodiscard]] bool recomputes_images() const;
  /// Nodes [first, last), whose forward is repeated just before their backward, or not at all.
  struct Segment {
    std::size_t first = 0;
    std::size_t last = 0;
    bool repeated = false;
  };
  [[nodiscard]] bool is_recomputed(const Node& node) const;
  void make_segments();
  [[nodiscard]] bool leaves(const Segment& segment, ValueId value) const;
  void repeat(const Segment& segment);
  void backward();
  void remove_unread();
  [[nodiscard]] bool reusable(BufferId buffer, int own_uses) const {
    return pending_[buffer.at()] == own_uses && !read_later_[buffer.at()];
  }
  void release(BufferId buffer) { --pending_[buffer.at()]; }

  const Graph& graph_;
  Grouping grouping_;
  std::vector<Node> nodes_;
  std::vector<Segment> segments_;
  std::vector<std::size_t> node_of_;  ///< by OpId, in the range
  std::vector<bool> wanted_;          ///< by ValueId
  StageProgram program_;
  ForwardBuffers kept_;
  BufferId arrival_;                                      ///< images before they are prepared
  std::vector<std::vector<Contribution>> contributions_;  ///< by ValueId
  std::vector<int> pending_;      ///< contributions that still use a buffer, by BufferId
  std::vector<bool> read_later_;  ///< buffers that a later phase reads: must not be overwritten
  std::vector<bool> repeated_;    ///< by call of BackwardInput; missing ones are not
};

}  // namespace millrace::pipeline
