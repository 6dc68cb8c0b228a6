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

OneDnnOp::OneDnnOp(std::shared_ptr<Context> context, Primitives primitives)
    : context_(std::move(context)), p_(std::move(primitives)) {
  if (p_.forward.primitive) add_forward();
  if (p_.backward_input.primitive) add_backward_input();
  if (p_.backward_weight.primitive) add_backward_weight();
}

void OneDnnOp::add_forward() {
  const auto& [primitive, weights, scratch] = p_.forward;
  forward_ = {*primitive,
              {{DNNL_ARG_SRC, unbound(p_.src)},
               {DNNL_ARG_WEIGHTS, unbound(weights)},
               {DNNL_ARG_DST, unbound(p_.dst)},
               {DNNL_ARG_SCRATCHPAD, unbound(scratch)}}};
  if (p_.has_bias) forward_.arguments.emplace(DNNL_ARG_BIAS, unbound(p_.bias));
  bytes_.packed_forward = bytes_of(weights);
  bytes_.scratch = std::max(bytes_.scratch, bytes_of(scratch));
  pack_forward_ = reorder(p_.kernel, weights, false, 0);
}

void OneDnnOp::add_backward_input() {
  const auto& [primitive, weights, scratch] = p_.backward_input;
  backward_input_ = {*primitive,
                     {{DNNL_ARG_DIFF_SRC, unbound(p_.src)},
                      {DNNL_ARG_WEIGHTS, unbound(weights)},
                      {DNNL_ARG_DIFF_DST, unbound(p_.dst)},
                      {DNNL_ARG_SCRATCHPAD, unbound(scratch)}}};
  bytes_.packed_backward = bytes_of(weights);
  bytes_.scratch = std::max(bytes_.scratch, bytes_of(scratch));
  pack_backward_ = reorder(p_.kernel, weights, false, 0);
}

void OneDnnOp::add_backward_weight() {
  const auto& [primitive, gradient, scratch] = p_.backward_weight;
  backward_weight_ = {*primitive,
                      {{DNNL_ARG_SRC, unbound(p_.src)},
                       {DNNL_ARG_DIFF_WEIGHTS, unbound(gradient)},
                       {DNNL_ARG_DIFF_DST, unbound(p_.dst)},
                       {DNNL_ARG_SCRATCHPAD, unbound(scratch)}}};
  if (p_.has_bias) backward_weight_.arguments.emplace(DNNL_ARG_DIFF_BIAS, unbound(p_.bias));
  const std::int64_t held =
      aligned(bytes_of(gradient)) + (p_.has_bias ? aligned(bytes_of(p_.bias)) : 0);
  bytes_.scratch = std::max(bytes_.scratch, held + bytes_of(scratch));
  store_gradient_ = reorder(gradient, p_.canonical, false, held);
  add_gradient_ = reorder(gradient, p_.canonical, true, held);
}

Call OneDnnOp::reorder(const memory::desc& from, const memory::desc& to, bool add,
                       std::int64_t held) {
  dnnl::primitive_attr attributes = user_scratch();
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::engine& e = context_->engine;
  const dnnl::reorder::primitive_desc descriptor(e, from, e, to, attributes);
  const memory::desc scratch = descriptor.scratchpad_desc();
  bytes_.scratch = std::max(bytes_.scratch, held + bytes_of(scratch));
  return {dnnl::reorder(descriptor),
          {{DNNL_ARG_FROM, unbound(from)},
           {DNNL_ARG_TO, unbound(to)},
           {DNNL_ARG_SCRATCHPAD, unbound(scratch)}}};
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
    if (p_.has_bias) forward_.set(DNNL_ARG_BIAS, m.bias);
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
    std::byte* rest = gradient + aligned(bytes_of(p_.backward_weight.weights));
    if (p_.has_bias) {
      backward_weight_.set(DNNL_ARG_DIFF_BIAS, rest);
      dbias_part_ = reinterpret_cast<const float*>(rest);
      dbias_ = m.dbias;
      rest += aligned(bytes_of(p_.bias));
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
    if (p_.blind_taps) {
      std::memset(gradient_, 0, p_.backward_weight.weights.get_size());
      std::memset(weight_scratch_, 0, p_.backward_weight.scratch.get_size());
    }
    backward_weight_.set(DNNL_ARG_SRC, x);
    backward_weight_.set(DNNL_ARG_DIFF_DST, dy);
    backward_weight_.run(context_->stream);
    (first ? store_gradient_ : add_gradient_).run(context_->stream);
  });
  if (p_.has_bias) {
    accumulate(space, dbias_, dbias_part_, p_.bias.get_size() / sizeof(float), first);
  }
}

}  // namespace millrace::ops::onednn
