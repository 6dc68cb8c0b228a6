// SPDX-License-Identifier: Apache-2.0
//
// What each training image is mixed with, as a pure function of the seed and the sample's position
// in the run. So the stages that read images and labels agree without communication, and a restored
// run repeats it.
//
//   mixup    image n + image p by shares l and 1 - l drawn from Beta(alpha, alpha)
//            Reversed: p = B-1-n, l as drawn (NVIDIA);  Rolled: p = n-1, max(l, 1-l) (IPU trainer)
//   cutmix   a box of image n-2 (n-1 in a micro-batch of two), its sides sqrt(1 - lambda) of the
//            image's, its center anywhere, clipped at the edges; lambda is fixed (IPU trainer)
//
// Indices wrap around within the micro-batch. With both, mixup is applied first and boxes are cut
// from the results, so a label may have four sources; ImageMixing has the formulas.
#pragma once

#include <cstdint>

#include "core/image_records.hpp"
#include "core/random.hpp"
#include "core/shape.hpp"
#include "run/image_options.hpp"

namespace millrace::io {

using run::check_mixing;
using run::MixingConfig;
using run::MixingForm;

/// Number from Beta(alpha, alpha), alpha > 0, keyed by `position`.
[[nodiscard]] double draw_beta(const RandomStream& stream, std::uint64_t position, double alpha);

/// Sources of sample `n` of a micro-batch of `batch` images; `position` is the sample's position in
/// the run.
[[nodiscard]] ImageMixing draw_mixing(const MixingConfig& config, std::uint64_t seed,
                                      std::int64_t position, std::int64_t n, std::int64_t batch,
                                      const Shape& image);

}  // namespace millrace::io
