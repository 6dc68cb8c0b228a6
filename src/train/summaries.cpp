// SPDX-License-Identifier: Apache-2.0
#include "train/summaries.hpp"

#include <fmt/format.h>

#include <array>
#include <string>

#include "core/text.hpp"
#include "io/events/hparams.hpp"
#include "train/progress.hpp"

namespace millrace::train {
namespace {

constexpr const char* kValidations = "eval";

/// What people compare runs by.
io::HParams hparams_of(const run::Run& config) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  const pipeline::PipelinePlan& plan = config.pipeline;
  io::HParams all = {
      {"model", fmt::format("{}-{}", config.model.model, config.model.size)},
      {"dataset", config.data.dataset},
      {"image_size", number(config.model.image.h)},
      {"batch_size", number(config.batch_size)},
      {"total_batch_size", number(config.total_batch())},
      {"micro_batches", number(config.micro_batches)},
      {"stages", number(plan.ranges.size())},
      {"replicas", number(plan.ranks.replicas)},
      {"epochs", config.epoch_after(config.iterations)},
      {"optimizer", std::string(millrace::name_of(config.optimiser.kind))},
      {"learning_rate", config.learning_rate.base_rate},
      {"lr_schedule", std::string(curve_name(config.learning_rate.kind))},
      {"warmup_updates", number(config.learning_rate.warmup_iterations)},
      {"weight_decay", config.optimiser.weight_decay},
      {"label_smoothing", config.label_smoothing},
      {"precision", std::string(precision_name(config.precision))},
      {"loss_scaling", config.loss_scaling.initial},
      {"augment", config.data.augment},
      {"seed", number(config.seed)},
      {"threads_per_device", number(config.threads)},
  };
  if (config.optimiser.kind != run::OptimiserKind::Sgd)
    all.emplace_back("momentum", config.optimiser.momentum);
  if (plan.schedule.stages > 1) {
    all.emplace_back("schedule", plan.schedule.name);
    all.emplace_back("splits", join(config.splits, " "));
  }
  return all;
}

/// Cuts the files of an earlier process, before the next one creates its own.
const std::filesystem::path& prepared(const std::filesystem::path& folder,
                                      std::optional<std::int64_t> restored) {
  if (restored) {
    io::cut_event_files(folder, *restored);
    io::cut_event_files(folder / kValidations, *restored);
  }
  return folder;
}

}  // namespace

Summaries::Summaries(const run::Run& config, std::optional<std::int64_t> restored)
    : total_batch_(static_cast<double>(config.total_batch())),
      every_(config.summary_every),
      training_(prepared(config.run_directory, restored), restored) {
  if (config.validation != run::ValidationMode::None)
    validation_.emplace(config.run_directory / kValidations, restored);
  io::begin_session(training_, hparams_of(config));
}

void Summaries::add_training(const TrainRow& row) {
  const double each = row.seconds_per_iteration;
  const std::array<io::Scalar, 7> scalars = {io::Scalar{"train_loss", row.loss},
                                             {"train_accuracy", row.accuracy / 100.0},
                                             {"train_accuracy_top_5", row.top5 / 100.0},
                                             {"learning_rate", row.learning_rate},
                                             {"images_per_second", row.images_per_second},
                                             {"steps_per_second", each > 0.0 ? 1.0 / each : 0.0},
                                             {"loss_scale", row.loss_scale}};
  training_.add(row.iteration, scalars);
}

void Summaries::add(std::int64_t done, const IterationResult& result) {
  if (every_ == 0) return;
  seconds_ += result.seconds;
  ++updates_;
  if (done % every_ != 0) return;
  TrainRow row;
  row.iteration = done;
  row.loss = result.loss;
  row.accuracy = 100.0 * static_cast<double>(result.correct) / total_batch_;
  row.top5 = 100.0 * static_cast<double>(result.correct_top5) / total_batch_;
  row.learning_rate = result.learning_rate;
  row.loss_scale = result.loss_scale;
  row.seconds_per_iteration = seconds_ / static_cast<double>(updates_);
  if (seconds_ > 0.0) row.images_per_second = total_batch_ / row.seconds_per_iteration;
  add_training(row);
  seconds_ = 0.0;
  updates_ = 0;
}

void Summaries::add(const TrainRow& row) {
  if (every_ == 0) add_training(row);
}

void Summaries::add(const ValidationResult& result) {
  if (!validation_) return;
  const std::string behind = result.name.empty() ? "" : "/" + result.name;
  const std::array<io::Scalar, 4> scalars = {
      io::Scalar{"test_loss" + behind, result.loss},
      {"test_accuracy" + behind, result.top1()},
      {"test_accuracy_5" + behind, result.top5()},
      {"images_per_second" + behind, result.images_per_second()}};
  validation_->add(result.iteration, scalars);
}

void Summaries::end(std::int64_t done, double seconds) {
  const std::array<io::Scalar, 1> scalars = {io::Scalar{"time_to_train", seconds}};
  training_.add(done, scalars);
  io::end_session(training_, done);
}

void Summaries::sync() const {
  training_.sync();
  if (validation_) validation_->sync();
}

}  // namespace millrace::train
