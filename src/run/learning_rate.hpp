// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "run/run.hpp"

namespace millrace::run {

/// Learning rate of update number t (from 0) in a run of `total` updates. A closed form: the same
/// iteration has the same rate, whatever was restored or skipped. T is the horizon if there is one,
/// otherwise `total`. W = warmup_iterations.
///
///   stepped         base x decay^(number of boundaries b with t > int(b x T))
///   cosine          base x (1 + cos(pi x t / T)) / 2
///   exponential     base x decay^floor(drops x t / T)
///   polynomial      (base - end) x (1 - t / T)^power + end
///   piecewise       base x factor of the piece; piece i + 1 begins after iteration cuts[i], as in
///                   TensorFlow's piecewise_constant
///
/// During the first W iterations the rate is multiplied by t / W or replaced by base x t / W,
/// depending on WarmupForm. Two schedules have their own warm-up:
///
///   gradual warm-up   initial + (base - initial) x t / W for t < W;
///                     base x (1 - (t - W) / (T - W)) afterwards
///   LARS polynomial   base x t / W for t <= W;
///                     (base - end) x (1 - max(t - W, 1) / (T - W + 1))^power + end afterwards
///
/// After an explicit horizon the rate is constant.
[[nodiscard]] double learning_rate_at(const LearningRateConfig& config, std::int64_t iteration,
                                      std::int64_t total);

/// The cuts of a piecewise config, which are given in epochs.
[[nodiscard]] std::vector<std::int64_t> cuts_at(std::span<const double> epochs,
                                                std::int64_t iterations_per_epoch);

/// The fields that set the highest rate of a run and the length of its warm-up, `for-messages`.
[[nodiscard]] std::string_view field_of_rate(const Run& config);
[[nodiscard]] std::string_view field_of_warmup(const Run& config);

}  // namespace millrace::run
