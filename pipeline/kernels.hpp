// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "core/label_smoothing.hpp"
#include "device/tensor.hpp"
#include "ops/dropout.hpp"
#include "ops/linear.hpp"
#include "ops/norm.hpp"
#include "pipeline/parameters.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// The memory and the samples that a phase works on.
struct RunContext {
  int stash_slot = 0;
  int weight_slot = 0;
  int outbox_slot = 0;
  int member = 0;     ///< place among the replicas that share batch statistics
  bool first = true;  ///< first micro-batch of the step: overwrites gradients and running sums
  // Random masks depend on these, on the step (Parameters::step()) and on the op's name.
  std::uint64_t seed = 0;
  std::int64_t first_sample =
      0;  ///< position of the micro-batch's first sample in the global batch
  /// Of a loss of the program's own, in place of what LossBackward computes; empty: that.
  std::span<const float> logit_gradient = {};
};

/// Whether kernels of this kind read CallValues.
[[nodiscard]] bool reads_values(KernelKind kind);

/// A call that is complete except for its slot.
using Kernel = std::function<void(const device::ExecutionSpace&, const RunContext&)>;

/// A buffer's address as a function of the slot; nullptr for a buffer that the call does not use.
struct Place {
  std::byte* base = nullptr;
  std::int64_t stash_stride = 0;
  std::int64_t weight_stride = 0;
  std::int64_t outbox_stride = 0;
  [[nodiscard]] std::byte* at(const RunContext& c) const {
    return base + c.stash_slot * stash_stride + c.weight_slot * weight_stride +
           c.outbox_slot * outbox_stride;
  }
};

/// The same with the type of its elements.
template <class T>
struct Operand {
  Place place;
  [[nodiscard]] T* operator()(const RunContext& c) const {
    return reinterpret_cast<T*>(place.at(c));
  }
};

/// An argument of a kernel's function: what is a function of the context, such as an operand, is
/// called; anything else stays.
template <class A>
decltype(auto) argument(const A& a, const RunContext& c) {
  if constexpr (std::is_invocable_v<const A&, const RunContext&>)
    return a(c);
  else
    return (a);
}
/// The kernel that calls f(space, arguments...).
template <class F, class... A>
[[nodiscard]] Kernel calling(F f, A... arguments) {
  return [=](const device::ExecutionSpace& space, const RunContext& c) {
    f(space, argument(arguments, c)...);
  };
}

/// Arguments to make a kernel: the call and the places of its buffers. Only `parameters`
/// and `linear` must outlive the kernel.
struct Binding {
  const Graph& graph;
  const Call& call;
  std::int64_t batch;
  DType type;    ///< of activations
  DType images;  ///< type of the images as they arrive
  const Parameters& parameters;
  ops::NormScratch norm_scratch;
  /// Whether the first backward pass of a norm adds the gradients of its parameters itself, and its
  /// NormBackwardWeight has nothing to do.
  bool adds_gradients;
  LabelSmoothing label_smoothing;
  const ops::CallValues* values;  ///< in device memory, set before each phase
  ops::LinearOp* linear;          ///< the prepared op of a Linear... call
  const std::function<Place(BufferId)>& place;

  template <class T>
  [[nodiscard]] Operand<T> operand(Role role) const {
    return {place(call.at(role))};
  }
};

/// Makes the kernel of a call.
[[nodiscard]] Kernel make_kernel(const Binding& binding);

/// Where a norm adds up its running statistics; nowhere in a recomputation or for group
/// normalization.
[[nodiscard]] ops::RunningSums running_sums(const Graph& graph, const Call& call,
                                            const Parameters& parameters);

}  // namespace millrace::pipeline
