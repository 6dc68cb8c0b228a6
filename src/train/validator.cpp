// SPDX-License-Identifier: Apache-2.0
#include "train/validator.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "train/agreement.hpp"
#include "train/cadence.hpp"
#include "train/divergence.hpp"
#include "train/progress.hpp"
#include "train/setup.hpp"
#include "train/stand_ins.hpp"
#include "train/trainer.hpp"

namespace millrace::train {
namespace {

/// Where the progress of a validation is reported; see ValidationProgress.
struct Reports {
  ValidationProgress::Report say;
  ValidationProgress::Report show;
};

/// One pass over the data set. Returns nothing if `cancelled` returned true before all images were
/// seen.
std::optional<ValidationResult> evaluate(Session& session, const TrainConfig& config,
                                         const comm::World& world,
                                         const std::shared_ptr<const io::Dataset>& dataset,
                                         const std::function<bool()>& cancelled,
                                         const Reports& reports) {
  const Timer timer;
  const Feeds feeds = session.feeder().validation(dataset);
  StandInLimit limit(world, *dataset, config.data.max_bad_fraction, "validation");
  ValidationProgress progress(dataset->size(), 0.0, reports.say, reports.show);
  const pipeline::MicroBatchMetrics m =
      session.evaluate(feeds, dataset->size(), [&](std::int64_t seen) {
        progress.seen(seen, timer.seconds());
        limit.check(session.stand_ins(), 0);
        return cancelled();
      });
  limit.check(session.stand_ins(), 0);
  if (m.samples < dataset->size()) return std::nullopt;
  ValidationResult result;
  result.images = m.samples;
  result.batches = (m.samples + config.validation_batch_size - 1) / config.validation_batch_size;
  result.correct_top1 = m.top1;
  result.correct_top5 = m.top5;
  result.loss = m.loss / static_cast<double>(m.samples);
  result.seconds = timer.seconds();
  return result;
}

}  // namespace

Validator::Validator(const TrainConfig& config, std::shared_ptr<const io::Dataset> dataset,
                     const comm::World& world, Reporter& reporter,
                     std::function<bool()> interrupted)
    : config_(config),
      dataset_(std::move(dataset)),
      world_(world),
      reporter_(reporter),
      interrupted_(std::move(interrupted)) {}

bool Validator::validate(std::int64_t done, const std::string& name, bool newest) {
  std::optional<ValidationResult> result =
      evaluate(*session_, config_, world_, dataset_, interrupted_,
               {[this](const std::string& text) { reporter_.line(text); },
                [this](const std::string& text) { reporter_.show(text); }});
  if (!result) return false;
  result->iteration = done;
  result->name = name;
  if (!std::isfinite(result->loss)) {
    const std::string what = fmt::format("the validation loss became {}", result->loss);
    if (!newest) {  // later weights may be fine
      reporter_.important(fmt::format("Update {}: {}", done, what));
      return true;
    }
    world_.fail_together();
    fail_diverged(config_, what, done);
  }
  reporter_.add_validation(*result);
  reporter_.report_bad_images(*dataset_, "validation");
  return true;
}

bool Validator::make_up_for(std::int64_t done) {
  if (done == 0 || !due_after(config_, done).validate || config_.run_directory.empty()) return true;
  return validated("").contains(done) || validate(done);
}

/// Iterations in validation.csv, as rank 0 reads it.
std::set<std::int64_t> Validator::validated(const std::string& name) const {
  std::string listed;
  Together(world_).lead([&] {
    for (const auto& [done, accuracy] : read_accuracies(config_.run_directory, name))
      listed += fmt::format("{},", done);
  });
  std::set<std::int64_t> iterations;
  for (const std::string& done : split_list(world_.broadcast(listed)))
    iterations.insert(parse_number<std::int64_t>(done).value());
  return iterations;
}

void Validator::load(const io::CheckpointReader& checkpoint) {
  Together(world_).run([&] { session_->load(checkpoint); });
}

bool Validator::validate_saved() {
  if (config_.run_directory.empty()) return true;
  const std::set<std::int64_t> done_already = validated("");
  std::string listed;
  Together(world_).lead([&] {
    std::vector<std::string> complaints;
    for (const std::filesystem::path& path : io::sound_checkpoints(
             io::list_checkpoints(config_.run_directory / "checkpoints"), complaints))
      listed += path.string() + '\0';
    for (const std::string& complaint : complaints)
      reporter_.important(complaint + "; it is not validated");
  });
  for (const std::string& path : split_list(world_.broadcast(listed), '\0')) {
    const io::CheckpointReader checkpoint = agreed_checkpoint(world_, path);
    const std::int64_t done = checkpoint.header().iteration;
    if (!is_validation_point(config_, done) || done_already.contains(done)) continue;
    load(checkpoint);
    if (!validate(done, "", done == config_.iterations)) return false;
  }
  return true;
}

bool Validator::validate_average(const std::string& name, const std::string& path) {
  const std::string agreed = world_.broadcast(path);
  if (validated(name).contains(config_.iterations)) return true;
  load(agreed_checkpoint(world_, agreed));
  return validate(config_.iterations, name, true);
}

void validate(
    const TrainConfig& config, const comm::World& world,
    std::shared_ptr<const io::Dataset> validation, const std::filesystem::path& directory,
    const std::function<void(const io::CheckpointHeader&, const ValidationResult&)>& report) {
  Session session(config, Session::Use::Evaluation, world);
  session.allocate();
  // Lines go to standard error, because standard output holds the results.
  const bool leads = world.rank() == 0;
  Console console(leads ? stderr : nullptr, stderr, leads ? terminal_of(stderr) : Terminal{}, {});
  if (config.verbosity == Verbosity::Quiet) console.quieten();
  const auto say = [&console](const std::string& text) { console.line(text); };
  const auto show = [&console](const std::string& text) {
    console.status(text, process_seconds());
  };
  io::visit_checkpoints(directory, [&](const io::CheckpointReader& checkpoint) {
    session.load(checkpoint);
    ValidationResult result =
        evaluate(session, config, world, validation, [] { return false; }, {say, show}).value();
    result.iteration = checkpoint.header().iteration;
    if (!std::isfinite(result.loss)) {
      fail(ErrorKind::Numeric, "{}: the validation loss is {}: the training had diverged",
           checkpoint.path().string(), result.loss);
    }
    console.clear_status();
    report(checkpoint.header(), result);
    const std::string replaced =
        format_replaced(std::ssize(validation->replaced()), validation->size(), "validation");
    if (!replaced.empty()) console.important(replaced);
  });
}

}  // namespace millrace::train
