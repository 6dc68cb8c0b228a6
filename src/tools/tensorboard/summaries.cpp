// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/text.hpp"
#include "tools/tensorboard/event_file.hpp"
#include "train/progress.hpp"
#include "train/summaries.hpp"

namespace millrace::training {
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

/// The event files of a run: training in the run directory, validations in `eval` below it, as
/// Habana's Keras trainer lays them out and with its tags. Accuracies are fractions. The step is
/// the number of weight updates. Errors: Io.
class EventFiles final : public Summaries {
 public:
  EventFiles(const run::Run& config, std::optional<std::int64_t> restored)
      : training_(prepared(config.run_directory, restored), restored) {
    if (config.validation != run::ValidationMode::None)
      validation_.emplace(config.run_directory / kValidations, restored);
    io::begin_session(training_, hparams_of(config));
  }

  void add(const TrainRow& row) override {
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

  void add(const ValidationResult& result) override {
    if (!validation_) return;
    const std::string behind = result.name.empty() ? "" : "/" + result.name;
    const std::array<io::Scalar, 4> scalars = {
        io::Scalar{"test_loss" + behind, result.loss},
        {"test_accuracy" + behind, result.top1()},
        {"test_accuracy_5" + behind, result.top5()},
        {"images_per_second" + behind, result.images_per_second()}};
    validation_->add(result.iteration, scalars);
  }

  void end(std::int64_t done, double seconds) override {
    const std::array<io::Scalar, 1> scalars = {io::Scalar{"time_to_train", seconds}};
    training_.add(done, scalars);
    io::end_session(training_, done);
  }

  void sync() const override {
    training_.sync();
    if (validation_) validation_->sync();
  }

 private:
  io::EventFile training_;
  std::optional<io::EventFile> validation_;
};

std::unique_ptr<Summaries> open_event_files(const run::Run& config,
                                            std::optional<std::int64_t> restored) {
  return std::make_unique<EventFiles>(config, restored);
}

}  // namespace
}  // namespace millrace::training

namespace millrace::tools {

void add_tensorboard(training::Guests& guests) { guests.summaries = training::open_event_files; }

}  // namespace millrace::tools
