// SPDX-License-Identifier: Apache-2.0
//
// Reference implementations of all ops: simple loops over indices in double, without rounding or
// blocking. The kernels are compared with them; they are verified by finite differences
// (reference_test) and by the operator tests of ONNX. Shapes and layouts are those of src/ops:
// NHWC, kernels OHWI.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/activation_function.hpp"
#include "ops/channels.hpp"
#include "ops/linear.hpp"
#include "ops/norm.hpp"
#include "ops/softmax_loss.hpp"

namespace millrace::reference {

using Values = std::vector<double>;

[[nodiscard]] inline std::size_t to_size(std::int64_t elements) {
  return static_cast<std::size_t>(elements);
}

/// |x| of every element. Computing a sum of products from magnitudes bounds its rounding error in
/// floating point.
[[nodiscard]] inline Values magnitudes(Values x) {
  for (double& value : x) value = std::abs(value);
  return x;
}

[[nodiscard]] inline std::size_t image_index(const Shape& s, std::int64_t n, std::int64_t h,
                                             std::int64_t w, std::int64_t c) {
  return static_cast<std::size_t>(((n * s.h + h) * s.w + w) * s.c + c);
}

/// A place of a window and the pixel below it.
struct WindowPlace {
  std::int64_t n, oh, ow;  ///< the window, which makes one pixel of y
  std::int64_t r, q;       ///< in the window
  std::int64_t h, w;       ///< in the image
};

/// Calls f(place) for every place of every window, without padding.
template <class F>
void for_each_place(const ops::WindowShape& s, std::int64_t dilation_h, std::int64_t dilation_w,
                    F&& f) {
  for (std::int64_t n = 0; n < s.batch; ++n) {
    for (std::int64_t oh = 0; oh < s.out.h; ++oh) {
      for (std::int64_t ow = 0; ow < s.out.w; ++ow) {
        for (std::int64_t r = 0; r < s.kernel_h; ++r) {
          for (std::int64_t q = 0; q < s.kernel_w; ++q) {
            const std::int64_t h = oh * s.stride_h + r * dilation_h - s.pad_top;
            const std::int64_t w = ow * s.stride_w + q * dilation_w - s.pad_left;
            if (h >= 0 && h < s.in.h && w >= 0 && w < s.in.w) f(WindowPlace{n, oh, ow, r, q, h, w});
          }
        }
      }
    }
  }
}

// ---- convolution and dense ----------------------------------------------------------------------

/// Calls f(y index, x index, kernel index) for every product of a convolution. A convolution is
/// linear in x and in the kernel, so all three passes are sums over these triples.
template <class F>
void for_each_product(const ops::ConvShape& s, F&& f) {
  const ops::WindowShape& w = s.window;
  const std::int64_t ins = w.in.c / s.groups;
  const std::int64_t outs = w.out.c / s.groups;
  for_each_place(w, s.dilation_h, s.dilation_w, [&](const WindowPlace& p) {
    for (std::int64_t o = 0; o < w.out.c; ++o) {
      const std::int64_t first = o / outs * ins;
      for (std::int64_t i = 0; i < ins; ++i) {
        f(image_index(w.out, p.n, p.oh, p.ow, o), image_index(w.in, p.n, p.h, p.w, first + i),
          image_index({w.kernel_h, w.kernel_w, ins}, o, p.r, p.q, i));
      }
    }
  });
}

/// y = x * kernel + bias; an empty bias means no bias.
[[nodiscard]] inline Values conv_forward(const ops::ConvShape& s, const Values& x,
                                         const Values& kernel, const Values& bias) {
  Values y(to_size(s.window.out_elements()));
  const auto channels = to_size(s.window.out.c);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = bias.empty() ? 0.0 : bias[i % channels];
  for_each_product(s,
                   [&](std::size_t i, std::size_t j, std::size_t k) { y[i] += x[j] * kernel[k]; });
  return y;
}

[[nodiscard]] inline Values conv_backward_input(const ops::ConvShape& s, const Values& dy,
                                                const Values& kernel) {
  Values dx(to_size(s.window.in_elements()));
  for_each_product(
      s, [&](std::size_t i, std::size_t j, std::size_t k) { dx[j] += dy[i] * kernel[k]; });
  return dx;
}

[[nodiscard]] inline Values conv_backward_weight(const ops::ConvShape& s, const Values& dy,
                                                 const Values& x) {
  Values dkernel(to_size(s.kernel_elements()));
  for_each_product(
      s, [&](std::size_t i, std::size_t j, std::size_t k) { dkernel[k] += dy[i] * x[j]; });
  return dkernel;
}

[[nodiscard]] inline Values bias_gradient(const Values& dy, std::int64_t channels) {
  Values dbias(to_size(channels));
  for (std::size_t i = 0; i < dy.size(); ++i) dbias[i % dbias.size()] += dy[i];
  return dbias;
}

// ---- elementwise --------------------------------------------------------------------------------

/// Those that other kernels fuse.
inline constexpr Activation kActivations[] = {Activation::None, Activation::Relu, Activation::Swish,
                                              Activation::Sigmoid};

struct Function {
  Activation fn = Activation::None;
  ActivationNumbers n = {};
};
/// All functions. 16 bits represent the bounds of the first Clip, but not those of the second.
inline constexpr Function kFunctions[] = {{Activation::None},
                                          {Activation::Relu},
                                          {Activation::Swish},
                                          {Activation::Sigmoid},
                                          {Activation::Clip, {0.0f, 6.0f}},
                                          {Activation::Clip, {-0.3f, 0.7f}},
                                          {Activation::LeakyRelu, {0.1f}},
                                          {Activation::HardSigmoid, {0.2f, 0.5f}},
                                          {Activation::HardSigmoid, {1.0f / 6.0f, 0.5f}},
                                          {Activation::HardSwish}};

[[nodiscard]] inline double apply_fn(Activation fn, double z, ActivationNumbers n = {}) {
  const auto a = static_cast<double>(n.a);
  const auto b = static_cast<double>(n.b);
  switch (fn) {
    case Activation::Relu:
      return std::max(z, 0.0);
    case Activation::Swish:
      return z / (1.0 + std::exp(-z));
    case Activation::Sigmoid:
      return 1.0 / (1.0 + std::exp(-z));
    case Activation::Clip:
      return std::clamp(z, a, b);
    case Activation::LeakyRelu:
      return std::max(z, 0.0) + a * std::min(z, 0.0);
    case Activation::HardSigmoid:
      return std::clamp(a * z + b, 0.0, 1.0);
    case Activation::HardSwish:
      return z * std::clamp(z + 3.0, 0.0, 6.0) / 6.0;
    case Activation::None:
      break;
  }
  return z;
}

[[nodiscard]] inline double fn_derivative(Activation fn, double z, ActivationNumbers n = {}) {
  const double s = 1.0 / (1.0 + std::exp(-z));
  const auto a = static_cast<double>(n.a);
  const auto b = static_cast<double>(n.b);
  switch (fn) {
    case Activation::Relu:
      return z > 0.0 ? 1.0 : 0.0;
    case Activation::Swish:
      return s + z * s * (1.0 - s);
    case Activation::Sigmoid:
      return s * (1.0 - s);
    case Activation::Clip:
      return z > a && z < b ? 1.0 : 0.0;
    case Activation::LeakyRelu:
      return z > 0.0 ? 1.0 : a;
    case Activation::HardSigmoid:
      return a * z + b > 0.0 && a * z + b < 1.0 ? a : 0.0;
    case Activation::HardSwish:
      return z <= -3.0 ? 0.0 : z < 3.0 ? z / 3.0 + 0.5 : 1.0;
    case Activation::None:
      break;
  }
  return 1.0;
}

// ---- norms --------------------------------------------------------------------------------------

/// The set of each element: its channel for batch norm, (sample, group) for group norm.
class NormSets {
 public:
  explicit NormSets(const ops::NormShape& shape) : shape_(shape) {}
  [[nodiscard]] std::size_t count() const { return to_size(shape_.instances() * shape_.groups); }
  [[nodiscard]] std::size_t channel(std::size_t element) const {
    return element % to_size(shape_.channels);
  }
  [[nodiscard]] std::size_t instance(std::size_t element) const {
    return element / to_size(shape_.rows * shape_.channels);
  }
  [[nodiscard]] std::size_t set(std::size_t element) const {
    const auto groups = to_size(shape_.groups);
    const std::size_t members = to_size(shape_.channels) / groups;
    const std::size_t c = channel(element);
    const std::size_t group = shape_.strided_groups ? c % groups : c / members;
    return instance(element) * groups + group;
  }

 private:
  ops::NormShape shape_;
};

/// The mean over every set of a function of the element's index.
template <class F>
[[nodiscard]] Values set_means(const NormSets& sets, std::size_t elements, F&& f) {
  Values sums(sets.count());
  Values counts(sets.count());
  for (std::size_t i = 0; i < elements; ++i) {
    sums[sets.set(i)] += f(i);
    counts[sets.set(i)] += 1.0;
  }
  for (std::size_t s = 0; s < sums.size(); ++s) sums[s] /= counts[s];
  return sums;
}

/// Per set.
struct Moments {
  Values mean;
  Values variance;  ///< biased
};
[[nodiscard]] inline Moments norm_moments(const ops::NormShape& shape, const Values& x) {
  const NormSets sets(shape);
  Moments m;
  m.mean = set_means(sets, x.size(), [&](std::size_t i) { return x[i]; });
  m.variance = set_means(sets, x.size(), [&](std::size_t i) {
    return (x[i] - m.mean[sets.set(i)]) * (x[i] - m.mean[sets.set(i)]);
  });
  return m;
}

/// (x - mean) / sqrt(variance + epsilon), with the moments of each set.
[[nodiscard]] inline Values normalise(const ops::NormShape& shape, const Values& x,
                                      double epsilon) {
  const NormSets sets(shape);
  const Moments m = norm_moments(shape, x);
  Values xhat(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t s = sets.set(i);
    xhat[i] = (x[i] - m.mean[s]) / std::sqrt(m.variance[s] + epsilon);
  }
  return xhat;
}

/// gamma xhat + beta.
[[nodiscard]] inline Values norm_forward(const ops::NormShape& shape, const Values& x,
                                         const Values& gamma, const Values& beta, double epsilon) {
  const NormSets sets(shape);
  Values z = normalise(shape, x, epsilon);
  for (std::size_t i = 0; i < z.size(); ++i) {
    z[i] = gamma[sets.channel(i)] * z[i] + beta[sets.channel(i)];
  }
  return z;
}

struct NormGradients {
  Values dx, dgamma, dbeta;
};
[[nodiscard]] inline NormGradients norm_backward(const ops::NormShape& shape, const Values& dz,
                                                 const Values& x, const Values& gamma,
                                                 double epsilon) {
  const NormSets sets(shape);
  const Values xhat = normalise(shape, x, epsilon);
  const Moments m = norm_moments(shape, x);
  NormGradients g{Values(x.size()), Values(gamma.size()), Values(gamma.size())};
  for (std::size_t i = 0; i < x.size(); ++i) {
    g.dbeta[sets.channel(i)] += dz[i];
    g.dgamma[sets.channel(i)] += dz[i] * xhat[i];
  }
  const auto dxhat = [&](std::size_t i) { return dz[i] * gamma[sets.channel(i)]; };
  const Values mean = set_means(sets, x.size(), dxhat);
  const Values slope = set_means(sets, x.size(), [&](std::size_t i) { return dxhat(i) * xhat[i]; });
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t s = sets.set(i);
    g.dx[i] = (dxhat(i) - mean[s] - xhat[i] * slope[s]) / std::sqrt(m.variance[s] + epsilon);
  }
  return g;
}

// ---- pools --------------------------------------------------------------------------------------

/// Calls f(y index, x index, position in the window) for every pixel in every window, without
/// padding.
template <class F>
void for_each_in_window(const ops::WindowShape& s, F&& f) {
  for_each_place(s, 1, 1, [&](const WindowPlace& p) {
    for (std::int64_t c = 0; c < s.out.c; ++c)
      f(image_index(s.out, p.n, p.oh, p.ow, c), image_index(s.in, p.n, p.h, p.w, c),
        p.r * s.kernel_w + p.q);
  });
}

struct MaxPool {
  Values y;
  std::vector<std::int64_t> winner;  ///< position in the window
  std::vector<std::size_t> source;   ///< index into x
};
[[nodiscard]] inline MaxPool max_pool(const ops::WindowShape& s, const Values& x) {
  const auto n = to_size(s.out_elements());
  MaxPool p{Values(n, -std::numeric_limits<double>::infinity()), std::vector<std::int64_t>(n),
            std::vector<std::size_t>(n)};
  for_each_in_window(s, [&](std::size_t out, std::size_t in, std::int64_t place) {
    if (!(x[in] > p.y[out])) return;
    p.y[out] = x[in];
    p.winner[out] = place;
    p.source[out] = in;
  });
  return p;
}
[[nodiscard]] inline Values max_pool_backward(const ops::WindowShape& s, const MaxPool& p,
                                              const Values& dy) {
  Values dx(to_size(s.in_elements()));
  for (std::size_t i = 0; i < dy.size(); ++i) dx[p.source[i]] += dy[i];
  return dx;
}

/// The divisor of every average.
[[nodiscard]] inline Values window_sizes(const ops::WindowShape& s, bool count_padding) {
  const auto n = to_size(s.out_elements());
  if (count_padding) return Values(n, static_cast<double>(s.kernel_h * s.kernel_w));
  Values sizes(n);
  for_each_in_window(s, [&](std::size_t out, std::size_t, std::int64_t) { sizes[out] += 1.0; });
  return sizes;
}
[[nodiscard]] inline Values average_pool(const ops::WindowShape& s, const Values& x,
                                         bool count_padding) {
  const Values sizes = window_sizes(s, count_padding);
  Values y(sizes.size());
  for_each_in_window(
      s, [&](std::size_t out, std::size_t in, std::int64_t) { y[out] += x[in] / sizes[out]; });
  return y;
}
[[nodiscard]] inline Values average_pool_backward(const ops::WindowShape& s, const Values& dy,
                                                  bool count_padding) {
  const Values sizes = window_sizes(s, count_padding);
  Values dx(to_size(s.in_elements()));
  for_each_in_window(
      s, [&](std::size_t out, std::size_t in, std::int64_t) { dx[in] += dy[out] / sizes[out]; });
  return dx;
}

/// Calls f(y index, x index) for every element that shortcut A copies.
template <class F>
void for_each_shortcut(const ops::WindowShape& s, std::int64_t before, F&& f) {
  for (std::int64_t n = 0; n < s.batch; ++n) {
    for (std::int64_t h = 0; h < s.out.h; ++h) {
      for (std::int64_t w = 0; w < s.out.w; ++w) {
        for (std::int64_t c = 0; c < s.in.c; ++c) {
          f(image_index(s.out, n, h, w, before + c),
            image_index(s.in, n, h * s.stride_h, w * s.stride_w, c));
        }
      }
    }
  }
}

// ---- channels -----------------------------------------------------------------------------------

/// Index of the scale of an element of x.
[[nodiscard]] inline std::size_t scale_index(const ops::ScaleShape& s, std::size_t element) {
  const std::size_t sample = element / to_size(s.pixels * s.channels);
  return sample * to_size(s.channels) + element % to_size(s.channels);
}
[[nodiscard]] inline Values scale_channels(const ops::ScaleShape& s, const Values& x,
                                           const Values& scale) {
  Values y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale[scale_index(s, i)];
  return y;
}
struct ScaleGradients {
  Values dx, dscale;
};
[[nodiscard]] inline ScaleGradients scale_channels_backward(const ops::ScaleShape& s,
                                                            const Values& dy, const Values& x,
                                                            const Values& scale) {
  ScaleGradients g{Values(x.size()), Values(scale.size())};
  for (std::size_t i = 0; i < x.size(); ++i) {
    g.dx[i] = dy[i] * scale[scale_index(s, i)];
    g.dscale[scale_index(s, i)] += dy[i] * x[i];
  }
  return g;
}

// ---- loss and optimizer -------------------------------------------------------------------------

[[nodiscard]] inline Values log_softmax(const Values& logits, std::size_t classes) {
  Values log_p(logits.size());
  for (std::size_t row = 0; row < logits.size(); row += classes) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row);
    const double top = *std::max_element(begin, begin + static_cast<std::ptrdiff_t>(classes));
    double total = 0.0;
    for (std::size_t k = row; k < row + classes; ++k) total += std::exp(logits[k] - top);
    for (std::size_t k = row; k < row + classes; ++k) log_p[k] = logits[k] - top - std::log(total);
  }
  return log_p;
}

/// The smoothed target of class k for a sample with label `label`.
[[nodiscard]] inline double target(const ops::SoftmaxLossShape& s, std::size_t k,
                                   std::int64_t label) {
  const auto smoothing = static_cast<double>(s.smoothing);
  const auto classes = static_cast<double>(s.classes);
  const bool own = static_cast<std::int64_t>(k) == label;
  if (s.form == SmoothingForm::AllClasses)
    return (own ? 1.0 - smoothing : 0.0) + smoothing / classes;
  return own ? 1.0 - smoothing : smoothing / (classes - 1.0);
}

/// Targets of all samples, [sample][class]: smoothed and weighted, then mixed in the order of the
/// images. Empty `mixing`: not mixed; `weights`: all are 1. Targets of padding are 0.
[[nodiscard]] inline Values targets(const ops::SoftmaxLossShape& s,
                                    const std::vector<std::int64_t>& labels,
                                    const std::vector<ImageMixing>& mixing = {},
                                    const std::vector<float>& weights = {}) {
  const auto classes = to_size(s.classes);
  Values plain(labels.size() * classes);
  for (std::size_t i = 0; i < plain.size(); ++i)
    if (labels[i / classes] >= 0)
      plain[i] = target(s, i % classes, labels[i / classes]) *
                 static_cast<double>(weights.empty() ? 1.0f : weights[i / classes]);
  if (mixing.empty()) return plain;
  const auto mix = [&](const Values& from, auto&& other, auto&& own_share) {
    Values to(from.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t n = i / classes;
      const double share = own_share(mixing[n]);
      to[i] =
          share * from[i] + (1.0 - share) * from[to_size(other(mixing[n])) * classes + i % classes];
    }
    return to;
  };
  const Values added = mix(
      plain, [](const ImageMixing& m) { return m.partner; },
      [](const ImageMixing& m) { return static_cast<double>(m.share); });
  return mix(
      added, [](const ImageMixing& m) { return m.donor; },
      [](const ImageMixing& m) { return 1.0 - static_cast<double>(m.area); });
}

/// Loss of every sample; labels below 0 mark padding.
[[nodiscard]] inline Values softmax_loss(const ops::SoftmaxLossShape& s, const Values& logits,
                                         const std::vector<std::int64_t>& labels,
                                         const std::vector<ImageMixing>& mixing = {},
                                         const std::vector<float>& weights = {}) {
  const auto classes = to_size(s.classes);
  const Values wanted = targets(s, labels, mixing, weights);
  const Values log_p = log_softmax(logits, classes);
  Values loss(labels.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (labels[i / classes] >= 0) loss[i / classes] -= wanted[i] * log_p[i];
  return loss;
}

[[nodiscard]] inline Values softmax_loss_backward(const ops::SoftmaxLossShape& s,
                                                  const Values& logits,
                                                  const std::vector<std::int64_t>& labels,
                                                  double scale,
                                                  const std::vector<ImageMixing>& mixing = {},
                                                  const std::vector<float>& weights = {}) {
  const auto classes = to_size(s.classes);
  const Values wanted = targets(s, labels, mixing, weights);
  Values gradient = log_softmax(logits, classes);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const auto row = wanted.begin() + static_cast<std::ptrdiff_t>(i - i % classes);
    const double total = std::accumulate(row, row + s.classes, 0.0);
    gradient[i] = (total * std::exp(gradient[i]) - wanted[i]) * scale;
  }
  return gradient;
}

}  // namespace millrace::reference
