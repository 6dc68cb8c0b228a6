// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "train/config.hpp"

namespace millrace::train {

/// Learning rate of update number `iteration` (from 0) in a run of `total` updates. A closed form:
/// whatever was restored or skipped, the same iteration has the same rate.
///
///   stepped   base x decay^(number of boundaries b with iteration > int(b x total))
///   cosine    base x (1 + cos(pi x iteration / total)) / 2
///
/// During the first W = warmup_iterations both are multiplied by iteration / W.
[[nodiscard]] double learning_rate(const ScheduleConfig& schedule, std::int64_t iteration,
                                   std::int64_t total);

}  // namespace millrace::train
