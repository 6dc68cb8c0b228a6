// SPDX-License-Identifier: Apache-2.0
#include "train/validator.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "train/agreement.hpp"
#include "train/averaging.hpp"
#include "train/cadence.hpp"
#include "train/divergence.hpp"
#include "train/progress.hpp"
#include "train/setup.hpp"
#include "train/stand_ins.hpp"
#include "train/trainer.hpp"
#include "train/watchdog.hpp"

namespace millrace::training {
namespace {

/// Where the progress of a validation is reported; see ValidationProgress.
struct Reports {
  ValidationProgress::Report say;
  ValidationProgress::Report show;
};

/// One pass over the data set. Returns nothing if `cancelled` returned true before all images were
/// seen.
std::optional<ValidationResult> evaluate(Session& session, const run::Run& config,
                                         const comm::World& world,
                                         const std::shared_ptr<const io::Dataset>& dataset,
                                         const std::function<bool()>& cancelled,
                                         const Reports& reports,
                                         std::span<pipeline::ClassCounts> by_class = {}) {
  const Timer timer;
  const Feeds feeds = session.feeder().validation(dataset);
  StandInLimit limit(world, *dataset, config.data.max_bad_fraction, "validation");
  ValidationProgress progress(dataset->size(), 0.0, reports.say, reports.show);
  const pipeline::MicroBatchMetrics m = session.evaluate(
      feeds, dataset->size(),
      [&](std::int64_t seen) {
        progress.seen(seen, timer.seconds());
        limit.check(session.stand_ins(), 0);
        return cancelled();
      },
      {}, by_class);
  limit.check(session.stand_ins(), 0);
  if (m.samples < dataset->size()) return std::nullopt;
  ValidationResult result;
  result.images = m.samples;
  result.replaced = limit.in_epoch();
  result.batches = (m.samples + config.validation_batch_size - 1) / config.validation_batch_size;
  result.correct_top1 = m.top1;
  result.correct_top5 = m.top5;
  result.loss = m.loss / static_cast<double>(m.samples);
  result.seconds = timer.seconds();
  return result;
}

}  // namespace

Validator::Validator(const run::Run& config, const TrainInputs& inputs, const comm::World& world,
                     Reporter& reporter, std::function<bool()> interrupted)
    : config_(config),
      dataset_(inputs.validation),
      set_images_(inputs.validation_set_size),
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
  result->checkpoint = checkpoint_of(done);
  result->set_images = set_images_;
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

/// The checkpoint of this update: it is there, or follows the validation at once.
std::string Validator::checkpoint_of(std::int64_t done) const {
  std::string name = fmt::format("ckpt-{}", done);
  const std::filesystem::path& run = config_.run_directory;
  const bool saved = !run.empty() && (due_after(config_, done).checkpoint ||
                                      std::filesystem::exists(run / "checkpoints" / name));
  return saved ? name : "";
}

bool Validator::make_up_for(std::int64_t done) {
  if (done == 0 || !due_after(config_, done).validate || config_.run_directory.empty()) return true;
  return (validated("").contains(done) || validate(done, "", true)) &&
         (validated(ema_name(config_)).contains(done) || validate_ema(done, true));
}

bool Validator::validate_ema(std::int64_t done, bool newest) {
  if (config_.averaging.ema_decay == 0.0) return true;
  session_->exchange_averages();
  bool goes_on = true;
  try {
    goes_on = validate(done, ema_name(config_), newest);
  } catch (...) {
    session_->exchange_averages();  // the weights may be saved yet
    throw;
  }
  session_->exchange_averages();
  return goes_on;
}

/// Iterations in validation.csv, as rank 0 reads it.
std::set<std::int64_t> Validator::validated(const std::string& name) const {
  std::string listed;
  FailTogether(world_).lead([&] {
    for (const auto& [done, accuracy] : read_accuracies(config_.run_directory, name))
      listed += fmt::format("{},", done);
  });
  std::set<std::int64_t> iterations;
  for (const std::string& done : split_list(world_.broadcast(listed)))
    iterations.insert(parse_number<std::int64_t>(done).value());
  return iterations;
}

void Validator::load(const io::CheckpointReader& checkpoint) {
  FailTogether(world_).run([&] { session_->load(checkpoint); });
}

bool Validator::validate_saved() {
  if (config_.run_directory.empty()) return true;
  const std::set<std::int64_t> done_already = validated("");
  const bool averages = config_.averaging.ema_decay > 0.0;
  const std::set<std::int64_t> averages_already = validated(ema_name(config_));
  std::string listed;
  FailTogether(world_).lead([&] {
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
    const bool own = !done_already.contains(done);
    const bool average = averages && !averages_already.contains(done);
    if (!is_validated_saved(config_, done) || !(own || average)) continue;
    load(checkpoint);
    const bool newest = done == config_.iterations;
    if (own && !validate(done, "", newest)) return false;
    if (average && !validate_ema(done, newest)) return false;
  }
  return true;
}

bool Validator::validate_average(const std::string& name, const std::string& path,
                                 std::int64_t done) {
  const std::string agreed = world_.broadcast(path);
  if (validated(name).contains(done)) return true;
  load(agreed_checkpoint(world_, agreed));
  return validate(done, name, true);
}

namespace {

/// Validates what a session has loaded, on its own and not during a training.
class Examination {
 public:
  Examination(const run::Run& config, const comm::World& world,
              std::shared_ptr<const io::Dataset> dataset, const ValidationReport& report,
              const std::function<void(std::string_view)>& tell)
      : config_(config),
        world_(world),
        dataset_(std::move(dataset)),
        report_(report),
        session_(config, Session::Use::Evaluation, world),
        watchdog_(world.rank(), config.hang_timeout),
        // Lines go to standard error, because standard output holds the results.
        console_(tell      ? Console(tell, {})
                 : leads() ? Console(stderr, stderr, terminal_of(stderr), {})
                           : Console::silent()) {
    if (config.verbosity == run::Verbosity::Quiet) console_.quieten();
    watchdog_.follow(world);
    allocate(session_, world_, watchdog_);
    watchdog_.follow(session_);
  }

  void of_untrained_weights(const io::ForeignFiles& files) {
    session_.initialise(config_.seed);
    if (const std::filesystem::path from = config_.initial_weights(); io::is_network_file(from))
      FailTogether(world_).run(
          [&] { session_.tensors().begin_with(files.open_network(from), from, {}); });
    examine({}, "");
  }
  void of_checkpoints(const std::filesystem::path& directory);

 private:
  [[nodiscard]] bool leads() const { return world_.rank() == 0; }
  void examine(const io::CheckpointHeader& header, const std::filesystem::path& checkpoint);

  const run::Run& config_;
  const comm::World& world_;
  std::shared_ptr<const io::Dataset> dataset_;
  const ValidationReport& report_;
  Session session_;
  Watchdog watchdog_;  // uses the session
  Console console_;
};

void Examination::of_checkpoints(const std::filesystem::path& directory) {
  io::CheckpointWalk walk(directory);
  for (;;) {
    std::optional<io::CheckpointReader> checkpoint;
    {
      const Watchdog::Disk disk(watchdog_, "is reading a checkpoint");
      checkpoint = agreed_next(world_, walk);
      if (!checkpoint) return;
      FailTogether(world_).run([&] { session_.load(*checkpoint); });
    }
    examine(checkpoint->header(), checkpoint->path());
  }
}

void Examination::examine(const io::CheckpointHeader& header,
                          const std::filesystem::path& checkpoint) {
  std::vector<pipeline::ClassCounts> by_class(static_cast<std::size_t>(config_.model.classes));
  ValidationResult result =
      evaluate(
          session_, config_, world_, dataset_, [] { return false; },
          {[this](const std::string& text) { console_.line(text); },
           [this](const std::string& text) { console_.status(text, process_seconds()); }},
          by_class)
          .value();
  result.iteration = header.iteration;
  result.checkpoint = checkpoint.filename().string();
  if (!std::isfinite(result.loss)) {
    world_.fail_together();
    fail(ErrorKind::Numeric, "{}: the validation loss is {}: the training had diverged",
         checkpoint.empty() ? "untrained weights" : checkpoint.string(), result.loss);
  }
  console_.clear_status();
  FailTogether(world_).run([&] { report_(header, result, by_class); });
  double replaced_here[] = {static_cast<double>(dataset_->replaced().size())};
  world_.add(replaced_here);
  const std::string replaced =
      format_replaced(static_cast<std::int64_t>(replaced_here[0]), dataset_->size(), "validation");
  if (leads() && !replaced.empty()) console_.important(replaced);
}

}  // namespace

void validate(const run::Run& config, const comm::World& world,
              std::shared_ptr<const io::Dataset> validation, const std::filesystem::path& directory,
              const ValidationReport& report, const io::ForeignFiles& files,
              const std::function<void(std::string_view)>& tell) {
  Examination examination(config, world, std::move(validation), report, tell);
  if (directory.empty())
    examination.of_untrained_weights(files);
  else
    examination.of_checkpoints(directory);
}

}  // namespace millrace::training
