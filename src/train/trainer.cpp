// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <span>
#include <system_error>
#include <vector>

#include "core/clock.hpp"
#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/queues.hpp"
#include "run/learning_rate.hpp"
#include "train/agreement.hpp"
#include "train/averaging.hpp"
#include "train/cadence.hpp"
#include "train/checkpoints.hpp"
#include "train/divergence.hpp"
#include "train/kernel_rules.hpp"
#include "train/memory.hpp"
#include "train/reporter.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/stand_ins.hpp"
#include "train/validator.hpp"
#include "train/warm_start.hpp"
#include "train/watchdog.hpp"

namespace millrace::training {
namespace {

/// One process' part of a run, from its first iteration to its last.
class TrainingLoop {
 public:
  TrainingLoop(const run::Run& config, const TrainInputs& inputs, const comm::World& world)
      : config_(config),
        inputs_(inputs),
        world_(world),
        bad_images_(world, *inputs.train, config.data.max_bad_fraction, "training"),
        reporter_(config, world, inputs),
        watchdog_(world.rank(), config.hang_timeout, Watchdog::grace(config.layout.elastic)),
        checkpoints_(config, *inputs.train, world, bad_images_, reporter_, watchdog_),
        validator_(config, inputs, world, reporter_, [this] {
          meet();
          return received_ != 0;
        }) {
    watchdog_.follow(world);
  }

  [[nodiscard]] Outcome fresh();
  [[nodiscard]] Outcome restored();

 private:
  [[nodiscard]] std::int64_t load_newest();
  void prepare(std::int64_t first);
  void prepare_fresh();
  [[nodiscard]] Outcome run_from(std::int64_t first);
  [[nodiscard]] Outcome iterate(std::int64_t first);
  /// Returns false if a signal asks the run to stop.
  [[nodiscard]] bool train_from(std::int64_t first);
  void queue_iteration(const Feeds& feeds);
  void queue_ahead(const Feeds& feeds, std::int64_t stop);
  void finish_iteration();
  /// Whether the device has done no more than the updates whose results are known.
  [[nodiscard]] bool is_settled() const { return queued_ == done_; }
  /// Returns false if a signal interrupted a validation.
  [[nodiscard]] bool after_iteration(std::int64_t done, bool stopping);
  /// Whether the validations so far end the run, and says so.
  [[nodiscard]] bool ends_early(std::int64_t done);
  void meet();
  void plan_averages_again();
  [[nodiscard]] bool make_averages();
  [[nodiscard]] Outcome finish();
  [[nodiscard]] Outcome stopped();
  void report_process();

  const run::Run& config_;
  const TrainInputs& inputs_;
  const comm::World& world_;
  std::optional<Session> session_;
  // These use the session.
  StandInLimit bad_images_;
  Reporter reporter_;
  Watchdog watchdog_;
  Checkpoints checkpoints_;
  Validator validator_;
  std::vector<PlannedAverage> averages_;
  std::int64_t predicted_peak_ = 0;
  std::int64_t done_ = 0;       ///< updates of the run so far
  std::int64_t queued_ = 0;     ///< these, and one more where the host is ahead of the device
  std::exception_ptr failure_;  ///< of an update that was queued ahead
  Timer iteration_;
  bool ended_early_ = false;          ///< before the last update, because of its validations
  int received_ = 0;                  ///< the first signal that a rank is to stop for
  bool save_is_due_ = false;          ///< according to the clock of rank 0
  bool snapshot_is_due_ = false;      ///< since a checkpoint was being written
  std::vector<std::int64_t> shared_;  ///< with all ranks, between two steps
};

// ---- from a configuration to the first step

void TrainingLoop::prepare(std::int64_t first) {
  require_shared(world_, config_.run_directory);
  require_same_kernels(config_, world_);
  averages_ = planned_averages(config_);
  session_.emplace(config_, Session::Use::Training, world_);
  const partition::ProcessMemory forecast =
      forecast_memory(*session_, config_, inputs_, resident_bytes(), &world_);
  reporter_.announce(*session_, inputs_, forecast);
  require_device_memory(forecast, config_, inputs_, world_,
                        first > 0 ? partition::Batch::Fixed : partition::Batch::Open);
  require_memory(forecast, config_, world_, world_.local_size());
  predicted_peak_ = host_peak(forecast);
  allocate(*session_, world_, watchdog_);
  checkpoints_.follow(*session_);
  reporter_.follow(*session_, first);
  validator_.follow(*session_);
  watchdog_.follow(*session_);
}

/// Removes what a run that could not start left. Its directory was empty before; one that the user
/// made through a link stays.
void remove_begun(const run::Run& config) {
  if (config.run_directory.empty()) return;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(config.run_directory, ignored))
    std::filesystem::remove_all(entry.path(), ignored);
  if (!std::filesystem::is_symlink(config.run_directory))
    std::filesystem::remove(config.run_directory, ignored);
}

/// A run that cannot start, for example for lack of memory or because `init-path` does not fit,
/// leaves no directory. After an internal error the directory is kept for its log.
void TrainingLoop::prepare_fresh() {
  try {
    prepare(0);
    session_->initialise(config_.seed);
    if (!config_.initial_weights().empty())
      warm_start(config_, inputs_.files, world_, *session_, &reporter_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Internal && world_.rank() == 0) remove_begun(config_);
    throw;
  }
}

Outcome TrainingLoop::fresh() {
  prepare_fresh();
  FailTogether(world_).lead([&] { reporter_.open_log(); });
  if (due_after(config_, 0).checkpoint) {
    checkpoints_.save(0);
    checkpoints_.settle();  // the run can be restored even if its first step fails
  }
  return run_from(0);
}

/// What wrote a checkpoint. Early versions said "1 threads".
std::string environment_in(const io::CheckpointHeader& header) {
  constexpr std::string_view kEarly = ", 1 threads;";
  std::string text = header.environment;
  if (const std::size_t at = text.find(kEarly); at != std::string::npos)
    text.replace(at, kEarly.size(), ", 1 thread;");
  return text;
}

Outcome TrainingLoop::restored() { return run_from(load_newest()); }

/// The checkpoint's files are closed before the first update: over NFS those that are open stay in
/// a folder that is removed.
std::int64_t TrainingLoop::load_newest() {
  std::vector<std::string> complaints;
  std::string taken;
  {
    const Watchdog::Disk disk(watchdog_, "is saving a snapshot in memory");
    taken = take_snapshot(world_, config_.run_directory, complaints);
  }
  const io::CheckpointReader checkpoint = agreed_newest(world_, config_.run_directory, complaints);
  const io::CheckpointHeader& header = checkpoint.header();
  prepare(header.iteration);
  for (const std::string& complaint : complaints) reporter_.important(complaint);
  if (!taken.empty()) reporter_.line(taken);
  reporter_.line(
      fmt::format("Restoring training from latest checkpoint: {}", checkpoint.path().string()));
  const std::string before = environment_in(header);
  if (const std::string here = environment_of(config_); before != here) {
    reporter_.important(
        fmt::format("The checkpoint was written with {}; this machine has {}: the continuation "
                    "agrees to rounding, not bit for bit.",
                    before, here));
  } else if (config_.allow_nondeterministic) {
    reporter_.important(
        "Sums may have another order than in the interrupted run (`allow-nondeterministic`): the "
        "continuation agrees to rounding, not bit for bit.");
  }
  const FailTogether together(world_);
  together.run([&] {
    checkpoints_.require_same_data(checkpoint);
    session_->load(checkpoint);
  });
  bad_images_.resume(epoch_of(config_, header.iteration), header.stand_ins);
  together.lead([&] {
    reporter_.continue_log(header);
    if (!taken.empty()) checkpoints_.retire();
  });
  return header.iteration;
}

// ---- the loop

/// A checkpoint that is being written is finished however the training ends, if all ranks are still
/// there.
Outcome TrainingLoop::run_from(std::int64_t first) {
  try {
    const Outcome outcome = iterate(first);
    checkpoints_.release();
    FailTogether(world_).lead([&] { reporter_.summarise(outcome == Outcome::Finished, done_); });
    return outcome;
  } catch (const Error&) {
    const bool together = world_.size() == 1 || world_.failing_together();
    try {
      if (together) checkpoints_.settle();
    } catch (const Error&) {
      // Report the first error.
    }
    throw;
  }
}

Outcome TrainingLoop::iterate(std::int64_t first) {
  done_ = queued_ = first;
  if (!validator_.make_up_for(first)) return stopped();
  if (first >= config_.iterations) {
    reporter_.line(
        fmt::format("The run has completed all of its {}.", counted(config_.iterations, "update")));
    return finish();
  }
  if (ends_early(first)) return finish();
  checkpoints_.reserve();
  checkpoints_.restart_clock();
  reporter_.begin_training();
  const bool complete = train_from(first);
  checkpoints_.settle();
  reporter_.report_pipeline();
  reporter_.report_bad_images(*inputs_.train, "training");
  checkpoints_.report_costs();
  return complete ? finish() : stopped();
}

bool TrainingLoop::train_from(std::int64_t first) {
  const Feeds feeds = session_->feeder().training(inputs_.train, first * config_.total_batch());
  const std::int64_t stop = config_.stop_after ? first + *config_.stop_after : config_.iterations;
  while (done_ < config_.iterations) {
    if (is_settled()) {
      iteration_ = Timer();
      queue_iteration(feeds);
    }
    queue_ahead(feeds, stop);
    finish_iteration();
    // A run that ends because of too many bad images can be restored where it ended.
    checkpoints_.save_if_failing(
        done_, [&] { bad_images_.check(session_->stand_ins(), epoch_of(config_, done_ - 1)); });
    meet();
    const bool asked = received_ != 0 || done_ >= stop;
    const bool stopping = done_ < config_.iterations && asked && is_settled();
    if (!after_iteration(done_, stopping)) return false;
    if (ended_early_) return true;
    if (stopping) return false;
    if (failure_) std::rethrow_exception(failure_);
  }
  return true;
}

/// Adds the place to an error of a single rank.
void TrainingLoop::queue_iteration(const Feeds& feeds) {
  try {
    const double rate = run::learning_rate_at(config_.learning_rate, queued_, config_.iterations);
    session_->queue_step(feeds, queued_, rate, reporter_.times_kernels(queued_ + 1));
    ++queued_;
  } catch (const Error& error) {
    if (world_.size() == 1) throw;
    const pipeline::CurrentAction at = session_->executor().recording().current();
    // Numeric errors name their place already.
    if (at.replica < 0 || error.kind() == ErrorKind::Numeric) throw;
    throw Error(error.kind(),
                fmt::format("replica {}, stage {}: {}", at.replica, at.action.stage, error.what()));
  }
}

/// Queues one more update, so that the device has work while the host looks at the results of the
/// one before: unless the weights in between are to be validated or saved, now or because somebody
/// asks for it. If that fails, the results of the one before come first.
void TrainingLoop::queue_ahead(const Feeds& feeds, std::int64_t stop) {
  const Due due = due_after(config_, queued_);
  if (!session_->may_queue_ahead() || due.validate || due.checkpoint || due.snapshot ||
      snapshot_is_due_ || save_is_due_ || received_ != 0 || queued_ >= stop ||
      queued_ >= config_.iterations)
    return;
  try {
    queue_iteration(feeds);
  } catch (const Error&) {
    failure_ = std::current_exception();
  }
}

void TrainingLoop::finish_iteration() {
  IterationResult result;
  result.learning_rate = run::learning_rate_at(config_.learning_rate, done_, config_.iterations);
  result.loss_scale = session_->scaling().scale;
  const StepResult step = session_->finish_step();
  const pipeline::MicroBatchMetrics& metrics = step.metrics;
  ++done_;
  result.skipped = session_->scaling().skipped;
  reporter_.add_step(done_, iteration_.seconds());
  if (config_.weight_check_every > 0 && done_ % config_.weight_check_every == 0)
    checkpoints_.compare_replicas(done_);
  result.loss = metrics.loss / static_cast<double>(metrics.samples);
  result.correct = metrics.top1;
  result.correct_top5 = metrics.top5;
  result.seconds = iteration_.seconds();
  iteration_ = Timer();
  require_convergence(
      config_, world_, session_->scaling(), result.loss, done_,
      [&] { return session_->first_not_finite(); }, reporter_);
  reporter_.add_iteration(done_, result);
  if (inputs_.callbacks.after_update)
    inputs_.callbacks.after_update(
        {.iteration = done_,
         .loss = result.loss,
         .accuracy = static_cast<double>(metrics.top1) / static_cast<double>(metrics.samples),
         .learning_rate = result.learning_rate,
         .seconds = result.seconds,
         .skipped = step.skipped});
}

bool TrainingLoop::after_iteration(std::int64_t done, bool stopping) {
  const Due due = due_after(config_, done);
  if (due.log) reporter_.end_row(done);
  reporter_.show_progress();
  // Validate first, so that a checkpoint comes after all rows before it. A process that was told to
  // stop saves at once instead; a restore then makes up for the validation.
  bool validated = true;
  if (due.validate)
    checkpoints_.save_if_failing(done, [&] { validated = validator_.validate(done); });
  const bool ends = due.validate && validated && done < config_.iterations && ends_early(done);
  if (ends && !due.log) reporter_.end_row(done);
  if (due.checkpoint || (save_is_due_ && is_settled()) || stopping || !validated || ends)
    checkpoints_.save(done);
  else if ((due.snapshot || snapshot_is_due_) && is_settled())
    snapshot_is_due_ = !checkpoints_.keep_in_memory(done);
  return validated;
}

bool TrainingLoop::ends_early(std::int64_t done) {
  const std::string why =
      world_.broadcast(world_.rank() == 0 ? reason_to_stop(config_, reporter_.accuracies()) : "");
  ended_early_ = !why.empty();
  if (ended_early_)
    reporter_.important(
        fmt::format("The run ends after {} of {} updates: {}", done, config_.iterations, why));
  return ended_early_;
}

/// Shares between two steps what each rank knows alone: signals it received (so that all save the
/// same step), the progress of its part of a checkpoint, the clock of rank 0, and how busy its
/// devices were. Collective.
void TrainingLoop::meet() {
  constexpr std::size_t kShared = 3;
  const bool due = world_.rank() == 0 && checkpoints_.is_due();
  const BusyShares& busy = reporter_.busy();
  shared_.assign(kShared + busy.devices(), 0);
  shared_[0] = inputs_.stop_asked ? inputs_.stop_asked() : 0;
  shared_[1] = checkpoints_.progress();
  shared_[2] = due ? 1 : 0;
  busy.own(std::span(shared_).subspan(kShared));
  world_.maximum(shared_);
  reporter_.add_busy(done_, std::span(shared_).subspan(kShared));
  if (received_ == 0) received_ = static_cast<int>(shared_[0]);
  save_is_due_ = shared_[2] != 0;
  checkpoints_.advance(shared_[1]);
}

// ---- after the last iteration

/// The averages of a run that ends here. Those of more epochs than it has are left out.
void TrainingLoop::plan_averages_again() {
  run::Run ended = config_;
  ended.iterations = done_;
  averages_.clear();
  try {
    averages_ = planned_averages(ended);
  } catch (const Error& error) {
    reporter_.important(fmt::format("No average is made: {}", error.what()));
  }
}

/// Makes the configured averages, and validates them. Returns false if a signal interrupted it.
bool TrainingLoop::make_averages() {
  if (ended_early_) plan_averages_again();
  if (!averages_.empty()) checkpoints_.release();  // averages need memory, too
  for (const PlannedAverage& average : averages_) {
    std::string written;
    FailTogether(world_).lead([&] {
      std::vector<std::string> complaints;
      const std::vector<std::filesystem::path> sound = io::sound_checkpoints(
          checkpoints_at(config_.run_directory, average.iterations), complaints);
      for (const std::string& complaint : complaints)
        reporter_.important(complaint + "; it is left out of the average");
      if (sound.empty()) return;
      written = average_checkpoints(sound, average.rule, config_.run_directory).string();
      reporter_.line(fmt::format("Saved {} to {}", describe_average(sound), written));
    });
    watchdog_.touch();
    written = world_.broadcast(written);
    if (written.empty() || config_.validation == run::ValidationMode::None) continue;
    if (!validator_.validate_average(average.rule.name, written, done_)) return false;
  }
  return true;
}

Outcome TrainingLoop::finish() {
  if (config_.validation == run::ValidationMode::End && !validator_.validate_saved())
    return stopped();
  if (config_.averaging.ema_decay > 0.0) checkpoints_.save_ema(done_, *session_);
  if (!make_averages()) return stopped();
  reporter_.report_scaling(session_->scaling());
  report_process();
  return Outcome::Finished;
}

/// A signal or `stop-after` ended the run before its last update, or before its last validation.
Outcome TrainingLoop::stopped() {
  report_process();
  return received_ == SIGINT ? Outcome::Interrupted : Outcome::Preempted;
}

void TrainingLoop::report_process() {
  const std::int64_t peak = peak_resident_bytes();
  const std::string more = peak > predicted_peak_ ? fmt::format(": {} more than predicted",
                                                                human_bytes(peak - predicted_peak_))
                                                  : "";
  reporter_.line_by_rank(fmt::format("Process peak: {} ({} predicted), {} of {} bytes{}",
                                     human_bytes(peak), human_bytes(predicted_peak_), peak,
                                     predicted_peak_, more));
  if constexpr (device::kHasGraphs) {
    const pipeline::KeptCount kept = session_->executor().kept();
    reporter_.line_by_rank(
        fmt::format("Launches: {} parts of steps are one launch each, {} could not be kept",
                    kept.kept, kept.refused));
  }
}

}  // namespace

Outcome train(const run::Run& config, const TrainInputs& inputs, const comm::World& world) {
  return TrainingLoop(config, inputs, world).fresh();
}

Outcome restore(const run::Run& config, const TrainInputs& inputs, const comm::World& world) {
  return TrainingLoop(config, inputs, world).restored();
}

}  // namespace millrace::training
