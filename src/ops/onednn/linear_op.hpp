// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
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

struct Context {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

/// A convolution or dense op of oneDNN. Activations keep the plain NHWC layout. Kernels use the
/// layout that the primitive prefers, so each kernel has three: canonical, packed for forward and
/// packed for backward input. Backward weight writes a layout of its own to scratch; a reorder then
/// adds it to the canonical float32 gradient.
class OneDnnOp final : public LinearOp {
 public:
  OneDnnOp(std::shared_ptr<Context> context, const Primitives& primitives);

  [[nodiscard]] LinearBytes bytes() const override { return bytes_; }
  void bind(const LinearMemory& memory) override;
  void pack(const device::ExecutionSpace& space, bool backward) override;
  void forward(const device::ExecutionSpace& space, std::byte* y, const std::byte* x) override;
  void backward_input(const device::ExecutionSpace& space, std::byte* dx,
                      const std::byte* dy) override;
  void backward_weight(const device::ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override;

 private:
  void add_forward(const dnnl::primitive& primitive);
  void add_backward_input(const dnnl::primitive& primitive);
  void add_backward_weight(const dnnl::primitive& primitive);
  [[nodiscard]] Call reorder(const memory::desc& from, const memory::desc& to, bool add) const;
  [[nodiscard]] memory::desc reorder_scratch(const memory::desc& from, const memory::desc& to,
                                             bool add) const;
  [[nodiscard]] dnnl::reorder::primitive_desc reorder_descriptor(const memory::desc& from,
                                                                 const memory::desc& to,
                                                                 bool add) const;

  std::shared_ptr<Context> context_;
  Layouts layouts_;
  bool bias_;
  LinearBytes bytes_;
  Call forward_, backward_input_, backward_weight_;
  Call pack_forward_, pack_backward_, store_gradient_, add_gradient_;
  std::byte* gradient_ = nullptr;
  std::byte* weight_scratch_ = nullptr;
  float* dbias_ = nullptr;
  const float* dbias_part_ = nullptr;
};

}  // namespace millrace::ops::onednn
