// SPDX-License-Identifier: Apache-2.0
#include "ops/lanes.hpp"
#include "ops/norm.hpp"
#include "ops/norm_teams.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

template <class T, Activation kFn, bool kSkip>
struct Apply {
  Tiling t;
  T* y;
  const T* x;
  const T* skip;
  const float* statistics;
  const float* gamma;
  const float* beta;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane) const {
    const Affine<W> f(t, s, lane, statistics, gamma, beta);
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const std::int64_t row = s.offset + lane + r * t.width;
      const LanesIn<W, T> in(x + row);
      const LanesIn<W, T> other(kSkip ? skip + row : x + row);
      LanesOut<W, T> out(y + row);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        float z = rounded_as<T>(f.a[j] * to_float(in[j]) + f.b[j]);
        if constexpr (kSkip) z = rounded_as<T>(z + to_float(other[j]));
        out.set(j, store_fn<T, kFn>(z));
      }
    }
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

template <class T, Activation kFn>
struct BackwardApply {
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
      slope_dz[j] = own[c];
      slope_x[j] = own[all + c];
      constant[j] = own[2 * all + c];
    });
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const std::int64_t row = s.offset + lane + r * t.width;
      const LanesIn<W, T> x_row(x + row);
      const LanesIn<W, T> dz_row(dz + row);
      LanesOut<W, T> dx_row(dx + row);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float value = to_float(x_row[j]);
        float g = to_float(dz_row[j]);
        if constexpr (kFn != Activation::None) {
          const float z = rounded_as<T>(f.a[j] * value + f.b[j]);
          g = rounded_fn_gradient<T, kFn>(g, z);
        }
        dx_row.set(j, store_as<T>(slope_dz[j] * g + (slope_x[j] * value + constant[j])));
      }
    }
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

}  // namespace

template <class T>
void norm_apply(const ExecutionSpace& space, const NormShape& shape, T* y, const T* x,
                const T* skip, const float* statistics, const float* gamma, const float* beta,
                Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    const Tiling& t = shape.tiling;
    if (skip != nullptr) {
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
    parallel("norm dx", space, shape.tiling.work_items(),
             BackwardApply<T, kFn>{shape.tiling, dx, dz_or_dy, x, coefficients, statistics, gamma,
                                   beta});
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
