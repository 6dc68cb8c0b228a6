// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/config.hpp"

namespace millrace::train {

/// Learning rate of update number t (from 0) in a run of `total` updates. A closed form: whatever
/// was restored or skipped, the same iteration has the same rate. With T the horizon, or the run
/// where there is none, and W = warmup_iterations:
///
///   stepped         base x decay^(number of boundaries b with t > int(b x T))
///   cosine          base x (1 + cos(pi x t / T)) / 2
///   exponential     base x decay^floor(drops x t / T)
///   polynomial      (base - end) x (1 - t / T)^power + end
///   piecewise       base x factor of the piece; piece i + 1 begins behind iteration cuts[i], as
///                   TensorFlow's piecewise_constant has it
///
/// During the first W iterations these are multiplied by t / W, or are base x t / W: WarmupForm.
/// Two have a warm-up of their own:
///
///   gradual warm-up   initial + (base - initial) x t / W for t < W;
///                     base x (1 - (t - W) / (T - W)) from there
///   LARS polynomial   base x t / W for t <= W;
///                     (base - end) x (1 - max(t - W, 1) / (T - W + 1))^power + end from there
///
/// Behind an explicit horizon the rate stays what it is there.
[[nodiscard]] double learning_rate(const ScheduleConfig& schedule, std::int64_t iteration,
                                   std::int64_t total);

/// Cuts of a piecewise schedule that are given in epochs.
[[nodiscard]] std::vector<std::int64_t> cuts_at(std::span<const double> epochs,
                                                std::int64_t iterations_per_epoch);

}  // namespace millrace::train
