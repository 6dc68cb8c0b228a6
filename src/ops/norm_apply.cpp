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

/// What is added to normalized values: nothing, values, or those of another norm.
enum class Skip { None, Values, Norm };

/// Of 16-bit types it must read 2 bytes an element and write 2; with an addition read 4, write 2;
/// with a mask write 1/8 more.
template <class T, Activation kFn, Skip kSkip, bool kMask, bool kScaled>
struct Apply {
  static constexpr bool kAdds = kSkip != Skip::None;
  static constexpr bool kLong = kComputesLong<T, kFn>;
  [[maybe_unused]] static constexpr int kThreadsAtOnce = 1024;
  Tiling t;
  T* y;
  const T* x;
  const T* skip;
  NormParameters own;
  NormParameters of_skip;
  std::uint8_t* mask;
  Excitation<T> excitation;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane) const {
    const Affine<W> f(t, s, lane, own.statistics, own.gamma, own.beta);
    const NormParameters& second = kSkip == Skip::Norm ? of_skip : own;
    const Affine<W> g(t, s, lane, second.statistics, second.gamma, second.beta);
    for_samples<kScaled>(t, s, excitation.pixels, [&](const Strip& rows, std::int64_t sample) {
      const ScaledLanes<W, T, kScaled> scaled(t, s, lane, excitation, sample);
      for_rows<kRowsAtOnce<T, W, kAdds ? 2 : 1>>(t, rows, lane, [&]<int kRows>(std::int64_t at) {
        const RowsIn<kRows, W, T, kLong> in(x + at, t.width);
        const RowsIn<kRows, W, T, kLong && kAdds> others((kAdds ? skip : x) + at, t.width);
        for (int r = 0; r < kRows; ++r) {
          LanesOut<W, T> out(y + at + r * t.width);
          [[maybe_unused]] bool positive[W];
          MILLRACE_SIMD
          for (int j = 0; j < W; ++j) {
            float z = rounded_as<T>(multiply_add(f.a[j], to_float(in[r][j]), f.b[j]));
            float other = to_float(others[r][j]);
            if constexpr (kSkip == Skip::Norm)
              other = rounded_as<T>(multiply_add(g.a[j], other, g.b[j]));
            if constexpr (kAdds) z = rounded_as<T>(z + other);
            if constexpr (kMask) positive[j] = z > 0.0f;
            out.set(j, scaled.product(j, store_fn<T, kFn>(z)));
          }
          if constexpr (kMask) store_bits(mask, at + r * t.width, positive);
        }
      });
    });
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

/// Of 16-bit types it must read 4 bytes an element and write 2.
template <class T, Activation kFn, bool kScaled>
struct BackwardApply {
  static constexpr bool kLong = kComputesLong<T, kFn>;
  /// Factors need more registers.
  [[maybe_unused]] static constexpr int kThreadsAtOnce = kScaled ? 512 : 1024;
  Tiling t;
  T* dx;
  const T* dz;
  const T* x;
  const float* coefficients;
  const float* statistics;
  const float* gamma;
  const float* beta;
  Excitation<T> excitation;

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
    for_samples<kScaled>(t, s, excitation.pixels, [&](const Strip& rows, std::int64_t sample) {
      const ScaledLanes<W, T, kScaled> scaled(t, s, lane, excitation, sample);
      for_rows<kRowsAtOnce<T, W, 2>>(t, rows, lane, [&]<int kRows>(std::int64_t at) {
        const RowsIn<kRows, W, T, kLong> x_rows(x + at, t.width);
        const RowsIn<kRows, W, T, kLong> dz_rows(dz + at, t.width);
        for (int r = 0; r < kRows; ++r) {
          LanesOut<W, T> dx_row(dx + at + r * t.width);
          MILLRACE_SIMD
          for (int j = 0; j < W; ++j) {
            const float value = to_float(x_rows[r][j]);
            float g = scaled.gradient(j, to_float(dz_rows[r][j]));
            if constexpr (kFn != Activation::None) {
              const float z = rounded_as<T>(multiply_add(f.a[j], value, f.b[j]));
              g = rounded_fn_gradient<T, kFn>(g, z);
            }
            dx_row.set(j, store_as<T>(multiply_add(slope_dz[j], g,
                                                   multiply_add(slope_x[j], value, constant[j]))));
          }
        }
      });
    });
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

}  // namespace

template <class T>
void norm_apply(const ExecutionSpace& space, const NormShape& shape, T* y, const T* x,
                const T* skip, const float* statistics, const float* gamma, const float* beta,
                Activation fn, std::uint8_t* mask, const NormParameters& of_skip,
                const Excitation<T>& excitation) {
  MILLRACE_ASSERT(mask == nullptr || (skip != nullptr && fn == Activation::Relu));
  const bool normalized = of_skip.statistics != nullptr;
  MILLRACE_ASSERT(!normalized || fn == Activation::None || fn == Activation::Relu);
  const bool scaled = excitation.factor != nullptr;
  MILLRACE_ASSERT(!scaled || (excitation.fits(shape.tiling) && skip == nullptr));
  const Tiling t = for_writing(shape.tiling);
  dispatch_fn(fn, [&]<Activation kFn>() {
    const auto run = [&]<Skip kSkip, bool kMask, bool kScaled = false>() {
      const Apply<T, kFn, kSkip, kMask, kScaled> body{
          t, y, x, skip, {statistics, gamma, beta}, of_skip, mask, excitation};
      if constexpr (kSkip == Skip::None)
        parallel("norm", space, t.work_items(), body);
      else
        parallel("norm add", space, t.work_items(), body);
    };
    if constexpr (!device::kOnCores)
      if (scaled) return run.template operator()<Skip::None, false, true>();
    if constexpr (kFn == Activation::Relu) {
      if (mask != nullptr && normalized) return run.template operator()<Skip::Norm, true>();
      if (mask != nullptr) return run.template operator()<Skip::Values, true>();
    }
    if constexpr (kExact<kFn>)
      if (normalized) return run.template operator()<Skip::Norm, false>();
    if (skip != nullptr) return run.template operator()<Skip::Values, false>();
    run.template operator()<Skip::None, false>();
  });
}

template <class T>
void norm_backward_apply(const ExecutionSpace& space, const NormShape& shape, T* dx,
                         const T* dz_or_dy, const T* x, const float* coefficients,
                         const float* statistics, const float* gamma, const float* beta,
                         Activation fn, const Excitation<T>& excitation) {
  const auto run = [&]<Activation kFn, bool kScaled>() {
    const Tiling t = for_writing(shape.tiling);
    parallel("norm dx", space, t.work_items(),
             BackwardApply<T, kFn, kScaled>{t, dx, dz_or_dy, x, coefficients, statistics, gamma,
                                            beta, excitation});
  };
  const bool scaled = excitation.factor != nullptr;
  MILLRACE_ASSERT(!scaled || excitation.fits(shape.tiling));
  dispatch_fn(fn, [&]<Activation kFn>() {
    if constexpr (!device::kOnCores)
      if (scaled) return run.template operator()<kFn, true>();
    run.template operator()<kFn, false>();
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
