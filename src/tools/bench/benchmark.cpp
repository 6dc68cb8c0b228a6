// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/benchmark.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <variant>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/percentile.hpp"
#include "partition/cost.hpp"
#include "run/learning_rate.hpp"
#include "train/memory.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/statistics.hpp"
#include "train/trainer.hpp"
#include "train/watchdog.hpp"

namespace millrace::training {
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

/// "3x3/2 56x56x64 -> 28x28x128": kernel and stride of a convolution, what the op reads and makes.
std::string shape_of(const models::Graph& graph, const pipeline::Call& call) {
  const models::Op& op = graph.op(call.op);
  const Shape& x = graph.value(op.inputs.front()).shape;
  std::string text = fmt::format("{}", x);
  const bool makes_image = call.kind == KernelKind::PrepareImages;  // its op is the image's reader
  if (op.output.valid() && !makes_image)
    if (const Shape& y = graph.value(op.output).shape; y != x || is_linear(call.kind))
      text += fmt::format(" -> {}", y);
  const auto* const conv = std::get_if<models::Conv>(&op.kind);
  if (conv == nullptr || !is_linear(call.kind)) return text;
  const std::string groups = conv->groups > 1 ? fmt::format(" in {} groups", conv->groups) : "";
  return fmt::format("{}x{}/{} {}{}", conv->kernel.h, conv->kernel.w, conv->stride.h, text, groups);
}

report::KernelTime time_of(const models::Graph& graph, const pipeline::StageProgram& program,
                           const pipeline::KernelPiece& piece) {
  const pipeline::Call& call = program.phase(piece.phase)[piece.call];
  const partition::OpWork work = partition::call_work(graph, program, call);
  std::string kernel(name_of(call.kind));
  if (call.has(Role::Skip)) kernel += " add";
  if (call.fn != Activation::None) kernel += fmt::format(" {}", name_of(call.fn));
  const bool multiplies = row_of(call.kind).work == Work::Products;
  const bool forward = piece.phase == pipeline::Phase::Forward;
  // Within a backward pass, what reads an activation and no gradient is recomputed.
  const bool again =
      call.has(Role::X) && !call.has(Role::Dy) && !call.has(Role::Dz) && !call.has(Role::Dx);
  return {.kernel = std::move(kernel),
          .shape = shape_of(graph, call),
          .pass = forward ? "forward"
                  : again ? "again"
                          : "backward",
          .seconds = 1e-9 * static_cast<double>(piece.end - piece.begin),
          .flops = multiplies ? work.flops + work.depthwise_flops : 0.0,
          .bytes = work.bytes};
}

/// What this process did in its last step: each kernel, then a row for all of each thing that it
/// does besides. The same rows for each step.
std::vector<report::KernelTime> times_of(const Session& session) {
  using pipeline::Doing;
  const pipeline::Recording& recording = session.executor().recording();
  std::vector<report::KernelTime> times;
  for (const pipeline::KernelPiece& piece : recording.kernels()) {
    const std::size_t unit = recording.entries()[piece.entry].unit;
    times.push_back(
        time_of(session.graph(), session.units()[unit].state->training().program(), piece));
  }
  const std::size_t kernels = times.size();
  for (int doing = 0; doing <= static_cast<int>(Doing::AwaitAllRanks); ++doing)
    times.push_back({.kernel = std::string(name_of(static_cast<Doing>(doing))), .count = 0.0});
  times[kernels].kernel = "update weights";
  for (const pipeline::Piece& piece : recording.pieces()) {
    const pipeline::ActionKind kind = recording.entries()[piece.entry].action.kind;
    if (piece.doing == Doing::Work && kind != pipeline::ActionKind::Update) continue;
    report::KernelTime& time = times[kernels + static_cast<std::size_t>(piece.doing)];
    time.count = 1.0;
    time.seconds += 1e-9 * static_cast<double>(piece.end - piece.begin);
  }
  return times;
}

/// The shortest times that were seen in any step, and the fastest step.
class FastestTimes {
 public:
  void add(double seconds, const std::vector<report::KernelTime>& times) {
    if (times_.empty()) times_ = times;
    MILLRACE_ASSERT(times.size() == times_.size());
    double known = 0.0;
    for (std::size_t i = 0; i < times.size(); ++i) {
      known += times[i].seconds;
      times_[i].seconds = std::min(times_[i].seconds, times[i].seconds);
    }
    if (seconds < step_.seconds) step_ = {.seconds = seconds, .known = known};
  }

  /// Of all ranks together; rank 0's. Collective.
  [[nodiscard]] report::KernelTable table(std::vector<report::Peak> peaks, DType type,
                                          const comm::World& world) const {
    std::array<double, 2> step = {step_.seconds, step_.known};
    world.add(step);
    Json own = Json::list();
    for (const report::KernelTime& time : report::added_up(times_))
      if (time.count > 0.0) own.push_back(to_json(time));
    std::vector<report::KernelTime> times;
    for (const std::string& text : world.gather(own.dump())) {
      const Json of_rank = Json::parse(text);
      for (const Json& time : of_rank.items()) times.push_back(report::kernel_time_of(time));
    }
    return report::kernel_table(std::move(peaks), type, times,
                                {.seconds = step[0], .known = step[1]});
  }

 private:
  std::vector<report::KernelTime> times_;
  report::StepTime step_ = {.seconds = std::numeric_limits<double>::infinity()};
};

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

KernelBenchResult bench_kernels(const run::Run& config, const comm::World& world,
                                const std::shared_ptr<const io::Dataset>& dataset,
                                const BenchLength& length, std::vector<report::Peak> peaks,
                                const AfterStep& after_step) {
  run::Run timed = config;
  timed.trace_detail = run::TraceDetail::Kernels;
  Started started(timed, world, dataset, BenchUse::Training);
  KernelBenchResult result;
  FastestTimes fastest;
  for (std::int64_t i = 0; i < length.all(); ++i) {
    const Timer timer;
    (void)started.session.step(started.feeds, i,
                               run::learning_rate_at(config.learning_rate, i, length.all()), true);
    const double seconds = timer.seconds();
    after_step(i, seconds);
    if (i < length.warmup) continue;
    result.step_seconds.push_back(seconds);
    fastest.add(seconds, times_of(started.session));
  }
  result.table = fastest.table(std::move(peaks), config.precision.activations, world);
  return result;
}

}  // namespace millrace::training
