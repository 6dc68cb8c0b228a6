// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/benchmark.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <variant>

#include "core/clock.hpp"
#include "core/percentile.hpp"
#include "partition/cost.hpp"
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
  return {.kernel = std::move(kernel),
          .shape = shape_of(graph, call),
          .pass = call.repeated                             ? "again"
                  : piece.phase == pipeline::Phase::Forward ? "forward"
                                                            : "backward",
          .seconds = 1e-9 * static_cast<double>(piece.end - piece.begin),
          .flops = multiplies ? work.flops + work.depthwise_flops : 0.0,
          .bytes = work.bytes};
}

/// What this process did in its last step: its kernels, and what it does between passes.
std::vector<report::KernelTime> times_of(const Session& session) {
  using pipeline::ActionKind;
  using pipeline::Doing;
  const pipeline::Recording& recording = session.executor().recording();
  const auto entry_of = [&](const auto& piece) { return recording.entries()[piece.entry]; };
  std::vector<report::KernelTime> times;
  for (const pipeline::KernelPiece& piece : recording.kernels())
    times.push_back(time_of(
        session.graph(), session.units()[entry_of(piece).unit].state->training().program(), piece));
  for (const pipeline::Piece& piece : recording.pieces()) {
    const bool updates = entry_of(piece).action.kind == ActionKind::Update;
    if (piece.doing == Doing::Work && !updates) continue;
    times.push_back({.kernel = std::string(piece.doing == Doing::Work ? "update weights"
                                                                      : name_of(piece.doing)),
                     .seconds = 1e-9 * static_cast<double>(piece.end - piece.begin)});
  }
  return times;
}

/// A step, by its time.
struct TimedStep {
  double seconds = 0.0;
  std::vector<report::KernelTime> times;
};

/// What all ranks did in the faster half of their steps; rank 0's. Collective.
report::KernelTable table_of(std::vector<TimedStep> steps, DType type, const comm::World& world,
                             std::vector<report::Peak> peaks) {
  std::ranges::sort(steps, {}, &TimedStep::seconds);
  steps.resize((steps.size() + 1) / 2);
  std::array<double, 1> seconds = {0.0};
  std::vector<report::KernelTime> times;
  for (const TimedStep& step : steps) {
    seconds[0] += step.seconds;
    std::ranges::copy(step.times, std::back_inserter(times));
  }
  Json own = Json::list();
  for (const report::KernelTime& time : report::added_up(times)) own.push_back(to_json(time));
  world.add(seconds);
  times.clear();
  for (const std::string& text : world.gather(own.dump())) {
    const Json of_rank = Json::parse(text);
    for (const Json& time : of_rank.items()) times.push_back(report::kernel_time_of(time));
  }
  return report::kernel_table(std::move(peaks), type, times, seconds[0], steps.size());
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

KernelBenchResult bench_kernels(const run::Run& config, const comm::World& world,
                                const std::shared_ptr<const io::Dataset>& dataset,
                                const BenchLength& length, const AfterStep& after_step) {
  std::vector<report::Peak> peaks = measure_peaks(world);
  run::Run timed = config;
  timed.trace_detail = run::TraceDetail::Kernels;
  Started started(timed, world, dataset, BenchUse::Training);
  KernelBenchResult result;
  std::vector<TimedStep> steps;
  for (std::int64_t i = 0; i < length.all(); ++i) {
    const Timer timer;
    (void)started.session.step(started.feeds, i,
                               run::learning_rate_at(config.learning_rate, i, length.all()), true);
    const double seconds = timer.seconds();
    after_step(i, seconds);
    if (i < length.warmup) continue;
    result.step_seconds.push_back(seconds);
    steps.push_back({seconds, times_of(started.session)});
  }
  result.table = table_of(std::move(steps), config.precision.activations, world, std::move(peaks));
  return result;
}

}  // namespace millrace::train
