// SPDX-License-Identifier: Apache-2.0
#include "io/mixing.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace millrace::io {
namespace {

constexpr std::uint64_t kShareStream = 0;
constexpr std::uint64_t kBoxStream = 1;

/// Independent counters per position: which of the two gamma numbers, and which block of it.
std::uint64_t counter(std::uint64_t gamma, std::uint64_t block) { return (gamma << 32) | block; }
constexpr std::uint64_t kBoost = 0xffffffff;  ///< the block after all attempts

/// Logarithm of a number from Gamma(shape, 1): Marsaglia and Tsang, "A simple method for generating
/// gamma variables", ACM TOMS 2000. Shapes below 1 use G(a) = G(a + 1) U^(1/a), whose logarithm
/// stays finite when the number itself underflows to zero.
double log_gamma_number(const RandomStream& stream, std::uint64_t position, std::uint64_t gamma,
                        double shape) {
  const double d = (shape < 1.0 ? shape + 1.0 : shape) - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (std::uint64_t attempt = 0;; ++attempt) {
    const RandomBlock a = stream.block(counter(gamma, 2 * attempt), position);
    const RandomBlock b = stream.block(counter(gamma, 2 * attempt + 1), position);
    const double radius = std::sqrt(-2.0 * std::log(uniform01_double(a[0], a[1])));
    const double x = radius * std::cos(2.0 * std::numbers::pi * uniform01_double(a[2], a[3]));
    const double root = 1.0 + c * x;
    if (root <= 0.0) continue;
    const double log_v = 3.0 * std::log(root);
    const double v = root * root * root;
    if (std::log(uniform01_double(b[0], b[1])) >= 0.5 * x * x + d - d * v + d * log_v) continue;
    const double log_number = std::log(d) + log_v;
    if (shape >= 1.0) return log_number;
    const RandomBlock boost = stream.block(counter(gamma, kBoost), position);
    return log_number + std::log(uniform01_double(boost[0], boost[1])) / shape;
  }
}

/// Index n - by, wrapped around.
std::int32_t rolled(std::int64_t n, std::int64_t by, std::int64_t batch) {
  return static_cast<std::int32_t>((n + batch - by % batch) % batch);
}

/// [center - side / 2, center + side / 2), clipped to [0, extent).
struct Span {
  std::int32_t begin, end;
};
Span clipped(std::uint32_t centre, double fraction, std::int64_t extent) {
  const auto side = static_cast<std::int64_t>(std::lround(fraction * static_cast<double>(extent)));
  const std::int64_t begin = static_cast<std::int64_t>(centre) - side / 2;
  return {static_cast<std::int32_t>(std::max<std::int64_t>(begin, 0)),
          static_cast<std::int32_t>(std::min(begin + side, extent))};
}

/// An empty box becomes no box.
PixelBox draw_box(double lambda, std::uint64_t seed, std::uint64_t position, const Shape& image) {
  const RandomBlock random =
      RandomStream(seed, RandomPurpose::Mixing, kBoxStream).block(0, position);
  const double fraction = std::sqrt(1.0 - lambda);
  const Span rows =
      clipped(uniform_below(random[0], static_cast<std::uint32_t>(image.h)), fraction, image.h);
  const Span columns =
      clipped(uniform_below(random[1], static_cast<std::uint32_t>(image.w)), fraction, image.w);
  if (rows.begin >= rows.end || columns.begin >= columns.end) return {};
  return {.top = rows.begin, .left = columns.begin, .bottom = rows.end, .right = columns.end};
}

}  // namespace

double draw_beta(const RandomStream& stream, std::uint64_t position, double alpha) {
  const double a = log_gamma_number(stream, position, 0, alpha);
  const double b = log_gamma_number(stream, position, 1, alpha);
  return 1.0 / (1.0 + std::exp(b - a));
}

ImageMixing draw_mixing(const MixingConfig& config, std::uint64_t seed, std::int64_t position,
                        std::int64_t n, std::int64_t batch, const Shape& image) {
  MILLRACE_ASSERT(n >= 0 && n < batch && position >= 0);
  const auto at = static_cast<std::uint64_t>(position);
  ImageMixing mixing;
  mixing.partner = static_cast<std::int32_t>(n);
  mixing.donor = static_cast<std::int32_t>(n);
  if (config.mixup_alpha > 0.0) {
    const bool reversed = config.form == MixingForm::Reversed;
    const RandomStream stream(seed, RandomPurpose::Mixing, kShareStream);
    const double share = draw_beta(stream, at, config.mixup_alpha);
    mixing.share = static_cast<float>(reversed ? share : std::max(share, 1.0 - share));
    mixing.partner = reversed ? static_cast<std::int32_t>(batch - 1 - n) : rolled(n, 1, batch);
  }
  if (config.cutmix_lambda < 1.0) {
    mixing.donor = rolled(n, batch == 2 ? 1 : 2, batch);
    mixing.box = draw_box(config.cutmix_lambda, seed, at, image);
    mixing.area = static_cast<float>(static_cast<double>(mixing.box.pixels()) /
                                     static_cast<double>(image.pixels()));
  }
  return mixing;
}

}  // namespace millrace::io
