// SPDX-License-Identifier: Apache-2.0
#include "train/reporter.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "run/learning_rate.hpp"
#include "train/agreement.hpp"
#include "train/cadence.hpp"
#include "train/kernel_rules.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"

namespace millrace::training {
namespace {

std::filesystem::path log_path(const run::Run& config) {
  return config.run_directory.empty() ? std::filesystem::path{} : config.run_directory / "log.txt";
}

/// Passes on the lines of a text.
template <class Take>
void each_line(std::string_view text, const Take& take) {
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find('\n');
    take(text.substr(0, end));
    if (end != std::string_view::npos) text.remove_prefix(end + 1);
  }
}

}  // namespace

Reporter::Reporter(const run::Run& config, const comm::World& world, const TrainInputs& inputs)
    : config_(config),
      world_(world),
      voice_(inputs.voice),
      callbacks_(inputs.callbacks),
      open_summaries_(inputs.summaries),
      console_(world.rank() != 0            ? Console::silent()
               : callbacks_.tell != nullptr ? Console(callbacks_.tell, log_path(config))
                                            : Console(log_path(config))),
      summary_rows_(config) {
  if (config.verbosity == run::Verbosity::Quiet) console_.quieten();
}

void Reporter::follow(const Session& session, std::int64_t first) {
  first_iteration_ = first;
  statistics_.emplace(session.executor());
  busy_.emplace(session.executor());
  const pipeline::PipelinePlan& plan = config_.pipeline;
  slow_.emplace(plan.is_joint() ? pipeline::RankMap{.devices = plan.places()} : plan.ranks);
  if (config_.trace.empty()) return;
  // Fails before any work is done. What is there stays until the new trace is complete.
  FailTogether(world_).lead([&] { (void)io::StagedFile(config_.trace); });
  const auto [begin, end] = trace_window(config_, first);
  trace_.emplace(session.executor(), config_.trace_detail, begin, end);
}

void Reporter::announce(const Session& session, const TrainInputs& inputs,
                        const partition::ProcessMemory& forecast) {
  set_images_ = inputs.validation_set_size;
  hosts_ = world_.gather(host_name());
  each_line(format_start(config_, inputs.command_line, session.graph()),
            [this](std::string_view text) { console_.line(text); });
  for (const std::string& notice : inputs.notices) important(notice);
  for (const std::string& text : inputs.details) line(text);
  line(fmt::format("Device: {}", environment_of(config_)));
  for (const std::string& text : describe_computing(config_)) line(text);
  for (const std::string& text : describe_kernel_rules(config_)) important(text);
  line_by_rank(
      fmt::format("Memory: {} on the device, process peak {}, including {} to read images "
                  "({} and {} bytes)",
                  human_bytes(session.arena_bytes()), human_bytes(host_peak(forecast)),
                  human_bytes(forecast.loader), session.arena_bytes(), host_peak(forecast)));
}

void Reporter::add_busy(std::int64_t done, std::span<const std::int64_t> thousandths) {
  if (thousandths.empty()) return;
  busy_->add(thousandths);
  if (world_.rank() != 0) return;
  const pipeline::RankMap& map = config_.pipeline.ranks;
  for (const SlowDevice& found : slow_->add(thousandths)) {
    const bool parts = config_.pipeline.is_joint();
    const int rank = parts ? found.device : map.rank_of(found.replica, found.device);
    const std::string text = fmt::format(
        "{} (rank {}{}) {} over the last {} updates: {:.1f} times the median of the other {}",
        hosts_.at(static_cast<std::size_t>(rank)), rank,
        parts ? "" : fmt::format(": replica {}, device {}", found.replica, found.device),
        found.slow ? "is slow" : "is no longer slow", SlowDevices::kWindow, found.factor,
        parts ? "ranks" : "replicas");
    important(text);
    if (log_) log_->note(done, text);
    if (config_.layout.elastic) keep_speed(rank, found.slow ? found.factor : 1.0);
  }
}

/// For the next start: `rank` takes `factor` times as long as the others with the work it was
/// given.
void Reporter::keep_speed(int rank, double factor) {
  std::vector<double> given = config_.layout.rank_speeds;
  if (given.empty()) given.assign(static_cast<std::size_t>(config_.pipeline.ranks.ranks), 1.0);
  if (speeds_.empty()) speeds_ = given;
  const auto at = static_cast<std::size_t>(rank);
  speeds_[at] = given[at] / factor;
  if (const std::string trouble = keep_speeds(config_.run_directory, speeds_); !trouble.empty())
    important("The next start will not know how fast the ranks are: " + trouble);
}

void Reporter::saved(const std::filesystem::path& checkpoint) {
  saving_.clear();
  line(fmt::format("Saved checkpoint to {}", checkpoint.string()));
  if (callbacks_.after_checkpoint) callbacks_.after_checkpoint(checkpoint);
}

void Reporter::line_by_rank(const std::string& text) {
  const std::vector<std::string> texts = world_.gather(text);
  for (std::size_t r = 0; r < texts.size(); ++r)
    line(texts.size() == 1 ? texts[r] : fmt::format("Rank {}: {}", r, texts[r]));
}

void Reporter::open_log() {
  log_.emplace(config_);
  if (config_.tensorboard) summaries_ = open_summaries_(config_, std::nullopt);
}

void Reporter::continue_log(const io::CheckpointHeader& checkpoint) {
  log_.emplace(config_, checkpoint.iteration,
               parse_partial_row(checkpoint.log_state, checkpoint.iteration));
  if (config_.tensorboard) summaries_ = open_summaries_(config_, checkpoint.iteration);
  accuracies_ = read_accuracies(config_.run_directory);
  for (const std::string& notice : log_->take_notices()) important(notice);
  // Changed options also apply to later restarts.
  io::write_file_atomically(config_.run_directory / "config.toml", config_file_text(config_));
}

void Reporter::begin_training() {
  training_ = Timer();
  if (log_)
    line("In the lines of steps, loss and accuracies are running means over the last epoch.");
}

void Reporter::add_step(std::int64_t done, double seconds) {
  // The first step pages memory in, so it is left out unless it is the only one.
  if (done - 1 > first_iteration_ || done == config_.iterations) statistics_->add(seconds);
  if (trace_) trace_->add(done);
}

void Reporter::add_iteration(std::int64_t done, const IterationResult& result) {
  if (log_) log_->add(result);
  if (summaries_)
    if (const std::optional<TrainRow> row = summary_rows_.add(done, result)) summaries_->add(*row);
  const double elapsed = training_.seconds();
  const double each = elapsed / static_cast<double>(done - first_iteration_);
  const auto batch = static_cast<double>(config_.total_batch());
  progress_ = {.iteration = done,
               .loss = result.loss,
               .top1 = static_cast<double>(result.correct) / batch,
               .images_per_second = batch / each,
               .seconds_left = each * static_cast<double>(config_.iterations - done),
               .busy = busy_->shares(),
               .saving = saving_};
  if (done - 1 == first_iteration_ && !due_after(config_, done).log)
    line(format_first_update(config_, done, result));
}

void Reporter::end_row(std::int64_t done) {
  if (!log_) return;
  const TrainRow row = log_->report(done);
  if (summaries_ && config_.summary_every == 0) summaries_->add(row);
  line(format_line(row));
  for (const std::string& notice : log_->take_notices()) important(notice);
}

void Reporter::add_validation(const ValidationResult& result) {
  if (log_) log_->report(result);
  if (summaries_) summaries_->add(result);
  if (result.name.empty()) {
    const std::string anew = format_other_images(accuracies_, result);
    if (!anew.empty()) line(anew);
    accuracies_[result.iteration] = {.percent = 100.0 * result.top1(), .images = result.images};
  }
  line(format_line(result, config_.epoch_after(result.iteration)));
  if (callbacks_.after_validation) callbacks_.after_validation(told(result));
}

Validated told(const ValidationResult& result) {
  return {.iteration = result.iteration,
          .name = result.name,
          .loss = result.loss,
          .top1 = result.top1(),
          .top5 = result.top5(),
          .images = result.images,
          .seconds = result.seconds};
}

std::string Reporter::log_state() const { return log_ ? to_json(log_->partial()) : ""; }

void Reporter::sync() {
  if (log_) log_->sync();
  if (summaries_) summaries_->sync();
}

std::int64_t Reporter::note_bad_images(const io::Dataset& dataset, const std::string& use) {
  std::set<std::string>& known = bad_images_[use];
  for (const std::string& lines : world_.gather(join(dataset.replaced(), "\n")))
    for (const std::string& line : split_list(lines, '\n'))
      if (!line.empty() && known.insert(line).second) {
        const std::string text =
            fmt::format("Bad image, replaced by another of its class: {}", line);
        callbacks_.tell ? console_.important(text) : console_.keep(text);
      }
  return std::ssize(known);
}

void Reporter::report_bad_images(const io::Dataset& dataset, const std::string& use) {
  const std::string text = format_replaced(note_bad_images(dataset, use), dataset.size(), use);
  if (!text.empty()) important(text);
}

void Reporter::write_trace(const PipelineReport& report) const {
  if (config_.trace.extension() == ".svg")
    trace_->draw(world_, report, config_.trace);
  else
    trace_->write(world_, config_.trace);
}

void Reporter::report_pipeline() {
  const PipelineReport report = statistics_->report(world_);
  if (trace_ && trace_->steps() > 0) {
    write_trace(report);
    line(fmt::format("Saved trace to {}", config_.trace.string()));
  } else if (trace_) {  // that of an earlier process stays
    line(fmt::format("No trace was written to {}: no weight update of this process is in its range",
                     config_.trace.string()));
  }
  const pipeline::PipelinePlan& plan = config_.pipeline;
  if (plan.places() == 1) return;
  if (report.steps == 0) return;
  bubble_ = report.measured_bubble;
  each_line(to_text(report, plan), [this](std::string_view text) { line(text); });
}

void Reporter::summarise(bool finished, std::int64_t done) {
  if (!log_) return;
  log_->end(done, finished);
  if (summaries_ && finished) summaries_->end(done, log_->total_seconds());
  Summary summary = {
      .finished = finished,
      .iteration = done,
      .iterations = config_.iterations,
      .seconds = log_->total_seconds(),
      .images_per_second = log_->images_per_second(),
      .bubble = bubble_,
      .restored = first_iteration_ > 0,
      .takes_turns = !config_.pipeline.is_joint() && config_.pipeline.ranks.most_devices() > 1,
      .accuracies = accuracies_,
      .set_images = set_images_,
      .run_directory = config_.run_directory};
  if (!config_.run_directory.empty()) {
    const auto saved = io::list_checkpoints(config_.run_directory);
    if (!saved.empty()) summary.checkpoint = saved.back().filename().string();
    if (voice_.next) summary.next = voice_.next(config_.run_directory, finished);
  }
  each_line(format_summary(summary), [this](std::string_view text) { console_.important(text); });
}

void Reporter::report_scaling(const ScalingState& scaling) {
  const bool dynamic = config_.loss_scaling.kind == run::ScalingKind::Dynamic;
  if (scaling.skipped == 0 && !dynamic) return;
  important(fmt::format(
      "Skipped updates: {} of {} (gradients or batch statistics not finite), final loss scale {:g}",
      scaling.skipped, config_.iterations, scaling.scale));
  if (scaling.skipped_in_row > 0 && !std::isfinite(progress_.loss))
    important(
        fmt::format("The loss of the last update was {}: the weights may be of no use; lower {} "
                    "and start again",
                    progress_.loss, run::field_of_rate(config_)));
}

}  // namespace millrace::training
