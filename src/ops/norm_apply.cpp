// SPDX-License-Identifier: Apache-2.0
#include "ops/instantiate.hpp"
#include "ops/lanes.hpp"
#include "ops/norm.hpp"
#include "ops/norm_lanes.hpp"

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

MILLRACE_INSTANTIATE(norm_apply)

}  // namespace millrace::ops
