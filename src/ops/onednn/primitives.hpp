// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops/linear.hpp"
#include "ops/onednn/onednn.hpp"

namespace millrace::ops::onednn {

/// The memory descriptors of an op's primitives. Unused ones are empty.
struct Layouts {
  memory::desc kernel;     ///< canonical, in the storage type
  memory::desc canonical;  ///< canonical gradient, float32
  memory::desc src, dst, bias;
  memory::desc packed_forward, packed_backward, gradient;
  memory::desc scratch_forward, scratch_input, scratch_weight;
  bool blind_taps = false;  ///< some taps of the kernel see padding only
};

/// The primitives that oneDNN has for the passes of an op.
struct Primitives {
  Layouts layouts;
  std::optional<dnnl::primitive> forward, backward_input, backward_weight;
  bool bias = false;

  [[nodiscard]] Passes passes() const {
    return {backward_input.has_value(), backward_weight.has_value(), forward.has_value()};
  }

  /// Each of these takes the primitive of a descriptor, unless the descriptor is empty.
  template <class Primitive>
  void take_forward(const typename Primitive::primitive_desc& d) {
    if (!d) return;
    layouts.packed_forward = d.weights_desc();
    layouts.scratch_forward = d.scratchpad_desc();
    forward = Primitive(d);
  }
  template <class Primitive>
  void take_backward_input(const typename Primitive::primitive_desc& d) {
    if (!d) return;
    layouts.packed_backward = d.weights_desc();
    layouts.scratch_input = d.scratchpad_desc();
    backward_input = Primitive(d);
  }
  template <class Primitive>
  void take_backward_weight(const typename Primitive::primitive_desc& d) {
    if (!d) return;
    layouts.gradient = d.diff_weights_desc();
    layouts.scratch_weight = d.scratchpad_desc();
    backward_weight = Primitive(d);
  }
};

/// Finds the primitives for those of `passes` that oneDNN supports, with at most `cap` bytes of
/// scratch each if possible.
[[nodiscard]] Primitives find_primitives(const dnnl::engine& engine, const ConvShape& shape,
                                         DType type, Passes passes, std::int64_t cap);
[[nodiscard]] Primitives find_primitives(const dnnl::engine& engine, const DenseShape& shape,
                                         DType type, Passes passes, std::int64_t cap);

}  // namespace millrace::ops::onednn
