// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "core/portable.hpp"

namespace millrace {

/// A number as the sum of two floats, of which the second is at most half a unit in the last place
/// of the first: about 48 bits instead of 24, with the range of a float. For sums on devices
/// without 64-bit floats. A result is within 2^-43 of the exact one, relative, if it is
/// between 2^-80 and 2^127; below, lower parts get lost. Infinities and NaNs are those of the first
/// float alone. Source: Joldes, Muller and Popescu, Tight and rigorous error bounds for basic
/// building blocks of double-word arithmetic, 2017 (algorithms 6, 12 and 17; the root is one Newton
/// step).
class alignas(8) FloatPair {
 public:
  FloatPair() = default;
  MILLRACE_FUNCTION explicit FloatPair(float x) : high_(x) {}
  /// Exact for |n| up to 2^48.
  MILLRACE_FUNCTION explicit FloatPair(std::int64_t n)
      : high_(static_cast<float>(n)),
        low_(static_cast<float>(n - static_cast<std::int64_t>(high_))) {}

  /// Rounds to nearest.
  MILLRACE_FUNCTION explicit operator float() const { return high_; }
  /// Exact. For the host.
  explicit operator double() const {
    return static_cast<double>(high_) + static_cast<double>(low_);
  }

  MILLRACE_FUNCTION friend FloatPair operator-(FloatPair a) { return {-a.high_, -a.low_}; }

  MILLRACE_FUNCTION friend FloatPair operator+(FloatPair a, FloatPair b) {
    const FloatPair highs = sum(a.high_, b.high_);
    const FloatPair lows = sum(a.low_, b.low_);
    const FloatPair both = ordered_sum(highs.high_, highs.low_ + lows.high_);
    return ordered_sum(both.high_, both.low_ + lows.low_);
  }
  MILLRACE_FUNCTION friend FloatPair operator-(FloatPair a, FloatPair b) { return a + -b; }

  MILLRACE_FUNCTION friend FloatPair operator*(FloatPair a, FloatPair b) {
    const float high = a.high_ * b.high_;
    const float error = std::fma(a.high_, b.high_, -high);
    const float crossed = std::fma(a.low_, b.high_, std::fma(a.high_, b.low_, a.low_ * b.low_));
    return ordered_sum(high, error + crossed);
  }

  MILLRACE_FUNCTION friend FloatPair operator/(FloatPair a, FloatPair b) {
    const float high = a.high_ / b.high_;
    const FloatPair left = a - b * FloatPair(high);
    return ordered_sum(high, left.high_ / b.high_);
  }

  MILLRACE_FUNCTION friend FloatPair sqrt(FloatPair a) {
    const float high = std::sqrt(a.high_);
    if (!(high > 0.0f)) return FloatPair(high);
    const FloatPair left = a - FloatPair(high) * FloatPair(high);
    return ordered_sum(high, left.high_ / (high + high));
  }

  MILLRACE_FUNCTION FloatPair& operator+=(FloatPair b) { return *this = *this + b; }
  MILLRACE_FUNCTION FloatPair& operator/=(FloatPair b) { return *this = *this / b; }

  MILLRACE_FUNCTION friend bool operator==(FloatPair a, FloatPair b) {
    return a.high_ == b.high_ && a.low_ == b.low_;
  }
  MILLRACE_FUNCTION friend bool operator>(FloatPair a, FloatPair b) {
    return a.high_ > b.high_ || (a.high_ == b.high_ && a.low_ > b.low_);
  }

 private:
  MILLRACE_FUNCTION FloatPair(float high, float low) : high_(high), low_(low) {}

  MILLRACE_FUNCTION static bool is_finite(float x) { return x - x == 0.0f; }
  /// a + b exactly.
  MILLRACE_FUNCTION static FloatPair sum(float a, float b) {
    const float total = a + b;
    const float of_b = total - a;
    const float error = (a - (total - of_b)) + (b - of_b);
    return {total, is_finite(error) ? error : 0.0f};
  }
  /// The same if |a| >= |b| or a is 0. Next to an infinite a, the error b may be a NaN and is none.
  MILLRACE_FUNCTION static FloatPair ordered_sum(float a, float b) {
    if (!is_finite(b)) return FloatPair(a);
    const float total = a + b;
    const float error = b - (total - a);
    return {total, is_finite(error) ? error : 0.0f};
  }

  float high_ = 0.0f;
  float low_ = 0.0f;
};

}  // namespace millrace
