// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/benchmark.hpp"

#include <array>

#include "core/clock.hpp"
#include "core/percentile.hpp"
#include "run/learning_rate.hpp"
#include "train/memory.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/statistics.hpp"
#include "train/trainer.hpp"
#include "train/watchdog.hpp"

namespace millrace::train {
namespace {

/// Steps for the table of times, where those that are measured do not record any.
constexpr int kRecordedSteps = 3;

/// A session that is ready to run, and what it reads.
struct Started {
  Started(const run::Run& config, const comm::World& world,
          const std::shared_ptr<const io::Dataset>& dataset, BenchUse use)
      : session(config, use == BenchUse::Training ? Use::Training : Use::Inference, world),
        watchdog(world.rank(), config.hang_timeout) {
    watchdog.follow(session);
    const TrainInputs inputs{
        .train = dataset, .validation = nullptr, .command_line = {}, .notices = {}};
    if (use == BenchUse::Training)
      require_device_memory(forecast_memory(session, config, inputs, resident_bytes()), config,
                            inputs, world);
    session.allocate();
    session.initialise(config.seed);
    feeds = use == BenchUse::Training ? session.feeder().training(dataset, 0)
                                      : session.feeder().inference(dataset);
  }
  Session session;
  Watchdog watchdog;
  Feeds feeds;
};

/// Takes the batches of that many steps from every loader that reads images.
std::int64_t take_images(const Feeds& feeds, const run::Run& config, std::int64_t steps) {
  std::int64_t images = 0;
  for (std::int64_t m = 0; m < steps * config.micro_batches; ++m)
    for (io::BatchSource* const loader : feeds.pointers) {
      if (loader == nullptr) continue;
      const io::Batch* const batch = loader->next();
      images += batch->images.empty() ? 0 : batch->count;
    }
  return images;
}

/// All ranks start together; the slowest one determines the time.
double rate_of_loaders(const run::Run& config, const comm::World& world,
                       const std::shared_ptr<const io::Dataset>& dataset,
                       const BenchLength& length) {
  Session session(config, Session::Use::Training, world);
  const Feeds feeds = session.feeder().training(dataset, 0);
  // Batches that were read ahead before the clock started would cost no time.
  (void)take_images(feeds, config, length.warmup);
  world.barrier();
  const Timer timer;
  std::array<double, 1> images = {static_cast<double>(take_images(feeds, config, length.steps))};
  const double seconds =
      1e-9 * static_cast<double>(world.maximum(static_cast<std::int64_t>(1e9 * timer.seconds())));
  world.add(images);
  return images[0] / seconds;
}

}  // namespace

double BenchResult::median_seconds() const { return percentile_of(step_seconds, 0.5); }

double BenchResult::images_per_second() const {
  return static_cast<double>(images_per_step) / median_seconds();
}

BenchResult bench(const run::Run& config, const comm::World& world,
                  const std::shared_ptr<const io::Dataset>& dataset, BenchUse use,
                  const BenchLength& length, const AfterStep& after_step) {
  Started started(config, world, dataset, use);
  Session& session = started.session;
  BenchResult result;
  std::vector<double> waits;
  result.images_per_step = config.total_batch();
  result.arena_bytes = session.arena_bytes();
  result.macs_per_image = session.graph().forward_macs();
  PipelineStatistics statistics(session.executor());
  const auto rate = [&](std::int64_t step) {
    return run::learning_rate_at(config.learning_rate, step, length.all());
  };
  std::int64_t queued = 0;
  const auto queue = [&] {
    session.queue_step(started.feeds, queued, rate(queued));
    ++queued;
  };
  for (std::int64_t i = 0; i < length.all(); ++i) {
    const Timer timer;
    if (use == BenchUse::Training && queued == i) queue();
    if (queued < length.all() && session.may_queue_ahead()) queue();
    const StepResult step =
        use == BenchUse::Inference ? session.infer(started.feeds) : session.finish_step();
    const double seconds = timer.seconds();
    if (i >= length.warmup) {
      if (!session.goes_ahead()) statistics.add(seconds);
      result.step_seconds.push_back(seconds);
      result.metrics += step.metrics;
      waits.push_back(step.loader_seconds);
    }
    after_step(i, seconds);
  }
  // When a device worked is recorded only where the host does not go ahead of it.
  for (int i = 0; session.goes_ahead() && i < kRecordedSteps; ++i) {
    const Timer timer;
    (void)session.step(started.feeds, queued + i, rate(queued - 1));
    statistics.add(timer.seconds());
  }
  result.pipeline = to_text(statistics.report(world), session.executor().plan());
  result.loader_seconds = percentile_of(waits, 0.5);
  return result;
}

DataBenchResult bench_data(const run::Run& config, const comm::World& world,
                           const std::shared_ptr<const io::Dataset>& dataset,
                           const BenchLength& length, const AfterStep& after_step) {
  run::Run resident = config;
  resident.data.source = run::ImageSource::Device;
  DataBenchResult result;
  result.loader_rate = rate_of_loaders(config, world, dataset, length);
  result.device_rate =
      bench(resident, world, dataset, BenchUse::Training, length).images_per_second();
  result.together = bench(config, world, dataset, BenchUse::Training, length, after_step);
  return result;
}

}  // namespace millrace::train
