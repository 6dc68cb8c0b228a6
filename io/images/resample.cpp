// SPDX-License-Identifier: Apache-2.0
#include "io/images/resample.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "core/error.hpp"
#include "core/instruction_level.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kChannels = 3;
/// A pixel is computed in four lanes, and the next pixel overwrites the fourth, so rows have one
/// extra value.
constexpr std::size_t kLanes = 4;
constexpr std::size_t kSpare = kLanes - kChannels;
/// Steps of TensorFlow's table of the cubic.
constexpr double kCubicSteps = 1024;

// ---- curves -------------------------------------------------------------------------------------

/// Properties of a filter; see the header.
struct Curve {
  bool legacy = false;
  bool cubic = false;
  bool antialiased = false;
};

Curve curve_of(Filter filter) {
  switch (filter) {
    case Filter::BilinearLegacy:
      break;
    case Filter::Bilinear:
      return {};
    case Filter::BicubicLegacy:
      return {.legacy = true, .cubic = true};
    case Filter::Bicubic:
      return {.cubic = true};
    case Filter::BilinearAntialiased:
      return {.antialiased = true};
    case Filter::BicubicAntialiased:
      return {.cubic = true, .antialiased = true};
  }
  return {.legacy = true};
}

double triangle(double distance) { return std::max(1.0 - std::abs(distance), 0.0); }

/// Keys' cubic convolution.
double keys(double distance, double a) {
  const double d = std::abs(distance);
  if (d < 1.0) return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0;
  if (d < 2.0) return (((d - 5.0) * d + 8.0) * d - 4.0) * a;
  return 0.0;
}

double height_of(const Curve& curve, double distance) {
  if (!curve.cubic) return triangle(distance);
  return keys(distance, curve.legacy ? -0.75 : -0.5);
}

// ---- weights of one axis ------------------------------------------------------------------------

/// `in` pixels of the box, scaled to `out` pixels; `count` of them from `offset` on are needed.
struct Axis {
  std::int32_t in = 0;
  std::int32_t out = 0;
  std::int32_t offset = 0;
  std::int32_t count = 0;
};

/// Weights of consecutive pixels from `first` on.
struct Taps {
  std::int32_t first = 0;
  std::vector<double> weight;
};

void normalise(std::vector<double>& weight) {
  double sum = 0.0;
  for (const double w : weight) sum += w;
  for (double& w : weight) w /= sum;
}

/// The two or four pixels around the position of result `x`.
void interpolating_taps(const Curve& curve, const Axis& axis, std::int64_t x, Taps& taps) {
  // The position as a fraction, so that its integer part is exact.
  const std::int64_t above = curve.legacy ? x * axis.in : (2 * x + 1) * axis.in - axis.out;
  const std::int64_t below = curve.legacy ? axis.out : 2 * std::int64_t{axis.out};
  const std::int64_t whole = above >= 0 ? above / below : -1;
  double part = static_cast<double>(above - whole * below) / static_cast<double>(below);
  if (curve.legacy && curve.cubic) part = std::nearbyint(part * kCubicSteps) / kCubicSteps;
  const std::int64_t from = whole - (curve.cubic ? 1 : 0);
  const std::int64_t to = whole + (curve.cubic ? 2 : 1);
  const std::int64_t last = axis.in - 1;
  const std::int64_t first = std::clamp<std::int64_t>(from, 0, last);
  taps.first = static_cast<std::int32_t>(first);
  taps.weight.assign(static_cast<std::size_t>(std::clamp<std::int64_t>(to, 0, last) - first + 1),
                     0.0);
  for (std::int64_t i = from; i <= to; ++i) {
    const std::int64_t nearest = std::clamp<std::int64_t>(i, 0, last);
    if (nearest == i || curve.legacy)
      taps.weight[static_cast<std::size_t>(nearest - first)] +=
          height_of(curve, static_cast<double>(i - whole) - part);
  }
  if (from < 0 || to > last) normalise(taps.weight);
}

/// Rounds to the nearest integer, halves up.
std::int32_t nearest_to(double x) { return static_cast<std::int32_t>(std::floor(x + 0.5)); }

/// Every pixel under the stretched curve, selected as in Pillow.
void averaging_taps(const Curve& curve, const Axis& axis, std::int64_t x, Taps& taps) {
  const double scale = static_cast<double>(axis.in) / axis.out;
  const double stretch = std::max(scale, 1.0);
  const double support = (curve.cubic ? 2.0 : 1.0) * stretch;
  const double centre = (static_cast<double>(x) + 0.5) * scale;
  taps.first = std::max(nearest_to(centre - support), 0);
  const std::int32_t behind = std::min(nearest_to(centre + support), axis.in);
  taps.weight.clear();
  for (std::int32_t i = taps.first; i < behind; ++i)
    taps.weight.push_back(height_of(curve, (i - centre + 0.5) * (1.0 / stretch)));
  normalise(taps.weight);
}

std::int32_t taps_of(const Curve& curve, const Axis& axis) {
  const int reach = curve.cubic ? 2 : 1;
  if (!curve.antialiased) return std::min(2 * reach, axis.in);
  const double support = reach * std::max(static_cast<double>(axis.in) / axis.out, 1.0);
  return std::min(2 * static_cast<std::int32_t>(std::ceil(support)) + 1, axis.in);
}

/// Rounds weights as Pillow does.
std::int32_t fixed_of(double weight) {
  const double scaled = weight * (1 << kFixedBits);
  return static_cast<std::int32_t>(scaled < 0.0 ? scaled - 0.5 : scaled + 0.5);
}

/// Fills `weights` for `axis`, whose box begins at pixel `begin` of the image. Mirroring the source
/// reverses the order of its pixels; mirroring the result reverses the results.
void weigh(AxisWeights& weights, Filter filter, const Axis& axis, std::int32_t begin,
           bool mirror_source, bool mirror_result) {
  const Curve curve = curve_of(filter);
  const auto count = static_cast<std::size_t>(axis.count);
  weights.taps = taps_of(curve, axis);
  const auto width = static_cast<std::size_t>(weights.taps);
  weights.first.resize(count);
  weights.weight.assign(count * width, 0.0f);
  weights.fixed.assign(curve.antialiased ? count * width : 0, 0);
  weights.begin = begin + axis.in;
  weights.end = begin;
  Taps taps;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t x = axis.offset + static_cast<std::int64_t>(i);
    if (curve.antialiased)
      averaging_taps(curve, axis, x, taps);
    else
      interpolating_taps(curve, axis, x, taps);
    // All results have the same number of taps, all within the box.
    const std::int32_t first = std::min(taps.first, axis.in - weights.taps);
    const std::size_t to = mirror_result ? count - 1 - i : i;
    weights.first[to] = begin + (mirror_source ? axis.in - first - weights.taps : first);
    weights.begin = std::min(weights.begin, weights.first[to]);
    weights.end = std::max(weights.end, weights.first[to] + weights.taps);
    for (std::size_t t = 0; t < taps.weight.size(); ++t) {
      const std::size_t place = t + static_cast<std::size_t>(taps.first - first);
      const std::size_t tap = to * width + (mirror_source ? width - 1 - place : place);
      weights.weight[tap] = static_cast<float>(taps.weight[t]);
      if (curve.antialiased) weights.fixed[tap] = fixed_of(taps.weight[t]);
    }
  }
}

// ---- rows ---------------------------------------------------------------------------------------

/// out = sum of rows of n bytes, each times its weight. Taps: 0 for any number, here and below.
template <std::size_t Taps, class Value>
void blend_rows(std::span<const std::uint8_t* const> rows, const Value* weight, std::size_t n,
                Value* out) {
  if constexpr (Taps > 0) {
    std::array<const std::uint8_t*, Taps> row{};
    std::copy_n(rows.begin(), Taps, row.begin());
    for (std::size_t i = 0; i < n; ++i) {
      Value sum = weight[0] * static_cast<Value>(row[0][i]);
      for (std::size_t t = 1; t < Taps; ++t) sum += weight[t] * static_cast<Value>(row[t][i]);
      out[i] = sum;
    }
  } else {
    blend_rows<1>(rows, weight, n, out);
    for (std::size_t t = 1; t < rows.size(); ++t)
      for (std::size_t i = 0; i < n; ++i) out[i] += weight[t] * static_cast<Value>(rows[t][i]);
  }
}

/// Computes one result row from a source row that begins at the first column used.
template <std::size_t Taps, class Value>
void blend_columns(const Value* row, const AxisWeights& columns, const Value* weight, Value* out) {
  const std::int32_t* const first = columns.first.data();
  const std::int32_t begin = columns.begin;
  const std::size_t size = columns.size();
  const std::size_t taps = Taps > 0 ? Taps : static_cast<std::size_t>(columns.taps);
  for (std::size_t x = 0; x < size; ++x) {
    const Value* const from = row + kChannels * static_cast<std::size_t>(first[x] - begin);
    Value sum[kLanes] = {};
    for (std::size_t t = 0; t < taps; ++t)
#pragma omp simd
      for (std::size_t c = 0; c < kLanes; ++c)
        sum[c] += weight[x * taps + t] * from[kChannels * t + c];
#pragma omp simd
    for (std::size_t c = 0; c < kLanes; ++c) out[kChannels * x + c] = sum[c];
  }
}

/// Clamps as integers: for floats the compiler must handle NaN, which takes twice the time.
void round_row(const float* row, std::size_t n, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i) {
    const float raised = row[i] + 0.5f;
    out[i] = static_cast<std::uint8_t>(std::clamp(static_cast<std::int32_t>(raised), 0, 255));
  }
}

void round_row(const std::int32_t* row, std::size_t n, std::uint8_t* out) {
  constexpr std::int32_t kHalf = 1 << (kFixedBits - 1);
  for (std::size_t i = 0; i < n; ++i)
    out[i] = static_cast<std::uint8_t>(std::clamp((row[i] + kHalf) >> kFixedBits, 0, 255));
}

}  // namespace

PixelBox Resampler::prepare(const ImageWindow& window, const Resampling& resampling,
                            std::int32_t width, std::int32_t height) {
  const PixelBox& box = window.box;
  const bool mirrored = window.mirror == Mirror::Yes;
  const bool before = mirrored && resampling.mirror == MirrorStage::Before;
  MILLRACE_ASSERT(width > 0 && height > 0 && box.left < box.right && box.top < box.bottom &&
                  window.left >= 0 && window.top >= 0 &&
                  window.left + width <= window.scaled_width &&
                  window.top + height <= window.scaled_height);
  filter_ = resampling.filter;
  weigh(columns_, filter_,
        {.in = box.right - box.left,
         .out = window.scaled_width,
         .offset = window.left,
         .count = width},
        box.left, before, mirrored && !before);
  weigh(rows_, filter_,
        {.in = box.bottom - box.top,
         .out = window.scaled_height,
         .offset = window.top,
         .count = height},
        box.top, false, false);
  return {.top = rows_.begin, .left = columns_.begin, .bottom = rows_.end, .right = columns_.end};
}

void Resampler::resample(const PixelView& source, std::span<std::uint8_t> image) {
  MILLRACE_ASSERT(columns_.size() > 0 &&
                  image.size() == columns_.size() * rows_.size() * kChannels &&
                  source.box.left <= columns_.begin && source.box.right >= columns_.end &&
                  source.box.top <= rows_.begin && source.box.bottom >= rows_.end);
  if (curve_of(filter_).antialiased)
    resample_fixed(source, image.data());
  else
    resample_float(source, image.data());
}

/// Rows first: a result row needs one pass over columns for any number of source rows.
void Resampler::resample_float(const PixelView& source, std::uint8_t* image) {
  const std::size_t bytes = columns_.size() * kChannels;
  const std::int32_t left = columns_.begin;
  const auto source_bytes = kChannels * static_cast<std::size_t>(columns_.end - left);
  float_row_.resize(source_bytes + kWideSpare);
  float_result_.resize(bytes + kSpare);
  const auto taps = static_cast<std::size_t>(rows_.taps);
  const bool wide = float_columns_.prepare(columns_, columns_.weight.data());
  row_pointers_.resize(taps);
  for (std::size_t y = 0; y < rows_.size(); ++y) {
    const float* const weight = rows_.weight.data() + y * taps;
    for (std::size_t t = 0; t < taps; ++t)
      row_pointers_[t] = source.at(left, rows_.first[y] + static_cast<std::int32_t>(t));
    if (wide) {
      blend_wide(row_pointers_, weight, source_bytes, float_row_.data());
      float_columns_.blend(float_row_.data(), image + y * bytes);
      continue;
    }
    at_level([&] {
      with_taps(taps, [&](auto n) {
        blend_rows<n()>(row_pointers_, weight, source_bytes, float_row_.data());
      });
      with_taps(static_cast<std::size_t>(columns_.taps), [&](auto n) {
        blend_columns<n()>(float_row_.data(), columns_, columns_.weight.data(),
                           float_result_.data());
      });
      round_row(float_result_.data(), bytes, image + y * bytes);
    });
  }
}

/// Columns first, with bytes between the two, as Pillow does.
void Resampler::resample_fixed(const PixelView& source, std::uint8_t* image) {
  const std::size_t bytes = columns_.size() * kChannels;
  const std::int32_t left = columns_.begin;
  const std::int32_t top = rows_.begin;
  const auto height = static_cast<std::size_t>(rows_.end - top);
  const auto source_bytes = kChannels * static_cast<std::size_t>(columns_.end - left);
  fixed_row_.resize(source_bytes + kWideSpare);
  fixed_result_.resize(bytes + kSpare);
  narrow_rows_.resize(height * bytes);
  const auto taps = static_cast<std::size_t>(rows_.taps);
  const bool wide = fixed_columns_.prepare(columns_, columns_.fixed.data());
  row_pointers_.resize(taps);
  for (std::size_t y = 0; y < height; ++y) {
    const std::uint8_t* const row = source.at(left, top + static_cast<std::int32_t>(y));
    std::uint8_t* const narrow = narrow_rows_.data() + y * bytes;
    if (wide) {
      widen(row, source_bytes, fixed_row_.data());
      fixed_columns_.blend(fixed_row_.data(), narrow);
      continue;
    }
    at_level([&] {
      std::copy(row, row + source_bytes, fixed_row_.begin());
      with_taps(static_cast<std::size_t>(columns_.taps), [&](auto n) {
        blend_columns<n()>(fixed_row_.data(), columns_, columns_.fixed.data(),
                           fixed_result_.data());
      });
      round_row(fixed_result_.data(), bytes, narrow);
    });
  }
  for (std::size_t y = 0; y < rows_.size(); ++y) {
    const std::int32_t* const weight = rows_.fixed.data() + y * taps;
    for (std::size_t t = 0; t < taps; ++t)
      row_pointers_[t] =
          narrow_rows_.data() + (static_cast<std::size_t>(rows_.first[y] - top) + t) * bytes;
    if (wide) {
      blend_wide(row_pointers_, weight, bytes, image + y * bytes);
      continue;
    }
    at_level([&] {
      with_taps(taps, [&](auto n) {
        blend_rows<n()>(row_pointers_, weight, bytes, fixed_result_.data());
      });
      round_row(fixed_result_.data(), bytes, image + y * bytes);
    });
  }
}

}  // namespace millrace::io
