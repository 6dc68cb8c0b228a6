// SPDX-License-Identifier: Apache-2.0
#include "models/graph.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/error.hpp"
#include "core/random.hpp"

namespace millrace::models {
namespace {

constexpr double kPi = 3.14159265358979323846;
/// Deviation of the standard normal distribution truncated at 2 (TensorFlow's constant).
constexpr double kTruncatedDeviation = 0.87962566103423978;

struct Fans {
  double in = 1;
  double out = 1;
};

/// For kernels [out][kh][kw][in/groups] or [units][in].
Fans fans_of(const Parameter& parameter) {
  const std::vector<std::int64_t>& shape = parameter.shape;
  MILLRACE_ASSERT(shape.size() == 2 || shape.size() == 4);
  const std::int64_t taps = shape.size() == 4 ? shape[1] * shape[2] : 1;
  return {.in = static_cast<double>(taps * shape.back()),
          .out = static_cast<double>(taps * shape.front())};
}

/// Standard normal number of an element (Box and Muller 1958); `attempt` counts repeated draws.
double normal(const RandomStream& stream, std::uint64_t element, std::uint64_t attempt) {
  const RandomBlock block = stream.block(element, attempt);
  const double radius = std::sqrt(-2.0 * std::log(uniform01_double(block[0], block[1])));
  return radius * std::cos(2.0 * kPi * uniform01_double(block[2], block[3]));
}

double truncated_normal(const RandomStream& stream, std::uint64_t element) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    const double x = normal(stream, element, attempt);
    if (std::abs(x) <= 2.0) return x;
  }
}

template <class Draw>
void draw_each(std::span<float> out, const Draw& draw) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(draw(i));
}

double uniform_around_zero(const RandomStream& stream, std::uint64_t element) {
  const RandomBlock block = stream.block(element, 0);
  return 2.0 * uniform01_double(block[0], block[1]) - 1.0;
}

}  // namespace

void initialise(const Parameter& parameter, std::uint64_t seed, std::span<float> out) {
  MILLRACE_ASSERT(static_cast<std::int64_t>(out.size()) == parameter.elements());
  const RandomStream stream(seed, RandomPurpose::Initialise, hash_name(parameter.name));
  const Initialiser& init = parameter.init;
  switch (init.kind) {
    case Initialiser::Kind::Zero:
      std::fill(out.begin(), out.end(), 0.0f);
      break;
    case Initialiser::Kind::One:
      std::fill(out.begin(), out.end(), 1.0f);
      break;
    case Initialiser::Kind::VarianceScaling: {
      const Fans fans = fans_of(parameter);
      const double fan = init.fan == Initialiser::Fan::In ? fans.in : fans.out;
      const double sigma = std::sqrt(init.scale / fan) / kTruncatedDeviation;
      draw_each(out, [&](std::size_t i) { return sigma * truncated_normal(stream, i); });
      break;
    }
    case Initialiser::Kind::GlorotUniform: {
      const Fans fans = fans_of(parameter);
      const double limit = std::sqrt(6.0 / (fans.in + fans.out));
      draw_each(out, [&](std::size_t i) { return limit * uniform_around_zero(stream, i); });
      break;
    }
    case Initialiser::Kind::Normal:
      draw_each(out, [&](std::size_t i) { return init.scale * normal(stream, i, 0); });
      break;
    case Initialiser::Kind::TruncatedNormal:
      draw_each(out, [&](std::size_t i) { return init.scale * truncated_normal(stream, i); });
      break;
  }
}

}  // namespace millrace::models
