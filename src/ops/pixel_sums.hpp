// SPDX-License-Identifier: Apache-2.0
//
// Sums over the pixels of each sample, channel by channel, by teams of accelerators. Samples are so
// few that one work item for each strip of channels would leave an accelerator idle, so the threads
// of a team share the pixels:
//
//             strip 0  strip 1 ..
//   pixel 0   lane 0   lane 0         a thread has a strip of kWidth channels and a lane, and adds
//   pixel 1   lane 1   lane 1         pixels lane, lane + lanes, .. in this order; the lanes are
//   ..                                then joined as a tree
//
// The order of the sums depends on the number of pixels only.
#pragma once

#include <cstdint>

#include "device/teams.hpp"
#include "ops/channels.hpp"
#include "ops/lanes.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// W neighboring values of up to N pixels, which are all read before the first one is used.
template <int W, int N, class T>
class PixelsIn {
 public:
  /// Of `count` pixels, from 1 to N, `step` elements apart.
  KOKKOS_INLINE_FUNCTION PixelsIn(const T* from, std::int64_t step, int count) {
    for (int n = 0; n < N; ++n) {
      const T* const pixel = from + (n < count ? n : count - 1) * step;
      values_[n] = *reinterpret_cast<const lanes::Pack<T, W>*>(pixel);
    }
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION float at(int n, int j) const {
    return to_float(values_[n].values[j]);
  }

 private:
  lanes::Pack<T, W> values_[N];
};

/// Body::Strip<W>(body, sample, c) stands for the W channels of a sample from c on. It has add(sum,
/// offset, step, count), which adds `count` <= Body::kPixels pixels, the first at `offset` of the
/// tensor and the others `step` apart, and finish(sum).
template <class Body>
class PixelSums {
 public:
  static constexpr int kWidth = 8;
  static constexpr int kThreads = device::threads_of_team(256);
  static constexpr std::size_t kSharedBytes = kThreads * kWidth * sizeof(float);

  PixelSums(const ScaleShape& shape, bool aligned, const Body& body)
      : s_(shape), body_(body), whole_(aligned && shape.channels % kWidth == 0) {
    // Each lane adds a few pixels, and the strips of a team are 64 bytes or more of 16-bit values.
    while (lanes_ < kMostLanes && shape.pixels >= 8 * lanes_) lanes_ *= 2;
    const std::int64_t width = strips() * (whole_ ? kWidth : 1);
    columns_ = (shape.channels + width - 1) / width;
  }
  [[nodiscard]] std::int64_t teams() const { return s_.samples * columns_; }

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    whole_ ? run<kWidth>(team, i) : run<1>(team, i);
  }

 private:
  static constexpr int kMostLanes = 64;
  static constexpr int kPixels = Body::kPixels;

  [[nodiscard]] KOKKOS_INLINE_FUNCTION int strips() const { return kThreads / lanes_; }

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const device::Team& team, std::int64_t i) const {
    using OwnStrip = typename Body::template Strip<W>;
    auto* const sums = reinterpret_cast<float*>(team.shared());
    const Quotient place = divide(i, columns_);
    const int strip = team.rank() % strips();
    const std::int64_t c = (place.remainder * strips() + strip) * W;
    const bool used = c < s_.channels;
    const OwnStrip own(body_, place.quotient, used ? c : 0);
    float sum[W] = {};
    if (used)
      add<W>(own, sum, place.quotient * s_.pixels * s_.channels + c, team.rank() / strips());
    float* const mine = sums + team.rank() * W;
    for (int j = 0; j < W; ++j) mine[j] = sum[j];
    for (int half = kThreads / 2; half >= strips(); half /= 2) {
      team.wait();
      if (team.rank() >= half) continue;
      for (int j = 0; j < W; ++j) mine[j] += mine[half * W + j];
    }
    if (team.rank() >= strips() || !used) return;
    for (int j = 0; j < W; ++j) sum[j] = mine[j];
    own.finish(sum);
  }

  template <int W, class OwnStrip>
  KOKKOS_INLINE_FUNCTION void add(const OwnStrip& own, float (&sum)[W], std::int64_t first,
                                  int lane) const {
    const std::int64_t step = lanes_ * s_.channels;
    std::int64_t at = first + lane * s_.channels;
    std::int64_t pixel = lane;
    // Their number is known here, so that reads need no conditions and are all on their way at
    // once.
    for (; pixel + (kPixels - 1) * lanes_ < s_.pixels; pixel += kPixels * lanes_) {
      own.add(sum, at, step, kPixels);
      at += kPixels * step;
    }
    for (; pixel < s_.pixels; pixel += lanes_) {
      own.add(sum, at, step, 1);
      at += step;
    }
  }

  ScaleShape s_;
  Body body_;
  bool whole_;
  int lanes_ = 8;
  std::int64_t columns_ = 1;
};

template <std::size_t kLabelSize, class Body>
void sum_pixels(const char (&label)[kLabelSize], const device::ExecutionSpace& space,
                const ScaleShape& shape, bool aligned, const Body& body) {
  const PixelSums<Body> sums(shape, aligned, body);
  device::parallel_teams(label, space, sums.teams(), sums);
}

}  // namespace millrace::ops
