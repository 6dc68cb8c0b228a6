// SPDX-License-Identifier: Apache-2.0
//
// The rates of a benchmark in the forms that NVIDIA's scripts read: the lines and the file of the
// logger in RN50v1.5 (dllogger 0.2.3), and the lines of its successor DLLogger.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/json.hpp"
#include "tools/bench/bench_run.hpp"

namespace millrace::report {

/// Nanoseconds since 1970.
using UnixTime = std::int64_t;

/// ":::NVLOGv0.2.3 resnet 1571680342.123456789 (millrace:0) total_ips: 364.9".
[[nodiscard]] std::string nvlog_line(std::string_view model, UnixTime now,
                                     std::string_view message);

/// The file training_benchmark.json or eval_benchmark.json: every `interval`-th measured step,
/// beginning with the first.
[[nodiscard]] Json nvidia_results(const BenchRun& run, std::int64_t interval);

/// The mean of the rates of the steps, which NVIDIA's trainers call total_ips, train_throughput and
/// eval_throughput. It is larger than the rate of the mean step.
[[nodiscard]] double mean_rate(const BenchRun& run);

/// The last entry of a DLLogger: the mean rate, and the latencies in milliseconds.
[[nodiscard]] Json dllogger_summary(const BenchRun& run);

/// A line of a DLLogger without its end: "DLLL {..}". `step` is a list of numbers, or a text.
[[nodiscard]] std::string dllogger_line(UnixTime start, UnixTime now, Json step, Json data);

}  // namespace millrace::report
