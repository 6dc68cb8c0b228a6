// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "pipeline/messages.hpp"
#include "train/agreement.hpp"
#include "train/averaging.hpp"
#include "train/cadence.hpp"
#include "train/checkpoint_writer.hpp"
#include "train/computing.hpp"
#include "train/device_numbers.hpp"
#include "train/lr_schedule.hpp"
#include "train/memory.hpp"
#include "train/progress.hpp"
#include "train/session.hpp"
#include "train/signals.hpp"
#include "train/stand_ins.hpp"
#include "train/statistics.hpp"
#include "train/together.hpp"
#include "train/trace.hpp"
#include "train/watchdog.hpp"

namespace millrace::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Callbacks of a validation.
struct ValidationWatch {
  std::function<bool()> cancelled = [] { return false; };
  std::function<void(const std::string&)> say;  ///< lines about the progress
};

/// Returns nothing if `cancelled` returned true before all images were seen.
std::optional<ValidationResult> evaluate(Session& session, const TrainConfig& config,
                                         const comm::World& world,
                                         const std::shared_ptr<const io::Dataset>& dataset,
                                         std::int64_t iteration, const ValidationWatch& watch) {
  const Clock::time_point start = Clock::now();
  const Feeds feeds = session.validation_feeds(dataset);
  StandInLimit limit(world, *dataset, config.data.max_bad_fraction, "validation");
  ValidationProgress progress(dataset->size(), 0.0, watch.say);
  const pipeline::MicroBatchMetrics m =
      session.evaluate(feeds, dataset->size(), [&](std::int64_t seen) {
        progress.seen(seen, seconds_since(start));
        limit.check(session.stand_ins(), 0);
        return watch.cancelled();
      });
  limit.check(session.stand_ins(), 0);
  if (m.samples < dataset->size()) return std::nullopt;
  ValidationResult result;
  result.iteration = iteration;
  result.images = m.samples;
  result.batches = (m.samples + config.validation_batch_size - 1) / config.validation_batch_size;
  result.correct_top1 = m.top1;
  result.correct_top5 = m.top5;
  result.loss = m.loss / static_cast<double>(m.samples);
  result.seconds = seconds_since(start);
  return result;
}

/// Accuracies by iteration from validation.csv: of the run's own weights, or of an average.
std::map<std::int64_t, double> validated_points(const std::filesystem::path& run_directory,
                                                std::string_view name = "") {
  const std::filesystem::path path = run_directory / "validation.csv";
  std::map<std::int64_t, double> points;
  if (!std::filesystem::exists(path)) return points;
  io::LineReader lines(path);
  (void)lines.next();  // header
  constexpr std::size_t kAccuracy = 2;
  constexpr std::size_t kName = 6;
  while (const std::optional<std::string_view> line = lines.next()) {
    const std::vector<std::string> fields = split_list(*line);
    if (fields.size() <= kAccuracy || (fields.size() > kName ? fields[kName] : "") != name)
      continue;
    const auto iteration = parse_number<std::int64_t>(fields[0]);
    const auto accuracy = parse_number<double>(fields[kAccuracy]);
    if (iteration && accuracy && std::isfinite(*accuracy)) points[*iteration] = *accuracy;
  }
  return points;
}

/// One process' part of a run, from its first iteration to its last. Only rank 0 prints, logs and
/// finishes checkpoints.
class Run {
 public:
  Run(const TrainConfig& config, const TrainInputs& inputs, const comm::World& world)
      : config_(config),
        inputs_(inputs),
        world_(world),
        console_(world.rank() == 0 ? Console(log_path(config)) : Console::silent()),
        limit_(world, *inputs.train, config.data.max_bad_fraction, "training"),
        watchdog_(world.rank(), config.hang_timeout),
        place_(io::file_identity(config.run_directory)),
        data_(config.run_directory.empty() ? "" : io::describe(*inputs.train)) {
    watchdog_.follow(world);
  }

  [[nodiscard]] Outcome fresh();
  [[nodiscard]] Outcome restored();

 private:
  static std::filesystem::path log_path(const TrainConfig& config) {
    return config.run_directory.empty() ? std::filesystem::path{}
                                        : config.run_directory / "log.txt";
  }
  [[nodiscard]] std::filesystem::path checkpoints() const {
    return config_.run_directory / "checkpoints";
  }

  void announce();
  void prepare(std::int64_t first);
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> trace_window(std::int64_t first) const;
  void prepare_fresh();
  void require_memory() const;
  void require_same_data(const io::CheckpointHeader& header,
                         const std::filesystem::path& path) const;
  [[nodiscard]] std::int64_t reading_bytes() const;
  [[nodiscard]] std::int64_t predicted_peak(std::int64_t reading) const;
  [[nodiscard]] std::int64_t trace_bytes() const;
  [[nodiscard]] Outcome loop(std::int64_t first);
  [[nodiscard]] Outcome iterate(std::int64_t first);
  StepResult step(const Feeds& feeds, std::int64_t iteration, double rate);
  void one_iteration(const Feeds& feeds, std::int64_t iteration);
  /// Returns false if a signal interrupted a validation.
  [[nodiscard]] bool after_iteration(std::int64_t done, bool stopping);
  /// The epoch in which this iteration begins.
  [[nodiscard]] std::int64_t epoch_of(std::int64_t iteration) const {
    return iteration * config_.total_batch() / std::max<std::int64_t>(1, config_.data.train_size);
  }
  void require_loss(double loss, std::int64_t done);
  void require_updates(std::int64_t done) const;
  void require_pictures(std::int64_t done);
  void saved_before_failing(std::int64_t done, const std::function<void()>& task);
  [[noreturn]] void diverged(const std::string& what, std::int64_t done) const;
  void show_status(std::int64_t done, double loss, double top1);
  [[nodiscard]] Outcome stop_reason() const;
  void save(std::int64_t done);
  void settle();
  void require_place() const;
  void keep_configuration();
  void check_weights(std::int64_t done);
  [[nodiscard]] std::string sound_checkpoint() const;
  void meet();
  void report_checkpoints();
  [[nodiscard]] CheckpointWriter::Hooks hooks();
  [[nodiscard]] io::CheckpointHeader header_of(std::int64_t done) const;
  [[nodiscard]] bool leads() const { return world_.rank() == 0; }
  [[nodiscard]] bool logs() const { return leads() && log_.has_value(); }
  [[nodiscard]] bool make_up_for_validation(std::int64_t done);
  [[nodiscard]] std::set<std::int64_t> validated(std::string_view name = "") const;
  [[nodiscard]] bool validate_now(std::int64_t done, const std::string& name = "",
                                  bool newest = true);
  void warm_start();
  [[nodiscard]] bool make_averages();
  [[nodiscard]] Outcome finish();
  void report_pipeline();
  void report_scaling();
  std::int64_t note_replaced(const io::Dataset& dataset, std::set<std::string>& known);
  void report_replaced(const io::Dataset& dataset, std::set<std::string>& known,
                       std::string_view use);
  [[nodiscard]] bool validate_saved();

  const TrainConfig& config_;
  const TrainInputs& inputs_;
  const comm::World& world_;
  Console console_;
  StandInLimit limit_;
  std::optional<device::Environment> environment_;
  std::optional<Session> session_;
  std::optional<MetricsLog> log_;
  std::map<std::int64_t, double> validated_;  ///< accuracy by iteration; on rank 0
  std::optional<StopSignals> signals_;
  std::optional<PipelineStatistics> statistics_;
  std::optional<Trace> trace_;
  Watchdog watchdog_;
  std::optional<CheckpointWriter> writer_;  ///< none with --no-logs
  std::int64_t checked_ = -1;  ///< iteration after which the replicas were last compared
  Clock::time_point last_save_ = Clock::now();
  bool save_is_due_ = false;  ///< according to the clock of rank 0
  std::int64_t first_iteration_ = 0;
  std::int64_t predicted_peak_ = 0;
  std::vector<PlannedAverage> averages_;
  std::set<std::string> bad_training_;  ///< lines about bad images replaced on any rank; on rank 0
  std::set<std::string> bad_validation_;
  io::FileIdentity place_;  ///< of the run directory
  std::string data_;        ///< the data set, for checkpoints; describing it requires reading it
  int received_ = 0;        ///< a signal that some rank received
  Clock::time_point start_ = Clock::now();
};

void Run::announce() {
  const models::Graph& graph = session_->graph();
  console_.line(format_start(config_, inputs_.command_line, graph));
  for (const std::string& notice : inputs_.notices) console_.line(notice);
  console_.line(fmt::format("Device: {}", device::describe_environment()));
  for (const std::string& line : describe_computing(config_)) console_.line(line);
  const std::int64_t reading = reading_bytes();
  predicted_peak_ = predicted_peak(reading);
  const std::vector<std::string> memory = world_.gather(fmt::format(
      "Memory: {} on the device, process peak {}, including {} to read images",
      human_bytes(session_->arena_bytes()), human_bytes(predicted_peak_), human_bytes(reading)));
  for (std::size_t r = 0; r < memory.size(); ++r)
    console_.line(memory.size() == 1 ? memory[r] : fmt::format("Rank {}: {}", r, memory[r]));
}

/// Refuses a training that does not fit into the memory of the machine, naming a batch size that
/// does: memory grows with the batch.
void Run::require_memory() const {
  const double available =
      static_cast<double>(available_bytes()) / std::max(1, world_.local_size());
  const auto needed = static_cast<double>(predicted_peak_ - resident_bytes());
  const bool fits = !device::kHostAccessible || available <= 0.0 || needed <= available;
  if (world_.maximum(fits ? 0 : 1) == 0) return;
  world_.fail_together();
  // Weights and libraries do not grow with the batch, so scale a little less than proportionally.
  const auto batch =
      static_cast<std::int64_t>(0.9 * available / needed * static_cast<double>(config_.batch_size));
  fail(ErrorKind::Config,
       "the training needs {} of memory but only {} are free: {}--xla-recompute, more --shards or "
       "--precision 16.32 need less",
       human_bytes(static_cast<std::int64_t>(needed)),
       human_bytes(static_cast<std::int64_t>(available)),
       batch > 0 && batch < config_.batch_size ? fmt::format("--batch-size {} fits; ", batch) : "");
}

/// First and last update of the trace: as configured, or the first ten of this process.
std::pair<std::int64_t, std::int64_t> Run::trace_window(std::int64_t first) const {
  const bool asked = config_.trace_first > 0;
  const std::int64_t begin = asked ? config_.trace_first : first + 1;
  const std::int64_t end = asked ? config_.trace_last : first + config_.trace_last;
  return {begin, std::max(begin, std::min(end, config_.iterations))};
}

void Run::prepare(std::int64_t first) {
  averages_ = planned_averages(config_);
  environment_.emplace(config_.threads, gpu_of(config_, world_.rank()));
  session_.emplace(config_, Session::Use::Training, world_);
  announce();
  require_memory();
  session_->allocate();
  if (!config_.run_directory.empty()) writer_.emplace(world_, *session_, checkpoints(), hooks());
  statistics_.emplace(session_->executor());
  if (!config_.trace.empty()) {
    Together(world_).lead([&] { io::write_file_atomically(config_.trace, ""); });  // check early
    const auto [begin, end] = trace_window(first);
    trace_.emplace(session_->executor(), begin, end);
  }
  watchdog_.follow(*session_);
}

/// A run that cannot start, for example for lack of memory or because --init-path does not fit,
/// leaves no directory. After an internal error the directory is kept for its log.
void Run::prepare_fresh() {
  try {
    prepare(0);
    session_->initialise(config_.seed);
    if (!config_.init_path.empty()) warm_start();
  } catch (const Error& error) {
    std::error_code ignored;
    if (error.kind() != ErrorKind::Internal && leads() && !config_.run_directory.empty())
      std::filesystem::remove_all(config_.run_directory, ignored);
    throw;
  }
}

/// Starts from the weights of a checkpoint. Only for a new run: a restored run has its own.
void Run::warm_start() {
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = agreed_newest(world_, config_.init_path, complaints);
  Together(world_).run([&] { session_->begin_with(checkpoint, config_.init_fresh); });
  for (const std::string& complaint : complaints) console_.line(complaint);
  console_.line(fmt::format("Starting from the weights of {}", checkpoint.path().string()));
}

Outcome Run::fresh() {
  prepare_fresh();
  Together(world_).lead([&] { log_.emplace(config_); });
  if (due_after(config_, 0).checkpoint) {
    save(0);
    settle();  // the run can be restored even if its first step fails
  }
  return loop(0);
}

/// A different data set would move every sample in the rest of the run.
void Run::require_same_data(const io::CheckpointHeader& header,
                            const std::filesystem::path& path) const {
  if (!header.data.empty() && header.data != data_)
    fail(ErrorKind::Data,
         "{}: was trained on {}, but the data set found now is {}: give the data set of the run "
         "with --data-dir",
         path.string(), header.data, data_);
  if (header.epoch == config_.epoch_after(header.iteration)) return;
  fail(ErrorKind::Data,
       "{}: was written at epoch {:.6g} of its data set, but with the {} training images found now "
       "it would be epoch {:.6g}: give the data set of the run with --data-dir",
       path.string(), header.epoch, config_.data.train_size, config_.epoch_after(header.iteration));
}

Outcome Run::restored() {
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = agreed_newest(world_, config_.run_directory, complaints);
  prepare(checkpoint.header().iteration);
  for (const std::string& complaint : complaints) console_.line(complaint);
  console_.line(
      fmt::format("Restoring training from latest checkpoint: {}", checkpoint.path().string()));
  const io::CheckpointHeader& header = checkpoint.header();
  if (const std::string here = device::describe_environment(); header.environment != here) {
    console_.line(
        fmt::format("The checkpoint was written with {}; this machine has {}: the continuation "
                    "agrees to rounding, not bit for bit.",
                    header.environment, here));
  }
  const Together together(world_);
  together.run([&] {
    require_same_data(header, checkpoint.path());
    session_->load(checkpoint);
  });
  limit_.resume(epoch_of(header.iteration), header.stand_ins);
  together.lead([&] {
    log_.emplace(config_, header.iteration, parse_partial_row(header.log_state));
    validated_ = validated_points(config_.run_directory);
    for (const std::string& notice : log_->take_notices()) console_.line(notice);
    // Changed options also apply to later restarts.
    io::write_file_atomically(config_.run_directory / "config.toml", config_file_text(config_));
  });
  return loop(header.iteration);
}

/// Memory that the records of a trace will need.
std::int64_t Run::trace_bytes() const {
  if (config_.trace.empty()) return 0;
  const auto [begin, end] = trace_window(0);
  const auto record = static_cast<std::int64_t>(sizeof(pipeline::ActionRecord));
  // In memory, and again as text when the trace is written.
  constexpr std::int64_t kText = 400;
  return (end - begin + 1) * std::ssize(session_->executor().recording().records()) *
         (record + kText);
}

/// Memory for reading images: batches, and what the data set uses to produce them.
std::int64_t Run::reading_bytes() const {
  const std::int64_t batches = session_->loader_bytes(config_.data.validation_size);
  if (batches == 0) return 0;
  const int threads = session_->reading_threads();
  std::int64_t work = inputs_.train->reading_bytes(threads);
  std::int64_t kept = inputs_.train->kept_bytes();
  if (inputs_.validation) {
    work = std::max(work, inputs_.validation->reading_bytes(threads));
    kept += inputs_.validation->kept_bytes();
  }
  return batches + work + kept;
}

/// The predicted memory peak of this process: current memory plus everything still to come.
std::int64_t Run::predicted_peak(std::int64_t reading) const {
  // Queues and shared segments of MPI, which appear with the first messages; HDF5 and the thread
  // that writes. Measured.
  constexpr std::int64_t kMessages = 2'500'000;
  constexpr std::int64_t kWriting = 1'000'000;
  const bool averages = leads() && !averages_.empty();
  const std::int64_t running =
      (averages ? averaging_bytes(session_->graph(), config_.optimiser.kind) : std::int64_t{0}) +
      (world_.size() > 1 ? kMessages : 0) + trace_bytes() + reading + session_->library_bytes() +
      (config_.run_directory.empty() ? 0 : session_->checkpoint_bytes() + kWriting);
  const std::int64_t sum =
      resident_bytes() + session_->arena_bytes() + std::max(running, session_->initial_bytes());
  // Allocators round up; the prediction must never be too low.
  return sum + sum / 64;
}

/// A checkpoint that is being written is finished however the training ends, if all ranks are still
/// there.
Outcome Run::loop(std::int64_t first) {
  try {
    const Outcome outcome = iterate(first);
    settle();
    return outcome;
  } catch (const Error&) {
    const bool together = world_.size() == 1 || world_.failing_together();
    try {
      if (together) settle();
    } catch (const Error&) {
      // Report the first error.
    }
    throw;
  }
}

Outcome Run::iterate(std::int64_t first) {
  first_iteration_ = first;
  if (!signals_) signals_.emplace();
  if (!make_up_for_validation(first)) return stop_reason();
  if (first >= config_.iterations) {
    console_.line(
        fmt::format("The run has completed all of its {} iterations.", config_.iterations));
    return finish();
  }
  if (writer_ && config_.saves_on_the_way()) writer_->reserve();
  start_ = Clock::now();
  last_save_ = start_;
  {
    const Feeds feeds = session_->training_feeds(inputs_.train, first * config_.total_batch());
    const std::int64_t stop = config_.stop_after ? first + *config_.stop_after : config_.iterations;
    for (std::int64_t i = first; i < config_.iterations; ++i) {
      one_iteration(feeds, i);
      const std::int64_t done = i + 1;
      require_pictures(done);
      meet();
      const bool asked = received_ != 0 || done >= stop;
      const bool stopping = done < config_.iterations && asked;
      if (after_iteration(done, stopping) && !stopping) continue;
      settle();
      report_pipeline();
      report_replaced(*inputs_.train, bad_training_, "training");
      report_checkpoints();
      return stop_reason();
    }
  }
  settle();
  report_pipeline();
  report_replaced(*inputs_.train, bad_training_, "training");
  report_checkpoints();
  return finish();
}

/// Shares between two steps what each rank knows alone: signals it received (so that all save the
/// same step), the progress of its part of a checkpoint, and the clock of rank 0. Collective.
void Run::meet() {
  const bool due = leads() && config_.checkpoint_minutes > 0.0 &&
                   seconds_since(last_save_) >= 60.0 * config_.checkpoint_minutes;
  std::array<std::int64_t, 3> most = {signals_->received(), writer_ ? writer_->progress() : 0,
                                      due ? 1 : 0};
  world_.maximum(most);
  const auto [signal, slowest, save] = most;
  if (received_ == 0) received_ = static_cast<int>(signal);
  save_is_due_ = save != 0;
  if (writer_) writer_->advance(slowest);
}

/// Reports skipped updates, and the final scale if it is dynamic.
void Run::report_scaling() {
  const ScalingState& scaling = session_->scaling();
  const bool dynamic = config_.loss_scaling.kind == ScalingKind::Dynamic;
  if (scaling.skipped == 0 && !dynamic) return;
  console_.line(fmt::format(
      "Skipped updates: {} of {} (gradients or batch statistics not finite), final loss scale {:g}",
      scaling.skipped, config_.iterations, scaling.scale));
}

/// Reports how the devices spent their time, if there are several.
void Run::report_pipeline() {
  const pipeline::PipelinePlan& plan = session_->executor().plan();
  const auto links = pipeline::links(session_->graph(), plan.ranges);
  const PipelineReport report = statistics_->report(world_, links);
  if (trace_) {
    if (config_.trace.extension() == ".svg")
      trace_->draw(world_, report, links, config_.trace);
    else
      trace_->write(world_, config_.trace);
    console_.line(
        trace_->steps() > 0
            ? fmt::format("Saved trace to {}", config_.trace.string())
            : fmt::format(
                  "{} is empty: no weight update of this process is in the range of the trace",
                  config_.trace.string()));
  }
  if (plan.ranks.devices * plan.ranks.replicas == 1) return;
  if (report.steps > 0) console_.line(to_text(report, plan));
}

/// Writes to log.txt which images any rank has replaced since the last call; the terminal has shown
/// it already. Returns the total number. Collective; the result is valid only on rank 0.
std::int64_t Run::note_replaced(const io::Dataset& dataset, std::set<std::string>& known) {
  for (const std::string& lines : world_.gather(join(dataset.replaced(), "\n")))
    for (const std::string& line : split_list(lines, '\n'))
      if (!line.empty() && known.insert(line).second)
        console_.keep(fmt::format("Bad image, replaced by another of its class: {}", line));
  return std::ssize(known);
}

void Run::report_replaced(const io::Dataset& dataset, std::set<std::string>& known,
                          std::string_view use) {
  const std::string line = format_replaced(note_replaced(dataset, known), dataset.size(), use);
  if (!line.empty()) console_.line(line);
}

Outcome Run::finish() {
  if (config_.validation == ValidationMode::End && !validate_saved()) return stop_reason();
  if (!make_averages()) return stop_reason();
  report_scaling();
  console_.line(fmt::format("Process peak: {} ({} predicted)", human_bytes(peak_resident_bytes()),
                            human_bytes(predicted_peak_)));
  return Outcome::Finished;
}

Outcome Run::stop_reason() const {
  return received_ == SIGINT ? Outcome::Interrupted : Outcome::Preempted;
}

/// Adds the place to an error of a single rank.
StepResult Run::step(const Feeds& feeds, std::int64_t iteration, double rate) {
  try {
    return session_->step(feeds, iteration, rate);
  } catch (const Error& error) {
    if (world_.size() == 1) throw;
    const pipeline::CurrentAction at = session_->executor().recording().current();
    // Numeric errors name their place already.
    if (at.replica < 0 || error.kind() == ErrorKind::Numeric) throw;
    throw Error(error.kind(),
                fmt::format("replica {}, stage {}: {}", at.replica, at.action.stage, error.what()));
  }
}

void Run::one_iteration(const Feeds& feeds, std::int64_t iteration) {
  const Clock::time_point start = Clock::now();
  IterationResult result;
  result.learning_rate = learning_rate(config_.schedule, iteration, config_.iterations);
  result.loss_scale = session_->scaling().scale;
  const pipeline::MicroBatchMetrics metrics = step(feeds, iteration, result.learning_rate).metrics;
  result.skipped = session_->scaling().skipped;
  // The first step pages memory in, so it is left out unless it is the only one.
  const bool counts = iteration > first_iteration_ || iteration + 1 == config_.iterations;
  if (counts) statistics_->add(session_->executor(), seconds_since(start));
  if (trace_) trace_->add(session_->executor(), iteration + 1);
  if (config_.weight_check_every > 0 && (iteration + 1) % config_.weight_check_every == 0)
    check_weights(iteration + 1);
  const auto samples = static_cast<double>(metrics.samples);
  result.loss = metrics.loss / samples;
  result.correct = metrics.top1;
  result.correct_top5 = metrics.top5;
  result.seconds = seconds_since(start);
  require_loss(result.loss, iteration + 1);
  require_updates(iteration + 1);
  if (logs()) log_->add(result);
  show_status(iteration + 1, result.loss, static_cast<double>(result.correct) / samples);
}

/// A non-finite loss whose update was skipped left the weights alone, and the next loss may be
/// finite. If the update was not skipped, the weights are lost.
void Run::require_loss(double loss, std::int64_t done) {
  if (std::isfinite(loss)) return;
  const std::string what = fmt::format("the loss became {}", loss);
  const std::int64_t skipped = session_->scaling().skipped_in_row;
  if (skipped == 1)
    console_.line(fmt::format("Iteration {}: {}; the update was skipped", done, what));
  if (skipped > 0) return;
  world_.fail_together();  // all ranks know the loss
  diverged(what, done);
}

/// Ends a run whose scale never fits or whose weights no longer give finite gradients.
void Run::require_updates(std::int64_t done) const {
  const ScalingState& scaling = session_->scaling();
  if (scaling.skipped_in_row < kMaxSkippedInRow) return;
  world_.fail_together();  // all ranks count alike
  diverged(fmt::format("loss, gradients or batch statistics were not finite for {} iterations in a "
                       "row (loss scale {:g})",
                       scaling.skipped_in_row, scaling.scale),
           done);
}

/// A run that ends because of too many bad images can be restored where it ended.
void Run::require_pictures(std::int64_t done) {
  saved_before_failing(done, [&] { limit_.check(session_->stand_ins(), epoch_of(done - 1)); });
}

/// Runs `task`. If it fails on all ranks, saves a checkpoint before throwing.
void Run::saved_before_failing(std::int64_t done, const std::function<void()>& task) {
  try {
    task();
  } catch (const Error& error) {
    const bool alike = world_.size() == 1 || world_.failing_together();
    if (!alike || error.kind() == ErrorKind::Numeric || config_.run_directory.empty()) throw;
    save(done);
    settle();
    throw Error(error.kind(), fmt::format("{} (iteration {}, which is saved)", error.what(), done));
  }
}

void Run::diverged(const std::string& what, std::int64_t done) const {
  const bool saved =
      !config_.run_directory.empty() && !io::list_checkpoints(config_.run_directory).empty();
  fail(ErrorKind::Numeric,
       "{} at iteration {} (learning rate {:.4g}): lower --base-learning-rate{}; {}", what, done,
       learning_rate(config_.schedule, done - 1, config_.iterations),
       config_.schedule.warmup_iterations > 0 ? " or lengthen --warmup-epochs" : "",
       saved ? fmt::format("earlier checkpoints are in {}", checkpoints().string())
             : std::string("nothing was saved"));
}

void Run::show_status(std::int64_t done, double loss, double top1) {
  const double elapsed = seconds_since(start_);
  const double each = elapsed / static_cast<double>(done - first_iteration_);
  Status status;
  status.iteration = done;
  status.loss = loss;
  status.top1 = top1;
  status.images_per_second = static_cast<double>(config_.total_batch()) / each;
  status.seconds_left = each * static_cast<double>(config_.iterations - done);
  console_.status(config_, status, elapsed);
}

bool Run::after_iteration(std::int64_t done, bool stopping) {
  const Due due = due_after(config_, done);
  if (due.log && logs()) {
    console_.line(format_line(log_->report(done)));
    for (const std::string& notice : log_->take_notices()) console_.line(notice);
  }
  // Validate first, so that a checkpoint comes after all rows before it. A process that was told to
  // stop saves at once instead; a restore then makes up for the validation.
  bool validated = true;
  if (due.validate) saved_before_failing(done, [&] { validated = validate_now(done); });
  if (due.checkpoint || save_is_due_ || stopping || !validated) save(done);
  return validated;
}

/// Validates the iteration that a restored run starts from, if the earlier process was stopped
/// during that validation.
bool Run::make_up_for_validation(std::int64_t done) {
  if (done == 0 || !due_after(config_, done).validate || config_.run_directory.empty()) return true;
  return validated().contains(done) || validate_now(done);
}

/// Iterations in validation.csv, as rank 0 reads it. Collective.
std::set<std::int64_t> Run::validated(std::string_view name) const {
  std::string listed;
  Together(world_).lead([&] {
    for (const auto& [done, accuracy] : validated_points(config_.run_directory, name))
      listed += fmt::format("{},", done);
  });
  std::set<std::int64_t> iterations;
  for (const std::string& done : split_list(world_.broadcast(listed)))
    iterations.insert(parse_number<std::int64_t>(done).value());
  return iterations;
}

io::CheckpointHeader Run::header_of(std::int64_t done) const {
  io::CheckpointHeader header;
  header.iteration = done;
  header.epoch = config_.epoch_after(done);
  header.next_position = done * config_.total_batch();
  header.model = session_->graph().name;
  header.config_toml = config_.resolved_toml;
  header.environment = device::describe_environment();
  header.data = data_;
  if (log_) header.log_state = to_json(log_->partial());
  header.scaling_state = to_json(session_->scaling());
  header.skipped_in_row = session_->scaling().skipped_in_row;
  if (done > 0 && epoch_of(done - 1) == epoch_of(done)) header.stand_ins = limit_.in_epoch();
  return header;
}

/// A directory that was removed or replaced during the run must not become a partial one again.
void Run::require_place() const {
  if (io::file_identity(config_.run_directory) == place_) return;
  fail(ErrorKind::Io, "{}: was removed or replaced during the run: nothing more is written to it",
       config_.run_directory.string());
}

/// Checkpoints contain the configuration too, but people look for it here.
void Run::keep_configuration() {
  const std::filesystem::path file = config_.run_directory / "config.toml";
  if (std::filesystem::exists(file)) return;
  io::write_file_atomically(file, config_file_text(config_));
  console_.line(
      fmt::format("{}: was removed during the run and has been written again", file.string()));
}

/// What the writing threads call.
CheckpointWriter::Hooks Run::hooks() {
  return {.before =
              [this](const Snapshot& snapshot, const io::CheckpointHeader& header) {
                if (const std::string name = first_not_finite(snapshot); !name.empty())
                  diverged(fmt::format("{} is no longer finite", name), header.iteration);
                if (leads()) log_->sync();  // the checkpoint relies on these rows
              },
          .saved =
              [this](const std::filesystem::path& path) {
                console_.line(fmt::format("Saved checkpoint to {}", path.string()));
              },
          .waiting =
              [this](bool own) {
                watchdog_.answered(own ? "is writing a checkpoint"
                                       : "has written its part of a checkpoint");
              }};
}

/// Saves weights on which all replicas agree; the checkpoint is written while training continues.
void Run::save(std::int64_t done) {
  if (!writer_) return;
  (void)note_replaced(*inputs_.train, bad_training_);
  check_weights(done);
  const Watchdog::Disk disk(watchdog_, "is writing a checkpoint");
  Together(world_).lead([this] {
    require_place();
    keep_configuration();
  });
  last_save_ = Clock::now();
  writer_->begin(header_of(done), {.keep = config_.max_checkpoints_to_keep,
                                   .validated = validated_,
                                   .keep_best = config_.keep_best});
}

void Run::settle() {
  if (!writer_) return;
  const Watchdog::Disk disk(watchdog_, "is writing a checkpoint");
  writer_->settle();
}

/// Errors: Peer if replicas differ, naming the last good checkpoint: every checkpoint was written
/// from weights on which all replicas agreed. Collective.
void Run::check_weights(std::int64_t done) {
  if (config_.pipeline.ranks.replicas == 1 || done == checked_) return;
  checked_ = done;
  try {
    session_->check_replicas();
  } catch (const Error& error) {
    world_.fail_together();  // all ranks know the sums
    settle();
    fail(error.kind(), "iteration {}: {}{}", done, error.what(), sound_checkpoint());
  }
}

/// On rank 0, a clause about the newest checkpoint that verifies.
std::string Run::sound_checkpoint() const {
  if (!leads() || !writer_) return {};
  try {
    std::vector<std::string> damaged;
    return fmt::format("; the last checkpoint, {}, is good: restore it on other hardware",
                       io::open_newest(checkpoints(), damaged).path().string());
  } catch (const Error&) {
    return "; there is no good checkpoint";
  }
}

/// Reports the cost of checkpoints and the best interval between them.
void Run::report_checkpoints() {
  if (!writer_ || !config_.saves_on_the_way()) return;
  if (const std::string text = describe(writer_->costs()); !text.empty()) console_.line(text);
}

/// Returns false if a signal interrupted it. Weights older than the `newest` may have no finite
/// loss.
bool Run::validate_now(std::int64_t done, const std::string& name, bool newest) {
  const ValidationWatch watch{.cancelled =
                                  [this] {
                                    meet();
                                    return received_ != 0;
                                  },
                              .say = [this](const std::string& text) { console_.line(text); }};
  std::optional<ValidationResult> result =
      evaluate(*session_, config_, world_, inputs_.validation, done, watch);
  if (!result) return false;
  result->name = name;
  if (!std::isfinite(result->loss)) {
    const std::string what = fmt::format("the validation loss became {}", result->loss);
    if (!newest) {  // later weights may be fine
      console_.line(fmt::format("Iteration {}: {}", done, what));
      return true;
    }
    world_.fail_together();
    diverged(what, done);
  }
  if (logs()) log_->report(*result);
  if (name.empty()) validated_[done] = 100.0 * result->top1();
  console_.line(format_line(*result, config_.epoch_after(done)));
  report_replaced(*inputs_.validation, bad_validation_, "validation");
  return true;
}

/// Mode End: validates the checkpoints of the run, except those already validated before an
/// interruption. Returns false if a signal interrupted it.
bool Run::validate_saved() {
  if (config_.run_directory.empty()) return true;
  const Together together(world_);
  const std::set<std::int64_t> done_already = validated();
  std::string listed;
  together.lead([&] {
    for (const std::filesystem::path& path : io::list_checkpoints(checkpoints()))
      listed += path.string() + '\n';
  });
  for (const std::string& path : split_list(world_.broadcast(listed), '\n')) {
    const io::CheckpointReader checkpoint = agreed_checkpoint(world_, path);
    const std::int64_t done = checkpoint.header().iteration;
    if (!is_validation_point(config_, done) || done_already.contains(done)) continue;
    together.run([&] { session_->load(checkpoint); });
    if (!validate_now(done, "", done == config_.iterations)) return false;
  }
  return true;
}

/// Makes the configured averages after the last iteration, and validates them. Returns false if a
/// signal interrupted it.
bool Run::make_averages() {
  const Together together(world_);
  for (const PlannedAverage& average : averages_) {
    std::string written;
    together.lead([&] {
      written = average_checkpoints(checkpoints_at(config_.run_directory, average.iterations),
                                    average.rule, config_.run_directory)
                    .string();
      console_.line(fmt::format("Saved the average of {} checkpoints to {}",
                                average.iterations.size(), written));
    });
    watchdog_.touch();
    written = world_.broadcast(written);
    const std::string& name = average.rule.name;
    if (config_.validation == ValidationMode::None) continue;
    if (validated(name).contains(config_.iterations)) continue;
    const io::CheckpointReader checkpoint = agreed_checkpoint(world_, written);
    together.run([&] { session_->load(checkpoint); });
    if (!validate_now(config_.iterations, name)) return false;
  }
  return true;
}

}  // namespace

Outcome train(const TrainConfig& config, const TrainInputs& inputs, const comm::World& world) {
  return Run(config, inputs, world).fresh();
}

Outcome restore(const TrainConfig& config, const TrainInputs& inputs, const comm::World& world) {
  return Run(config, inputs, world).restored();
}

void validate(
    const TrainConfig& config, const comm::World& world,
    std::shared_ptr<const io::Dataset> validation, const std::filesystem::path& directory,
    const std::function<void(const io::CheckpointHeader&, const ValidationResult&)>& report) {
  const device::Environment environment(config.threads, gpu_of(config, world.rank()));
  Session session(config, Session::Use::Evaluation, world);
  session.allocate();
  io::visit_checkpoints(directory, [&](const io::CheckpointReader& checkpoint) {
    session.load(checkpoint);
    const ValidationWatch watch{.say = [&world](const std::string& text) {
      if (world.rank() == 0) fmt::print(stderr, "{}\n", text);
    }};
    const ValidationResult result =
        evaluate(session, config, world, validation, checkpoint.header().iteration, watch).value();
    if (!std::isfinite(result.loss)) {
      fail(ErrorKind::Numeric, "{}: the validation loss is {}: the training had diverged",
           checkpoint.path().string(), result.loss);
    }
    report(checkpoint.header(), result);
    const std::string replaced =
        format_replaced(std::ssize(validation->replaced()), validation->size(), "validation");
    if (!replaced.empty()) watch.say(replaced);
  });
}

}  // namespace millrace::train
