// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "core/error.hpp"
#include "ops/linear_ops.hpp"
#include "ops/wide_kernel.hpp"

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
class PaddedChannels final : public WideKernel {
 public:
  PaddedChannels(const ConvShape& shape, std::unique_ptr<LinearOp> wide)
      : PaddedChannels(shape, shape.kernel_elements() / shape.window.in.c, std::move(wide)) {}

  void backward_input(const ExecutionSpace&, std::byte*, const std::byte*) override {
    fail(ErrorKind::Internal, "images have no gradient");
  }

 private:
  PaddedChannels(const ConvShape& shape, std::int64_t taps, std::unique_ptr<LinearOp> wide)
      : WideKernel(std::move(wide), taps * shape.channels_in_memory(),
                   static_cast<std::int64_t>(sizeof(T))),
        channels_(shape.window.in.c),
        wide_channels_(shape.channels_in_memory()),
        taps_(taps) {}

  void widen(const ExecutionSpace& space, std::byte* wide, const std::byte* narrow) const override {
    parallel("pad kernel", space, taps_,
             PadTap<T>{channels_, wide_channels_, reinterpret_cast<T*>(wide),
                       reinterpret_cast<const T*>(narrow)});
  }
  void narrow(const ExecutionSpace& space, float* narrow, const float* wide,
              bool first) const override {
    parallel("unpad gradient", space, taps_ * channels_,
             AddUnpadded{channels_, wide_channels_, narrow, wide, first});
  }

  std::int64_t channels_;
  std::int64_t wide_channels_;
  std::int64_t taps_;  ///< of all filters
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
