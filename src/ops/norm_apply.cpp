// SPDX-License-Identifier: Apache-2.0
#include "ops/lanes.hpp"
#include "ops/mask.hpp"
#include "ops/norm.hpp"
#include "ops/norm_teams.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Of 16-bit types it must read 2 bytes an element and write 2; with an addition read 4, write 2;
/// with a mask write 1/8 more.
template <class T, Activation kFn, bool kSkip, bool kMask = false>
struct Apply {
  [[maybe_unused]] static constexpr int kThreadsAtOnce = 1024;
  Tiling t;
  T* y;
  const T* x;
  const T* skip;
  const float* statistics;
  const float* gamma;
  const float* beta;
  std::uint8_t* mask = nullptr;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane) const {
    const Affine<W> f(t, s, lane, statistics, gamma, beta);
    for_rows<kRowsAtOnce<T, W, kSkip ? 2 : 1>>(t, s, lane, [&]<int kRows>(std::int64_t at) {
      const RowsIn<kRows, W, T> in(x + at, t.width);
      const RowsIn<kRows, W, T> others((kSkip ? skip : x) + at, t.width);
      for (int r = 0; r < kRows; ++r) {
        LanesOut<W, T> out(y + at + r * t.width);
        [[maybe_unused]] bool positive[W];
        MILLRACE_SIMD
        for (int j = 0; j < W; ++j) {
          float z = rounded_as<T>(multiply_add(f.a[j], to_float(in[r][j]), f.b[j]));
          if constexpr (kSkip) z = rounded_as<T>(z + to_float(others[r][j]));
          if constexpr (kMask) positive[j] = z > 0.0f;
          out.set(j, store_fn<T, kFn>(z));
        }
        if constexpr (kMask) store_bits(mask, at + r * t.width, positive);
      }
    });
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

/// Of 16-bit types it must read 4 bytes an element and write 2.
template <class T, Activation kFn>
struct BackwardApply {
  [[maybe_unused]] static constexpr int kThreadsAtOnce = 1024;
  Tiling t;
  T* dx;
  const T* dz;
  const T* x;
  const float* coefficients;
  const float* statistics;
  const float* gamma;
  const float* beta;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane) const {
    const std::int64_t all = t.instances * t.channels;
    const float* own = coefficients + s.instance * t.channels;
    const Affine<W> f(t, s, lane, statistics, gamma, beta);
    float slope_dz[W];
    float slope_x[W];
    float constant[W];
    for_channels<W>(t, s, lane, [&](int j, std::int64_t c) {
      // Both are gamma times the inverse deviation, and registers are few.
      slope_dz[j] = kFn == Activation::None ? own[c] : f.a[j];
      slope_x[j] = own[all + c];
      constant[j] = own[2 * all + c];
    });
    for_rows<kRowsAtOnce<T, W, 2>>(t, s, lane, [&]<int kRows>(std::int64_t at) {
      const RowsIn<kRows, W, T> x_rows(x + at, t.width);
      const RowsIn<kRows, W, T> dz_rows(dz + at, t.width);
      for (int r = 0; r < kRows; ++r) {
        LanesOut<W, T> dx_row(dx + at + r * t.width);
        MILLRACE_SIMD
        for (int j = 0; j < W; ++j) {
          const float value = to_float(x_rows[r][j]);
          float g = to_float(dz_rows[r][j]);
          if constexpr (kFn != Activation::None) {
            const float z = rounded_as<T>(multiply_add(f.a[j], value, f.b[j]));
            g = rounded_fn_gradient<T, kFn>(g, z);
          }
          dx_row.set(j, store_as<T>(multiply_add(slope_dz[j], g,
                                                 multiply_add(slope_x[j], value, constant[j]))));
        }
      }
    });
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

}  // namespace

template <class T>
void norm_apply(const ExecutionSpace& space, const NormShape& shape, T* y, const T* x,
                const T* skip, const float* statistics, const float* gamma, const float* beta,
                Activation fn, std::uint8_t* mask) {
  MILLRACE_ASSERT(mask == nullptr || (skip != nullptr && fn == Activation::Relu));
  dispatch_fn(fn, [&]<Activation kFn>() {
    const Tiling t = for_writing(shape.tiling);
    if (mask != nullptr) {
      parallel(
          "norm add", space, t.work_items(),
          Apply<T, Activation::Relu, true, true>{t, y, x, skip, statistics, gamma, beta, mask});
    } else if (skip != nullptr) {
      parallel("norm add", space, t.work_items(),
               Apply<T, kFn, true>{t, y, x, skip, statistics, gamma, beta});
    } else {
      parallel("norm", space, t.work_items(),
               Apply<T, kFn, false>{t, y, x, nullptr, statistics, gamma, beta});
    }
  });
}

template <class T>
void norm_backward_apply(const ExecutionSpace& space, const NormShape& shape, T* dx,
                         const T* dz_or_dy, const T* x, const float* coefficients,
                         const float* statistics, const float* gamma, const float* beta,
                         Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    const Tiling t = for_writing(shape.tiling);
    parallel("norm dx", space, t.work_items(),
             BackwardApply<T, kFn>{t, dx, dz_or_dy, x, coefficients, statistics, gamma, beta});
  });
}

void add_parameter_gradients(const ExecutionSpace& space, std::int64_t channels, float* dgamma,
                             float* dbeta, const float* sums, bool first) {
  const auto add = KOKKOS_LAMBDA(std::int64_t i) {
    float* const total = i < channels ? dgamma + i : dbeta + (i - channels);
    *total = first ? sums[i] : *total + sums[i];
  };
  parallel("norm dw", space, 2 * channels, add);
}

MILLRACE_INSTANTIATE(norm_apply)
MILLRACE_INSTANTIATE(norm_backward_apply)

}  // namespace millrace::ops
