// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/nvidia_log.hpp"

#include <fmt/format.h>

#include <array>
#include <ctime>
#include <utility>

#include "core/percentile.hpp"

namespace millrace::report {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kMicrosecond = 1'000;

double rate_of(const BenchRun& run, double seconds) {
  return static_cast<double>(run.images_per_step) / seconds;
}

/// "2019-10-21 17:52:22.123456", local time.
std::string date_of(UnixTime now) {
  const std::time_t seconds = now / kSecond;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return fmt::format("{}.{:06}", text.data(), now % kSecond / kMicrosecond);
}

}  // namespace

std::string nvlog_line(std::string_view model, UnixTime now, std::string_view message) {
  return fmt::format(":::NVLOGv0.2.3 {} {}.{:09} (millrace:0) {}", model, now / kSecond,
                     now % kSecond, message);
}

Json nvidia_results(const BenchRun& run, std::int64_t interval) {
  Json x = Json::list();
  Json iteration = Json::list();
  Json rates = Json::list();
  for (std::int64_t i = 0; i < std::ssize(run.step_seconds); i += interval) {
    x.push_back(i);
    iteration.push_back(run.warmup_steps + i);
    rates.push_back(rate_of(run, run.step_seconds[static_cast<std::size_t>(i)]));
  }
  // One list for each epoch; a benchmark has no epochs.
  Json iter = Json::object({{"x", Json::list({std::move(x)})},
                            {"iteration", Json::list({std::move(iteration)})},
                            {"total_ips", Json::list({std::move(rates)})}});
  return Json::object({{"run", dllogger_summary(run)},
                       {"epoch", Json::object({{"x", Json::list()}})},
                       {"iter", std::move(iter)},
                       {"event", Json::object()}});
}

double mean_rate(const BenchRun& run) {
  std::vector<double> rates;
  rates.reserve(run.step_seconds.size());
  for (const double seconds : run.step_seconds) rates.push_back(rate_of(run, seconds));
  return mean_of(rates);
}

Json dllogger_summary(const BenchRun& run) {
  const std::string use = run.use == "training" ? "train" : "eval";
  const Latency latency = latency_of(run.step_seconds);
  Json data = Json::object({{use + "_throughput", mean_rate(run)}});
  for (const auto& [name, seconds] : {std::pair{"avg", latency.average},
                                      {"p50", latency.p50},
                                      {"p90", latency.p90},
                                      {"p95", latency.p95},
                                      {"p99", latency.p99},
                                      {"p100", latency.p100}})
    data.set(fmt::format("{}_latency_{}", use, name), 1e3 * seconds);
  return data;
}

std::string dllogger_line(UnixTime start, UnixTime now, Json step, Json data) {
  const UnixTime elapsed = now - start;
  const Json line = Json::object(
      {{"timestamp", fmt::format("{}.{:06}", now / kSecond, now % kSecond / kMicrosecond)},
       {"datetime", date_of(now)},
       {"elapsedtime",
        fmt::format("{}.{:06}", elapsed / kSecond, elapsed % kSecond / kMicrosecond)},
       {"type", "LOG"},
       {"step", std::move(step)},
       {"data", std::move(data)}});
  return "DLLL " + line.dump();
}

}  // namespace millrace::report
