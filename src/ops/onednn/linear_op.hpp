// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "ops/linear.hpp"
#include "ops/onednn/onednn.hpp"

namespace millrace::ops::onednn {

/// A primitive that oneDNN has for a pass, with the layouts of its own; empty, if it has none.
struct PassPrimitive {
  std::optional<dnnl::primitive> primitive;
  memory::desc weights;  ///< packed, or the gradient
  memory::desc scratch;
};

/// The primitives that oneDNN has for the passes of an op, and the layouts that they share.
struct Primitives {
  PassPrimitive forward, backward_input, backward_weight;
  memory::desc kernel;     ///< canonical, in the storage type
  memory::desc canonical;  ///< canonical gradient, float32
  memory::desc src, dst, bias;
  bool has_bias = false;
  bool blind_taps = false;  ///< some taps of the kernel see padding only

  [[nodiscard]] Passes passes() const {
    return {backward_input.primitive.has_value(), backward_weight.primitive.has_value(),
            forward.primitive.has_value()};
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
  OneDnnOp(std::shared_ptr<Context> context, Primitives primitives);

  [[nodiscard]] LinearBytes bytes() const override { return bytes_; }
  void bind(const LinearMemory& memory) override;
  void pack(const device::ExecutionSpace& space, bool backward) override;
  void forward(const device::ExecutionSpace& space, std::byte* y, const std::byte* x) override;
  void backward_input(const device::ExecutionSpace& space, std::byte* dx,
                      const std::byte* dy) override;
  void backward_weight(const device::ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override;

 private:
  void add_forward();
  void add_backward_input();
  void add_backward_weight();
  /// What converts a kernel or a gradient from one layout to another, or adds it. Also makes the
  /// scratch large enough for it behind `held` bytes.
  [[nodiscard]] Call reorder(const memory::desc& from, const memory::desc& to, bool add,
                             std::int64_t held);
  [[nodiscard]] memory unbound(const memory::desc& desc) const {
    return {desc, context_->engine, DNNL_MEMORY_NONE};
  }

  std::shared_ptr<Context> context_;
  Primitives p_;
  LinearBytes bytes_;
  Call forward_, backward_input_, backward_weight_;
  Call pack_forward_, pack_backward_, store_gradient_, add_gradient_;
  std::byte* gradient_ = nullptr;
  std::byte* weight_scratch_ = nullptr;
  float* dbias_ = nullptr;
  const float* dbias_part_ = nullptr;
};

}  // namespace millrace::ops::onednn
