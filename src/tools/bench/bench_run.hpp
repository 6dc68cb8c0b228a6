// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.hpp"

namespace millrace::report {

/// Times of steps, in seconds.
struct Latency {
  double average = 0.0;
  double p50 = 0.0;
  double p90 = 0.0;
  double p95 = 0.0;
  double p99 = 0.0;
  double p100 = 0.0;  ///< the longest
};
/// Of at least one step.
[[nodiscard]] Latency latency_of(const std::vector<double>& step_seconds);
/// In milliseconds: {"average": .., "p50": .., ..}.
[[nodiscard]] Json to_json(const Latency& latency);

/// What one benchmark measured: a network in a layout, and the time of each measured step.
struct BenchRun {
  std::string use;        ///< "training" or "inference"
  std::string network;    ///< "resnet 50 on imagenet"
  std::string images;     ///< where they came from, in words
  std::string precision;  ///< "16.32"
  std::int64_t batch_size = 1;
  std::int64_t images_per_step = 1;  ///< in all micro-batches of all replicas
  std::int64_t ranks = 1;
  std::int64_t threads = 1;  ///< per device
  std::int64_t warmup_steps = 0;
  std::vector<double> step_seconds;  ///< in the order in which they ran

  [[nodiscard]] double images_per_second() const;  ///< by the median step
  friend bool operator==(const BenchRun&, const BenchRun&) = default;
};

[[nodiscard]] Json to_json(const BenchRun& run);
/// The inverse; other members are ignored. Errors: JsonError.
[[nodiscard]] BenchRun bench_run_of(const Json& json);

}  // namespace millrace::report
