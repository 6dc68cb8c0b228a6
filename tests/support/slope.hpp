// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "tests/support/device_floats.hpp"

namespace millrace::test {

[[nodiscard]] inline double length_of(std::span<const float> values) {
  double squares = 0.0;
  for (const float x : values) squares += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(squares);
}

/// By how much the slope of the loss, measured by moving the weights `w` along their gradient `g`,
/// differs from the length of the gradient: the smallest error of several `steps`, as a step must
/// be small enough for the kinks of ReLU and large enough for float32. Restores the weights, which
/// are in device memory.
template <class Loss>
[[nodiscard]] double slope_error(float* w, const std::vector<float>& g,
                                 const std::vector<double>& steps, Loss&& loss) {
  const double length = length_of(g);
  const std::vector<float> start = read_floats(w, std::ssize(g));
  const auto loss_at = [&](double t) {
    std::vector<float> moved = start;
    for (std::size_t i = 0; i < g.size(); ++i) moved[i] += static_cast<float>(t / length) * g[i];
    write_floats(w, moved);
    return static_cast<double>(loss());
  };
  double error = 1e9;
  for (const double step : steps)
    error = std::min(error, std::abs((loss_at(step) - loss_at(-step)) / (2.0 * step) - length));
  write_floats(w, start);
  return error;
}

}  // namespace millrace::test
