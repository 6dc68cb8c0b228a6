// SPDX-License-Identifier: Apache-2.0
#include "ops/onednn/linear_op.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "ops/elementwise.hpp"

namespace millrace::ops::onednn {

using device::aligned;
using device::ExecutionSpace;

OneDnnOp::OneDnnOp(std::shared_ptr<Context> context, const Primitives& primitives)
    : context_(std::move(context)), layouts_(primitives.layouts), bias_(primitives.bias) {
  if (primitives.forward) add_forward(*primitives.forward);
  if (primitives.backward_input) add_backward_input(*primitives.backward_input);
  if (primitives.backward_weight) add_backward_weight(*primitives.backward_weight);
}

void OneDnnOp::add_forward(const dnnl::primitive& primitive) {
  const dnnl::engine& e = context_->engine;
  forward_ = {primitive,
              {{DNNL_ARG_SRC, unbound(layouts_.src, e)},
               {DNNL_ARG_WEIGHTS, unbound(layouts_.packed_forward, e)},
               {DNNL_ARG_DST, unbound(layouts_.dst, e)},
               {DNNL_ARG_SCRATCHPAD, unbound(layouts_.scratch_forward, e)}}};
  if (bias_) forward_.arguments.emplace(DNNL_ARG_BIAS, unbound(layouts_.bias, e));
  bytes_.packed_forward = bytes_of(layouts_.packed_forward);
  bytes_.scratch =
      std::max({bytes_.scratch, bytes_of(layouts_.scratch_forward),
                bytes_of(reorder_scratch(layouts_.kernel, layouts_.packed_forward, false))});
  pack_forward_ = reorder(layouts_.kernel, layouts_.packed_forward, false);
}

void OneDnnOp::add_backward_input(const dnnl::primitive& primitive) {
  const dnnl::engine& e = context_->engine;
  backward_input_ = {primitive,
                     {{DNNL_ARG_DIFF_SRC, unbound(layouts_.src, e)},
                      {DNNL_ARG_WEIGHTS, unbound(layouts_.packed_backward, e)},
                      {DNNL_ARG_DIFF_DST, unbound(layouts_.dst, e)},
                      {DNNL_ARG_SCRATCHPAD, unbound(layouts_.scratch_input, e)}}};
  bytes_.packed_backward = bytes_of(layouts_.packed_backward);
  bytes_.scratch =
      std::max({bytes_.scratch, bytes_of(layouts_.scratch_input),
                bytes_of(reorder_scratch(layouts_.kernel, layouts_.packed_backward, false))});
  pack_backward_ = reorder(layouts_.kernel, layouts_.packed_backward, false);
}

void OneDnnOp::add_backward_weight(const dnnl::primitive& primitive) {
  const dnnl::engine& e = context_->engine;
  backward_weight_ = {primitive,
                      {{DNNL_ARG_SRC, unbound(layouts_.src, e)},
                       {DNNL_ARG_DIFF_WEIGHTS, unbound(layouts_.gradient, e)},
                       {DNNL_ARG_DIFF_DST, unbound(layouts_.dst, e)},
                       {DNNL_ARG_SCRATCHPAD, unbound(layouts_.scratch_weight, e)}}};
  if (bias_) backward_weight_.arguments.emplace(DNNL_ARG_DIFF_BIAS, unbound(layouts_.bias, e));
  const std::int64_t held =
      aligned(bytes_of(layouts_.gradient)) + (bias_ ? aligned(bytes_of(layouts_.bias)) : 0);
  const std::int64_t used =
      std::max({bytes_of(layouts_.scratch_weight),
                bytes_of(reorder_scratch(layouts_.gradient, layouts_.canonical, false)),
                bytes_of(reorder_scratch(layouts_.gradient, layouts_.canonical, true))});
  bytes_.scratch = std::max(bytes_.scratch, held + used);
  store_gradient_ = reorder(layouts_.gradient, layouts_.canonical, false);
  add_gradient_ = reorder(layouts_.gradient, layouts_.canonical, true);
}

dnnl::reorder::primitive_desc OneDnnOp::reorder_descriptor(const memory::desc& from,
                                                           const memory::desc& to, bool add) const {
  dnnl::primitive_attr attributes = user_scratch();
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return {context_->engine, from, context_->engine, to, attributes};
}

memory::desc OneDnnOp::reorder_scratch(const memory::desc& from, const memory::desc& to,
                                       bool add) const {
  return reorder_descriptor(from, to, add).scratchpad_desc();
}

Call OneDnnOp::reorder(const memory::desc& from, const memory::desc& to, bool add) const {
  const dnnl::reorder::primitive_desc descriptor = reorder_descriptor(from, to, add);
  const dnnl::engine& e = context_->engine;
  return {dnnl::reorder(descriptor),
          {{DNNL_ARG_FROM, unbound(from, e)},
           {DNNL_ARG_TO, unbound(to, e)},
           {DNNL_ARG_SCRATCHPAD, unbound(descriptor.scratchpad_desc(), e)}}};
}

void OneDnnOp::bind(const LinearMemory& m) {
  const auto bind_reorder = [&](Call& call, const void* from, const void* to, std::byte* scratch) {
    call.set(DNNL_ARG_FROM, from);
    call.set(DNNL_ARG_TO, to);
    call.set(DNNL_ARG_SCRATCHPAD, scratch);
  };
  if (forward_.primitive) {
    forward_.set(DNNL_ARG_WEIGHTS, m.packed_forward);
    forward_.set(DNNL_ARG_SCRATCHPAD, m.scratch);
    if (bias_) forward_.set(DNNL_ARG_BIAS, m.bias);
    bind_reorder(pack_forward_, m.kernel, m.packed_forward, m.scratch);
  }
  if (backward_input_.primitive) {
    backward_input_.set(DNNL_ARG_WEIGHTS, m.packed_backward);
    backward_input_.set(DNNL_ARG_SCRATCHPAD, m.scratch);
    bind_reorder(pack_backward_, m.kernel, m.packed_backward, m.scratch);
  }
  if (backward_weight_.primitive) {
    std::byte* gradient = m.scratch;
    gradient_ = gradient;
    std::byte* rest = gradient + aligned(bytes_of(layouts_.gradient));
    if (bias_) {
      backward_weight_.set(DNNL_ARG_DIFF_BIAS, rest);
      dbias_part_ = reinterpret_cast<const float*>(rest);
      dbias_ = m.dbias;
      rest += aligned(bytes_of(layouts_.bias));
    }
    backward_weight_.set(DNNL_ARG_DIFF_WEIGHTS, gradient);
    backward_weight_.set(DNNL_ARG_SCRATCHPAD, rest);
    weight_scratch_ = rest;
    bind_reorder(store_gradient_, gradient, m.dkernel, rest);
    bind_reorder(add_gradient_, gradient, m.dkernel, rest);
  }
}

void OneDnnOp::pack(const ExecutionSpace& space, bool backward) {
  device::call_library(space, [this, backward] {
    if (pack_forward_.primitive) pack_forward_.run(context_->stream);
    if (backward && pack_backward_.primitive) pack_backward_.run(context_->stream);
  });
}

void OneDnnOp::forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) {
  device::call_library(space, [this, y, x] {
    forward_.set(DNNL_ARG_SRC, x);
    forward_.set(DNNL_ARG_DST, y);
    forward_.run(context_->stream);
  });
}

void OneDnnOp::backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) {
  device::call_library(space, [this, dx, dy] {
    backward_input_.set(DNNL_ARG_DIFF_SRC, dx);
    backward_input_.set(DNNL_ARG_DIFF_DST, dy);
    backward_input_.run(context_->stream);
  });
}

void OneDnnOp::backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                               bool first) {
  device::call_library(space, [this, dy, x, first] {
    // oneDNN 2.6 computes the gradient of taps that see padding only from uninitialized scratch
    // memory (bf16, 3x3 with stride 2 on images of one pixel).
    if (layouts_.blind_taps) {
      std::memset(gradient_, 0, layouts_.gradient.get_size());
      std::memset(weight_scratch_, 0, layouts_.scratch_weight.get_size());
    }
    backward_weight_.set(DNNL_ARG_SRC, x);
    backward_weight_.set(DNNL_ARG_DIFF_DST, dy);
    backward_weight_.run(context_->stream);
    (first ? store_gradient_ : add_gradient_).run(context_->stream);
  });
  if (bias_) {
    accumulate(space, dbias_, dbias_part_, layouts_.bias.get_size() / sizeof(float), first);
  }
}

}  // namespace millrace::ops::onednn
