// SPDX-License-Identifier: Apache-2.0
//
// Outputs of norms that programs which save traffic do not store. Whoever would read such an output
// y computes it from the norm's input x. One is read by a maximum over windows. Another is read
// twice, by squeeze and excitation (Hu et al. 2018): for the means over the pixels of each sample,
// and to multiply it by a factor for each sample and channel. There the two parts of its gradient
// are not stored either, but computed from dz, the gradient of the product:
//
//   y  = fn(a x + b)                     rounded as norm_apply rounds it
//   dy = dz factor + dmean / pixels      each term and their sum rounded, as separate kernels do
#pragma once

#include <cstdint>

#include "ops/activation_function.hpp"
#include "ops/lanes.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// a and b of z = a x + b for a channel, in the one formula of all kernels.
KOKKOS_INLINE_FUNCTION void set_affine(float& a, float& b, float gamma, float beta, float mean,
                                       float inverse) {
  a = gamma * inverse;
  b = beta - mean * a;
}

/// The norm and activation whose output a kernel computes from x.
struct InlinedNorm {
  const float* statistics = nullptr;  ///< null: there is none, x is what the kernel works on
  const float* gamma = nullptr;
  const float* beta = nullptr;
  std::int64_t instances = 1;  ///< of the statistics: 1, or one for each sample
  std::int64_t channels = 1;
  Activation fn = Activation::None;

  [[nodiscard]] bool is_aligned() const { return are_aligned(statistics, gamma, beta); }
};

// The values of W neighboring channels of a sample that a kernel works on, from those it reads.

struct AsStored {
  static constexpr bool kInlined = false;
  template <int W, class T>
  struct Values {
    KOKKOS_INLINE_FUNCTION Values(const InlinedNorm&, std::int64_t, std::int64_t) {}
    [[nodiscard]] KOKKOS_INLINE_FUNCTION float of(int, float x) const { return x; }
    [[nodiscard]] KOKKOS_INLINE_FUNCTION float before_fn(int, float x) const { return x; }
  };
};

template <Activation kFn>
struct Normalized {
  static constexpr bool kInlined = true;
  template <int W, class T>
  struct Values {
    float a[W];
    float b[W];
    KOKKOS_INLINE_FUNCTION Values(const InlinedNorm& norm, std::int64_t sample, std::int64_t c) {
      const float* const mean = norm.statistics + (norm.instances > 1 ? sample * norm.channels : 0);
      const float* const inverse = mean + norm.instances * norm.channels;
      const LanesIn<W, float> gammas(norm.gamma + c);
      const LanesIn<W, float> betas(norm.beta + c);
      const LanesIn<W, float> means(mean + c);
      const LanesIn<W, float> inverses(inverse + c);
      for (int j = 0; j < W; ++j)
        set_affine(a[j], b[j], gammas[j], betas[j], means[j], inverses[j]);
    }
    [[nodiscard]] KOKKOS_INLINE_FUNCTION float before_fn(int j, float x) const {
      return rounded_as<T>(multiply_add(a[j], x, b[j]));
    }
    [[nodiscard]] KOKKOS_INLINE_FUNCTION float of(int j, float x) const {
      const float y = Formula<kFn>::value(before_fn(j, x));
      return kExact<kFn> ? y : rounded_as<T>(y);
    }
  };
};

/// Calls run.template operator()<AsStored or Normalized<fn>>(). Programs for cores inline nothing.
template <class Run>
void dispatch_input(const InlinedNorm& norm, const Run& run) {
  if (norm.statistics == nullptr) return run.template operator()<AsStored>();
  MILLRACE_ASSERT(!device::kOnCores);
  if constexpr (!device::kOnCores)
    dispatch_fn(norm.fn, [&]<Activation kFn>() { run.template operator()<Normalized<kFn>>(); });
}

/// What a norm's kernels need beside its own operands.
template <class T>
struct Excitation {
  const T* factor = nullptr;  ///< [sample][channel]; null: there is no excitation
  const T* dmean = nullptr;   ///< the same, in the backward pass
  std::int64_t pixels = 1;    ///< of a sample
  float share = 1.0f / static_cast<float>(pixels);

  /// Whether all lanes of a strip belong to one pixel.
  [[nodiscard]] static bool fits(const Tiling& t) {
    return !device::kOnCores && t.channels % kLanes == 0;
  }
};

/// Calls part(strip, sample) for the rows of a strip that belong to one sample each, in order; once
/// if they are not told `kApart`.
template <bool kApart, class Part>
KOKKOS_INLINE_FUNCTION void for_samples(const Tiling& t, const Strip& s, std::int64_t pixels,
                                        const Part& part) {
  if constexpr (!kApart) return part(s, 0);
  Strip own = s;
  std::int64_t pixel = (s.instance * t.tile_rows + s.chunk * t.chunk_tile_rows) * t.tile +
                       divide(s.first_lane, t.channels).quotient;
  for (std::int64_t left = s.rows; left > 0; left -= own.rows) {
    const Quotient at = divide(pixel, pixels);
    const std::int64_t of_sample = divide(pixels - at.remainder + t.tile - 1, t.tile).quotient;
    own.rows = left < of_sample ? left : of_sample;
    part(own, at.quotient);
    own.offset += own.rows * t.width;
    pixel += own.rows * t.tile;
  }
}

}  // namespace millrace::ops
