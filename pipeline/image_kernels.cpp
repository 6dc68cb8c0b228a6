// SPDX-License-Identifier: Apache-2.0
#include "core/float16.hpp"
#include "ops/prepare_images.hpp"
#include "pipeline/kernels.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;

template <class T>
Kernel prepare_images(const Binding& b) {
  const ops::PrepareImagesShape shape{b.batch, b.graph.input_shape};
  const auto y = b.operand<T>(Role::Y);
  const auto mixing = b.operand<const ImageMixing>(Role::Mixing);
  if (b.call.has(Role::Scaling))
    return [=, bytes = b.operand<const std::uint8_t>(Role::X),
            scaling = b.operand<const PixelScaling>(Role::Scaling)](const ExecutionSpace& space,
                                                                    const RunContext& c) {
      ops::prepare_bytes<T>(space, shape, y(c), bytes(c), scaling(c), mixing(c));
    };
  const auto from = [&]<class Stored>(Stored) -> Kernel {
    return [=, x = b.operand<const Stored>(Role::X)](const ExecutionSpace& space,
                                                     const RunContext& c) {
      ops::prepare_floats<T, Stored>(space, shape, y(c), x(c), mixing(c));
    };
  };
  if (b.images == DType::F16) return from(float16{});
  return b.images == DType::F32 ? from(float{}) : from(bfloat16{});
}

}  // namespace

Kernel make_image_kernel(const Binding& b) {
  return device::dispatch(b.type, [&]<class T>() { return prepare_images<T>(b); });
}

}  // namespace millrace::pipeline
