// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "core/error.hpp"
#include "ops/instantiate.hpp"
#include "ops/pool.hpp"
#include "ops/pool_windows.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// Pixels of one window that are compared in one pass over the channels, so that the maxima stay in
/// registers.
template <int N>
struct Batch {
  std::int32_t code[N];    ///< index in the window
  std::int64_t offset[N];  ///< of the first channel of the strip
  int count = 0;

  KOKKOS_INLINE_FUNCTION void add(std::int64_t place, std::int64_t at) {
    code[count] = static_cast<std::int32_t>(place);
    offset[count] = at;
    ++count;
  }
  /// Fills the rest of the batch with the last pixel.
  KOKKOS_INLINE_FUNCTION void fill() {
    for (int k = count; k < N; ++k) {
      code[k] = code[count - 1];
      offset[k] = offset[count - 1];
    }
  }
};

// Batch sizes: all pixels of a 2 x 2 window and of a 3 x 3 one. GPUs use one thread per element.
constexpr int kSmallWindow = kRows ? 4 : 1;
constexpr int kLargeWindow = kRows ? 9 : 1;

template <class T, class W, int N>
struct MaxForward {
  WindowShape s;
  T* y;
  W* winner;
  const T* x;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.out, i, [&](const Place& p) {
      float best[kStrip];
      std::int32_t code[kStrip];
      const std::int64_t first =
          window_rows(s, p.h).first * s.kernel_w + window_columns(s, p.w).first;
      for (std::int64_t j = 0; j < kStrip; ++j) {
        best[j] = kLowest;
        code[j] = static_cast<std::int32_t>(first);
      }
      Batch<N> batch;
      for_window(s, p, [&](std::int64_t place, std::int64_t in) {
        batch.add(place, in);
        if (batch.count < N) return;
        take_best(batch, p.lanes, best, code);
        batch.count = 0;
      });
      if (batch.count > 0) {
        batch.fill();  // comparing the last pixel again does not change the result
        take_best(batch, p.lanes, best, code);
      }
      const std::int64_t out = offset(s.out, p.n, p.h, p.w) + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) y[out + j] = store_exact<T>(best[j]);
      if (winner == nullptr) return;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) {
        winner[out + j] = static_cast<W>(code[j]);
      }
    });
  }

  KOKKOS_INLINE_FUNCTION void take_best(const Batch<N>& batch, std::int64_t lanes, float* best,
                                        std::int32_t* code) const {
    MILLRACE_SIMD
    for (std::int64_t j = 0; j < lanes; ++j) {
      float best_here = best[j];
      std::int32_t code_here = code[j];
      for (int k = 0; k < N; ++k) {
        const float value = to_float(x[batch.offset[k] + j]);
        // A NaN always wins, so that divergence is not hidden. `|` instead of `||` allows vector
        // code.
        const bool better = (value > best_here) | (value != value);
        best_here = better ? value : best_here;
        code_here = better ? batch.code[k] : code_here;
      }
      best[j] = best_here;
      code[j] = code_here;
    }
  }
};

/// Whether W has a number for every position in the window.
template <class W>
bool can_name_positions(const WindowShape& s) {
  return s.kernel_h * s.kernel_w - 1 <= static_cast<std::int64_t>(std::numeric_limits<W>::max());
}

}  // namespace

template <class T, class W>
void max_pool_forward(const ExecutionSpace& space, const WindowShape& shape, T* y, W* winner,
                      const T* x) {
  MILLRACE_ASSERT(winner == nullptr || can_name_positions<W>(shape));
  const auto run = [&](const auto& forward) {
    parallel("max pool", space, work_items(shape.batch, shape.out), forward);
  };
  if (shape.kernel_h * shape.kernel_w <= kSmallWindow)
    run(MaxForward<T, W, kSmallWindow>{shape, y, winner, x});
  else
    run(MaxForward<T, W, kLargeWindow>{shape, y, winner, x});
}

template <class T, class W>
void max_pool_backward(const ExecutionSpace& space, const WindowShape& s, T* dx, const T* dy,
                       const W* winner) {
  MILLRACE_ASSERT(can_name_positions<W>(s));
  const auto pixels = KOKKOS_LAMBDA(std::int64_t i) {
    for_strips(s.in, i, [&](const Place& p) {
      float sum[kStrip] = {};
      for_windows_of(s, p, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
        const std::int64_t place =
            (p.h + s.pad_top - oh * s.stride_h) * s.kernel_w + (p.w + s.pad_left - ow * s.stride_w);
        const auto code = static_cast<std::int32_t>(place);
        const T* source = dy + out;
        const W* won = winner + out;
        MILLRACE_SIMD
        for (std::int64_t j = 0; j < p.lanes; ++j) {
          const std::int32_t won_by = won[j];
          const float gradient = to_float(source[j]);  // read unconditionally, for vector code
          sum[j] += won_by == code ? gradient : 0.0f;
        }
      });
      T* target = dx + offset(s.in, p.n, p.h, p.w) + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) target[j] = store_as<T>(sum[j]);
    });
  };
  parallel("max pool dx", space, work_items(s.batch, s.in), pixels);
}

MILLRACE_INSTANTIATE_WITH(max_pool_forward, std::uint8_t)
MILLRACE_INSTANTIATE_WITH(max_pool_forward, std::int32_t)
MILLRACE_INSTANTIATE_WITH(max_pool_backward, std::uint8_t)
MILLRACE_INSTANTIATE_WITH(max_pool_backward, std::int32_t)

}  // namespace millrace::ops
