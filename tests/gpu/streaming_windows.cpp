// SPDX-License-Identifier: Apache-2.0
#include "core/image_records.hpp"
#include "device/compat.hpp"
#include "ops/pool.hpp"
#include "ops/prepare_images.hpp"
#include "streaming_list.hpp"

namespace millrace::gpu {
namespace {

using device::ExecutionSpace;

/// The pool behind ResNet-50's first convolution, 3x3 by 2: four times the pixels, a quarter of the
/// channels.
ops::WindowShape stem_pool(const StreamSizes& s) {
  return {.batch = s.batch,
          .in = {2 * s.side, 2 * s.side, s.channels / 4},
          .out = {s.side, s.side, s.channels / 4},
          .kernel_h = 3,
          .kernel_w = 3,
          .stride_h = 2,
          .stride_w = 2,
          .pad_top = 1,
          .pad_left = 1};
}

template <class T>
void add_max_pool(List& list) {
  list.add("max pool forward", [](StreamingKernel& k, const StreamSizes& s) {
    const ops::WindowShape window = stem_pool(s);
    const T* const x = add<T>(k.reads, window.in_elements());
    T* const y = add<T>(k.writes, window.out_elements());
    auto* const winner = add<std::uint8_t>(k.writes, window.out_elements());
    return [=](const ExecutionSpace& space) {
      ops::max_pool_forward<T, std::uint8_t>(space, window, y, winner, x);
    };
  });
  list.add("max pool backward", [](StreamingKernel& k, const StreamSizes& s) {
    const ops::WindowShape window = stem_pool(s);
    const T* const dy = add<T>(k.reads, window.out_elements());
    auto* const winner = add<std::uint8_t>(k.reads, window.out_elements());
    T* const dx = add<T>(k.writes, window.in_elements());
    {
      StreamingKernel forward;
      const T* const x = add<T>(forward.reads, window.in_elements());
      T* const y = add<T>(forward.writes, window.out_elements());
      const ExecutionSpace space;
      ops::max_pool_forward<T, std::uint8_t>(space, window, y, winner, x);
      device::fence(space);
    }
    return [=](const ExecutionSpace& space) {
      ops::max_pool_backward<T, std::uint8_t>(space, window, dx, dy, winner);
    };
  });
}

/// 2x2 by 2, and over whole images.
template <class T>
void add_average_pools(List& list) {
  const auto halved = [](const StreamSizes& s) {
    return ops::WindowShape{.batch = s.batch,
                            .in = {s.side, s.side, s.channels},
                            .out = {s.side / 2, s.side / 2, s.channels},
                            .kernel_h = 2,
                            .kernel_w = 2,
                            .stride_h = 2,
                            .stride_w = 2};
  };
  list.add("average pool forward", [=](StreamingKernel& k, const StreamSizes& s) {
    const ops::WindowShape window = halved(s);
    const T* const x = add<T>(k.reads, window.in_elements());
    T* const y = add<T>(k.writes, window.out_elements());
    return [=](const ExecutionSpace& space) {
      ops::average_pool_forward<T>(space, window, y, x, false);
    };
  });
  list.add("average pool backward", [=](StreamingKernel& k, const StreamSizes& s) {
    const ops::WindowShape window = halved(s);
    const T* const dy = add<T>(k.reads, window.out_elements());
    T* const dx = add<T>(k.writes, window.in_elements());
    return [=](const ExecutionSpace& space) {
      ops::average_pool_backward<T>(space, window, dx, dy, false);
    };
  });
  list.add("global average forward", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const x = add<T>(k.reads, s.elements());
    T* const y = add<T>(k.writes, s.batch * s.channels);
    return
        [=, batch = s.batch, in = Shape{s.side, s.side, s.channels}](const ExecutionSpace& space) {
          ops::global_average_forward<T>(space, batch, in, y, x);
        };
  });
  list.add("global average backward", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const dy = add<T>(k.reads, s.batch * s.channels);
    T* const dx = add<T>(k.writes, s.elements());
    return
        [=, batch = s.batch, in = Shape{s.side, s.side, s.channels}](const ExecutionSpace& space) {
          ops::global_average_backward<T>(space, batch, in, dx, dy);
        };
  });
}

/// Bytes of images of four times the side, 224 x 224 for ResNet-50, with three or eight channels in
/// the network's input.
template <class T>
void add_images(List& list) {
  for (const auto& [name, padded] :
       {std::pair{"images", 0}, std::pair{"images of eight channels", 8}}) {
    list.add(name, [padded = padded](StreamingKernel& k, const StreamSizes& s) {
      const ops::PrepareImagesShape shape{
          .batch = s.batch, .image = {4 * s.side, 4 * s.side, 3}, .padded_channels = padded};
      const std::int64_t pixels = s.batch * shape.image.pixels();
      const auto* const bytes = add<std::uint8_t>(k.reads, 3 * pixels);
      T* const y = add<T>(k.writes, shape.channels_in_memory() * pixels);
      PixelScaling scaling;
      for (float& scale : scaling.scale) scale = 0.017f;
      scaling.real.bottom = static_cast<std::int32_t>(shape.image.h);
      scaling.real.right = static_cast<std::int32_t>(shape.image.w);
      const std::vector<PixelScaling> all(static_cast<std::size_t>(s.batch), scaling);
      const PixelScaling* const scalings = add_records(k.others, all);
      return [=](const ExecutionSpace& space) {
        ops::prepare_bytes<T>(space, shape, y, bytes, scalings, nullptr);
      };
    });
  }
}

}  // namespace

void add_windows(List& list, DType type) {
  device::dispatch(type, [&]<class T>() {
    add_max_pool<T>(list);
    add_average_pools<T>(list);
    add_images<T>(list);
  });
}

}  // namespace millrace::gpu
