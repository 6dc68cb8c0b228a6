// SPDX-License-Identifier: Apache-2.0
//
// Which ops of a stage run together as one kernel.
#pragma once

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
  std::vector<Part> parts = {};  ///< of a concatenation
};

/// The groups of a range of ops. The `Fusion` of the leader's kind (pipeline/ops/lowering.hpp)
/// decides what is fused.
class Grouping {
 public:
  Grouping(const Graph& graph, OpRange range, Mode mode);

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
  [[nodiscard]] Node group_from(OpId id, std::vector<bool>& taken) const;

  const Graph& graph_;
  OpRange range_;
  Mode mode_;
  std::vector<std::vector<OpId>> readers_;
};

}  // namespace millrace::pipeline
