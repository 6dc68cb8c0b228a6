// SPDX-License-Identifier: Apache-2.0
#include "train/lr_schedule.hpp"

#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace millrace::train {
namespace {

double stepped(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  // Dividing by the inverse keeps decimal decays exact: 0.5 x 0.1^3 gives 0.0005, because 1 / 0.1
  // is exactly 10 and powers of 10 are exact where those of 0.1 are not.
  const double shrink = 1.0 / schedule.decay;
  double divisor = 1.0;
  for (const double fraction : schedule.boundaries) {
    const auto boundary = static_cast<std::int64_t>(fraction * static_cast<double>(total));
    if (iteration > boundary) divisor *= shrink;
  }
  return schedule.base_rate / divisor;
}

double cosine(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  const double progress = static_cast<double>(iteration) / static_cast<double>(total);
  return schedule.base_rate * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  MILLRACE_ASSERT(iteration >= 0 && total > 0);
  const double rate = schedule.kind == ScheduleKind::Stepped ? stepped(schedule, iteration, total)
                                                             : cosine(schedule, iteration, total);
  if (iteration >= schedule.warmup_iterations) return rate;
  return rate * static_cast<double>(iteration) / static_cast<double>(schedule.warmup_iterations);
}

}  // namespace millrace::train
