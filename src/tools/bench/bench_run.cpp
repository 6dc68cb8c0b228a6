// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_run.hpp"

#include "core/percentile.hpp"

namespace millrace::report {

Latency latency_of(const std::vector<double>& step_seconds) {
  const auto at = [&](double fraction) { return percentile_of(step_seconds, fraction); };
  return {.average = mean_of(step_seconds),
          .p50 = at(0.5),
          .p90 = at(0.9),
          .p95 = at(0.95),
          .p99 = at(0.99),
          .p100 = at(1.0)};
}

Json to_json(const Latency& latency) {
  return Json::object({{"average", 1e3 * latency.average},
                       {"p50", 1e3 * latency.p50},
                       {"p90", 1e3 * latency.p90},
                       {"p95", 1e3 * latency.p95},
                       {"p99", 1e3 * latency.p99},
                       {"p100", 1e3 * latency.p100}});
}

double BenchRun::images_per_second() const {
  return static_cast<double>(images_per_step) / percentile_of(step_seconds, 0.5);
}

Json to_json(const BenchRun& run) {
  Json times = Json::list();
  for (const double seconds : run.step_seconds) times.push_back(1e3 * seconds);
  return Json::object({{"mode", run.use},
                       {"network", run.network},
                       {"images", run.images},
                       {"precision", run.precision},
                       {"batch_size", run.batch_size},
                       {"ranks", run.ranks},
                       {"threads", run.threads},
                       {"images_per_step", run.images_per_step},
                       {"warmup_steps", run.warmup_steps},
                       {"steps", run.step_seconds.size()},
                       {"images_per_second", run.images_per_second()},
                       {"latency_ms", to_json(latency_of(run.step_seconds))},
                       {"step_ms", std::move(times)}});
}

BenchRun bench_run_of(const Json& json) {
  BenchRun run{.use = json.at("mode").text(),
               .network = json.at("network").text(),
               .images = json.at("images").text(),
               .precision = json.at("precision").text(),
               .batch_size = json.at("batch_size").as_int64(),
               .images_per_step = json.at("images_per_step").as_int64(),
               .ranks = json.at("ranks").as_int64(),
               .threads = json.at("threads").as_int64(),
               .warmup_steps = json.at("warmup_steps").as_int64(),
               .step_seconds = {}};
  for (const Json& time : json.at("step_ms").items())
    run.step_seconds.push_back(1e-3 * time.as_double());
  return run;
}

}  // namespace millrace::report
