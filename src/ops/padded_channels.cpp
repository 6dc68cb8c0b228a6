// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "ops/inner_kernel.hpp"
#include "ops/linear_ops.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Writes one filter at one tap of the wide kernel: the channels of the narrow one, then zeros.
template <class T>
struct PadTap {
  std::int64_t narrow_channels;
  std::int64_t wide_channels;
  T* wide;
  const T* narrow;
  KOKKOS_FUNCTION void operator()(std::int64_t tap) const {
    T* const to = wide + tap * wide_channels;
    const T* const from = narrow + tap * narrow_channels;
    for (std::int64_t c = 0; c < wide_channels; ++c) to[c] = c < narrow_channels ? from[c] : T{};
  }
};

/// Adds one value of the narrow kernel's gradient. What the wide one has behind it is left out.
struct AddUnpadded {
  std::int64_t narrow_channels;
  std::int64_t wide_channels;
  float* narrow;
  const float* wide;
  bool first;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float part = wide[i / narrow_channels * wide_channels + i % narrow_channels];
    narrow[i] = first ? part : narrow[i] + part;
  }
};

template <class T>
class PaddedChannels final : public LinearOp {
 public:
  PaddedChannels(const ConvShape& shape, std::unique_ptr<LinearOp> wide)
      : channels_(shape.window.in.c),
        wide_channels_(shape.channels_in_memory()),
        taps_(shape.kernel_elements() / shape.window.in.c),
        wide_(std::move(wide)),
        kernel_(*wide_, taps_ * wide_channels_ * static_cast<std::int64_t>(sizeof(T))) {}

  [[nodiscard]] LinearBytes bytes() const override {
    LinearBytes bytes = wide_->bytes();
    bytes.packed_forward = kernel_.packed_bytes();
    bytes.scratch = std::max(bytes.scratch + gradient_bytes(), kernel_.scratch_bytes());
    bytes.reads_kernel = false;
    return bytes;
  }
  /// Scratch holds the wide kernel's gradient during backward weight. It may also hold the kernel
  /// during packing.
  void bind(const LinearMemory& memory) override {
    memory_ = memory;
    LinearMemory rest = memory;
    rest.kernel = kernel_.in(memory);
    rest.dkernel = wide_gradient();
    rest.scratch += gradient_bytes();
    wide_->bind(rest);
  }
  void pack(const ExecutionSpace& space, bool backward) override {
    parallel("pad kernel", space, taps_,
             PadTap<T>{channels_, wide_channels_, reinterpret_cast<T*>(kernel_.in(memory_)),
                       reinterpret_cast<const T*>(memory_.kernel)});
    wide_->pack(space, backward);
  }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    wide_->forward(space, y, x);
  }
  void backward_input(const ExecutionSpace&, std::byte*, const std::byte*) override {
    fail(ErrorKind::Internal, "images have no gradient");
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    wide_->backward_weight(space, dy, x, true);
    parallel("unpad gradient", space, taps_ * channels_,
             AddUnpadded{channels_, wide_channels_, memory_.dkernel, wide_gradient(), first});
  }

 private:
  [[nodiscard]] std::int64_t gradient_bytes() const {
    return device::aligned(taps_ * wide_channels_ * static_cast<std::int64_t>(sizeof(float)));
  }
  [[nodiscard]] float* wide_gradient() const { return reinterpret_cast<float*>(memory_.scratch); }

  std::int64_t channels_;
  std::int64_t wide_channels_;
  std::int64_t taps_;  ///< of all filters
  std::unique_ptr<LinearOp> wide_;
  InnerKernel kernel_;
  LinearMemory memory_;
};

}  // namespace

ConvShape padded_shape(const ConvShape& shape) {
  ConvShape wide = shape;
  wide.window.in.c = shape.channels_in_memory();
  wide.padded_channels = 0;
  return wide;
}

std::unique_ptr<LinearOp> make_padded_channels(const ConvShape& shape, DType type,
                                               std::unique_ptr<LinearOp> wide) {
  // The gradient of a bias would be overwritten by every micro-batch.
  MILLRACE_ASSERT(shape.groups == 1 && !shape.bias);
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    return std::make_unique<PaddedChannels<T>>(shape, std::move(wide));
  });
}

}  // namespace millrace::ops
