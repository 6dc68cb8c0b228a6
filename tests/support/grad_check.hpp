// SPDX-License-Identifier: Apache-2.0
//
// Gradients by central differences in double. They verify the reference ops, which in turn verify
// the kernels.
#pragma once

#include "tests/support/test.hpp"

namespace millrace::reference {

/// d f / d x_i for every i, where f maps a tensor to a number. The error is about step^2 f''' plus
/// 1e-16 |f| / step; the first term vanishes if f is linear or quadratic.
template <class F>
[[nodiscard]] std::vector<double> numeric_gradient(std::vector<double> x, F&& f,
                                                   double step = 1e-5) {
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double here = x[i];
    x[i] = here + step;
    const double above = f(x);
    x[i] = here - step;
    const double below = f(x);
    x[i] = here;
    gradient[i] = (above - below) / (2.0 * step);
  }
  return gradient;
}

/// sum_i a_i b_i. The gradient of the scalar sum(dy * f(x)) with respect to f's output is dy.
[[nodiscard]] inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Whether both agree to `tolerance` times the largest component.
[[nodiscard]] inline testing::AssertionResult same_gradient(const std::vector<double>& analytic,
                                                            const std::vector<double>& numeric,
                                                            double tolerance = 1e-7) {
  if (analytic.size() != numeric.size()) {
    return testing::AssertionFailure()
           << analytic.size() << " and " << numeric.size() << " elements";
  }
  double scale = 0.0;
  for (const double value : numeric) scale = std::max(scale, std::abs(value));
  if (!(scale > 0.0))
    return testing::AssertionFailure() << "the gradient is zero: the test proves nothing";
  for (std::size_t i = 0; i < numeric.size(); ++i) {
    if (std::abs(analytic[i] - numeric[i]) <= tolerance * scale) continue;
    return testing::AssertionFailure() << "element " << i << ": " << analytic[i] << " by formula, "
                                       << numeric[i] << " by differences";
  }
  return testing::AssertionSuccess();
}

}  // namespace millrace::reference
