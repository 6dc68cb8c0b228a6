// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one_pixel.cpp.
#pragma once

#include <cstdint>
#include <limits>

#include "device/teams.hpp"
#include "ops/activation_function.hpp"
#include "ops/lanes.hpp"

namespace millrace::ops::one_pixel {

using device::Team;

inline constexpr int kMostChannels = 2048;
inline constexpr int kMostWidth = 8;
inline constexpr int kRowThreads = 512;
inline constexpr int kAtOnce = 4;  ///< reads of a thread before it uses the first

/// Calls body.template operator()<W>() for a width of 8, 4, 2 or 1.
template <class Body>
KOKKOS_INLINE_FUNCTION void with_width(int width, const Body& body) {
  if (width == 8) return body.template operator()<8>();
  if (width == 4) return body.template operator()<4>();
  if (width == 2) return body.template operator()<2>();
  body.template operator()<1>();
}

/// The same for a function that is fused.
template <class Body>
KOKKOS_INLINE_FUNCTION auto with_fn(Activation fn, const Body& body) {
  if (fn == Activation::Relu) return body.template operator()<Activation::Relu>();
  if (fn == Activation::Swish) return body.template operator()<Activation::Swish>();
  if (fn == Activation::Sigmoid) return body.template operator()<Activation::Sigmoid>();
  return body.template operator()<Activation::None>();
}

/// A product of each sample, y = x * w or dx = dy * w^T, with the activation behind y or before dx.
template <class T>
struct Step {
  std::int32_t in = 0;
  std::int32_t out = 0;
  std::int32_t width = 1;     ///< neighboring weights that a thread reads at once
  std::int32_t lanes = 1;     ///< threads that share a sum
  const T* kernel = nullptr;  ///< [out][in]; null: there is only the activation before dx
  const float* bias = nullptr;
  T* product = nullptr;  ///< y or dx; null: not stored
  Activation fn = Activation::None;
  const T* z = nullptr;    ///< what the activation's gradient follows from
  T* activated = nullptr;  ///< fn(y), or the gradient before dx; null: there is no activation
};

/// Two steps, or one. A team has a sample, whose values stay in its shared memory. Bytes: the
/// kernels, which each multiprocessor reads from the second-level cache; at most 221 KB in
/// EfficientNet-B0.
template <class T, bool kForward>
struct Rows {
  [[maybe_unused]] static constexpr int kThreads = device::threads_of_team(kRowThreads);
  [[maybe_unused]] static constexpr std::size_t kSharedBytes =
      (kMostChannels + kRowThreads * kMostWidth) * sizeof(float);
  const T* from;
  Step<T> first;
  Step<T> second;
  bool has_second;

  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t sample) const {
    auto* const row = reinterpret_cast<float*>(team.shared());
    const std::int32_t values = kForward ? first.in : first.out;
    for (int c = team.rank(); c < values; c += team.size())
      row[c] = to_float(from[sample * values + c]);
    run(team, first, sample, row);
    if (has_second) run(team, second, sample, row);
  }

  /// Puts the product in the place of a row, of which a thread always has the same values.
  KOKKOS_INLINE_FUNCTION static void run(const Team& team, const Step<T>& step, std::int64_t sample,
                                         float* row) {
    float* const parts = row + kMostChannels;
    for (int c = team.rank(); !kForward && step.activated != nullptr && c < step.out;
         c += team.size()) {
      const std::int64_t at = sample * step.out + c;
      const float z = to_float(step.z[at]);
      const float dy = row[c];
      row[c] =
          with_fn(step.fn, [&]<Activation kFn>() { return rounded_fn_gradient<T, kFn>(dy, z); });
      step.activated[at] = store_exact<T>(row[c]);
    }
    if (step.kernel == nullptr) return;
    team.wait();
    with_width(step.width, [&]<int W>() { multiply<W>(team, step, row, parts); });
    team.wait();
    const std::int32_t values = kForward ? step.out : step.in;
    for (int c = team.rank(); c < values; c += team.size()) {
      const std::int64_t at = sample * values + c;
      float sum = step.bias != nullptr ? step.bias[c] : 0.0f;
      for (int lane = 0; lane < step.lanes; ++lane) sum += parts[lane * values + c];
      const float z = rounded_as<T>(sum);
      row[c] = z;
      if (step.product != nullptr) step.product[at] = store_exact<T>(z);
      if (!kForward || step.activated == nullptr) continue;
      const T y = with_fn(step.fn, [&]<Activation kFn>() { return store_fn<T, kFn>(z); });
      step.activated[at] = y;
      row[c] = to_float(y);
    }
  }

  /// Each lane's part of the sums: of y over every lanes-th piece of W inputs, or of W values of dx
  /// over every lanes-th output.
  template <int W>
  KOKKOS_INLINE_FUNCTION static void multiply(const Team& team, const Step<T>& step,
                                              const float* row, float* parts) {
    const int groups = kForward ? step.out : step.in / W;
    const int terms = kForward ? step.in / W : step.out;
    for (int item = team.rank(); item < groups * step.lanes; item += team.size()) {
      const int lane = kForward ? item % step.lanes : item / groups;
      const int group = kForward ? item / step.lanes : item % groups;
      float sum[W] = {};
      const auto add = [&]<int kCount>(int first) {
        LanesIn<W, T> weights[kCount];
        for (int k = 0; k < kCount; ++k) {
          const int t = first + k * step.lanes;
          weights[k] = LanesIn<W, T>(
              step.kernel + (kForward ? group * step.in + t * W : t * step.in + group * W));
        }
        for (int k = 0; k < kCount; ++k)
          for (int j = 0; j < W; ++j) {
            const int t = first + k * step.lanes;
            sum[j] = multiply_add(row[kForward ? t * W + j : t], to_float(weights[k][j]), sum[j]);
          }
      };
      int t = lane;
      for (; t + (kAtOnce - 1) * step.lanes < terms; t += kAtOnce * step.lanes)
        add.template operator()<kAtOnce>(t);
      for (; t < terms; t += step.lanes) add.template operator()<1>(t);
      if constexpr (kForward) {
        for (int j = 1; j < W; ++j) sum[0] += sum[j];
        parts[lane * groups + group] = sum[0];
      } else {
        for (int j = 0; j < W; ++j) parts[lane * step.in + group * W + j] = sum[j];
      }
    }
  }
};

/// The gradient of a kernel, or of a bias, whose input is one.
template <class T>
struct Gradient {
  std::int32_t in = 1;
  std::int32_t out = 1;
  std::int32_t width = 1;
  std::int32_t first_team = std::numeric_limits<std::int32_t>::max();
  float* total = nullptr;
  const T* dy = nullptr;
  const T* x = nullptr;  ///< null: ones
};

/// Gradients of up to two products, added in float32. A team has kItems times `width` neighboring
/// weights, and every kLanes-th sample for each of its lanes, which are added in ascending order.
/// Bytes of a weight: 8 of its sum; samples stay in the cache.
template <class T>
struct Gradients {
  static constexpr int kItems = 32;
  static constexpr int kLanes = 8;
  [[maybe_unused]] static constexpr int kThreads = device::threads_of_team(kItems * kLanes);
  [[maybe_unused]] static constexpr std::size_t kSharedBytes =
      kItems * kLanes * kMostWidth * sizeof(float);
  std::int64_t samples;
  bool first;
  Gradient<T> all[4] = {};
  std::size_t count = 0;
  std::int32_t teams = 0;

  void add(Gradient<T> gradient) {
    gradient.first_team = teams;
    teams += (gradient.out * (gradient.in / gradient.width) + kItems - 1) / kItems;
    all[count++] = gradient;
  }
  void launch(const device::ExecutionSpace& space) const {
    device::parallel_teams("one pixel dw", space, teams, *this);
  }

  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t i) const {
    Gradient<T> own = all[0];
    for (std::size_t k = 1; k < 4; ++k)
      if (i >= all[k].first_team) own = all[k];
    const int first_item = static_cast<std::int32_t>(i - own.first_team) * kItems;
    with_width(own.width, [&]<int W>() { run<W>(team, own, first_item); });
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Team& team, const Gradient<T>& own, int first_item) const {
    auto* const parts = reinterpret_cast<float*>(team.shared());
    const int item = first_item + team.rank() % kItems;
    const int o = item / (own.in / W);
    const int c = item % (own.in / W) * W;
    float sum[W] = {};
    const std::int64_t end = o < own.out ? samples : 0;
    for (std::int64_t n = team.rank() / kItems; n < end; n += kAtOnce * kLanes) {
      float dy[kAtOnce];
      LanesIn<W, T> x[kAtOnce];
      for (int k = 0; k < kAtOnce; ++k) {
        const std::int64_t sample = n + k * kLanes < end ? n + k * kLanes : n;
        dy[k] = to_float(own.dy[sample * own.out + o]);
        if (own.x != nullptr) x[k] = LanesIn<W, T>(own.x + sample * own.in + c);
      }
      for (int k = 0; k < kAtOnce && n + k * kLanes < end; ++k)
        for (int j = 0; j < W; ++j)
          sum[j] =
              own.x == nullptr ? sum[j] + dy[k] : multiply_add(dy[k], to_float(x[k][j]), sum[j]);
    }
    for (int j = 0; j < W; ++j) parts[team.rank() * W + j] = sum[j];
    team.wait();
    const int at = first_item * W + team.rank();
    if (team.rank() >= kItems * W || at >= own.out * own.in) return;
    float all_lanes = 0.0f;
    for (int lane = 0; lane < kLanes; ++lane) all_lanes += parts[lane * kItems * W + team.rank()];
    own.total[at] = first ? all_lanes : own.total[at] + all_lanes;
  }
};

}  // namespace millrace::ops::one_pixel
