// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

/// Refuses options that need a checkpoint in a run without a directory.
void check_nothing_saved(const Reader& read, const train::TrainConfig& config) {
  const Setting* stop = read.options().find("stop-after");
  if (stop != nullptr)
    fail(ErrorKind::Usage,
         "{} saves a checkpoint, but --no-logs saves nothing: leave one of them out", stop->where);
  if (config.validation == train::ValidationMode::End)
    fail(ErrorKind::Usage,
         "--validation-mode end validates saved checkpoints, but --no-logs saves nothing: validate "
         "with mode all, or leave --no-logs out");
}

/// Averages of checkpoints to compute after training.
void resolve_averaging(Reader& read, train::AveragingConfig& averaging) {
  if (read.given("weight-avg-N"))
    for (const double epochs : read.reals("weight-avg-N")) {
      if (epochs != std::floor(epochs))
        fail(ErrorKind::Usage, "{}: {} is not a whole number of epochs", read.where("weight-avg-N"),
             epochs);
      averaging.last_epochs.push_back(static_cast<std::int64_t>(epochs));
    }
  if (read.given("weight-avg-exp")) averaging.decays = read.reals("weight-avg-exp");
}

void resolve_keeping_best(Reader& read, train::TrainConfig& config) {
  config.keep_best = read.flag("keep-best");
  if (config.keep_best && config.validation != train::ValidationMode::All)
    fail(ErrorKind::Usage,
         "{} needs validation during training: leave out the option that disables it "
         "(--validation-mode end keeps all checkpoints)",
         read.where("keep-best"));
}

/// "500", "500updates", "0.5epochs", "10minutes".
void resolve_checkpoint_every(Reader& read, train::TrainConfig& config) {
  const std::string text = read.text("checkpoint-every");
  const std::string where = read.where("checkpoint-every");
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const auto number = parse_number<double>(std::string_view(text).substr(0, digits));
  const std::string unit = digits == std::string::npos ? "steps" : text.substr(digits);
  const bool steps = unit == "updates" || unit == "update" || unit == "steps" || unit == "step";
  const bool epochs = unit == "epochs" || unit == "epoch";
  const bool minutes = unit == "minutes" || unit == "minute";
  const bool whole = number && *number == std::floor(*number);
  constexpr double kMost = 1e9;
  if (!number || !(*number > 0.0) || *number > kMost || !(steps || epochs || minutes) ||
      (steps && !whole))
    fail(ErrorKind::Usage,
         "{}: '{}' is not a number of updates, epochs or minutes above 0 and up to {:.0e}; "
         "examples: 500, 500updates, 0.5epochs, 10minutes",
         where, text, kMost);
  if (minutes) {
    config.checkpoint_minutes = *number;
    return;
  }
  const double updates =
      steps ? *number : *number * static_cast<double>(config.iterations_per_epoch);
  config.checkpoint_every = std::max<std::int64_t>(std::llround(updates), 1);
}

/// The validation batch, at most the number of validation images. A larger one would only waste
/// memory. It is the same for any number of replicas, so that its results are.
std::int64_t capped_batch(const Reader& read, std::int64_t wanted, const train::TrainConfig& config,
                          Notices& notices) {
  const std::int64_t images = config.data.validation_size;
  if (wanted <= images || images == 0) return wanted;
  if (const Setting* given = read.options().find("valid-batch-size"))
    notices.push_back(fmt::format("{} {} is reduced to {}, the number of validation images",
                                  given->where, wanted, images));
  return images;
}

void resolve_summaries(Reader& read, train::TrainConfig& config) {
  if (read.options().flag("no-logs")) return;  // the options are then refused
  const bool asked = read.given("enable-tensorboard") && read.flag("enable-tensorboard");
  const bool every = read.given("summary-every");
  if (every) config.summary_every = read.integer("summary-every");
  // Recorded only if given, as of most runs.
  config.tensorboard = every || asked;
}

}  // namespace

void resolve_validation(Reader& read, train::TrainConfig& config, Notices& notices) {
  // --no-validation is another spelling of a mode.
  const std::string_view otherwise = wants_validation(read.options()) ? "all" : "none";
  const std::string mode = read.text("validation-mode", otherwise);
  config.validation = mode == "all"   ? train::ValidationMode::All
                      : mode == "end" ? train::ValidationMode::End
                                      : train::ValidationMode::None;
  config.validation_batch_size = config.batch_size;
  for (const char* name : {"early-stop", "stop-threshold"}) read.apply(name, config);
  if (config.validation == train::ValidationMode::None) return;
  config.validation_batch_size =
      capped_batch(read, read.follower("valid-batch-size", config.batch_size), config, notices);
  if (const std::int64_t most = read.follower("max-eval-steps", 0); most > 0)
    config.data.validation_size = std::min(
        config.data.validation_size,
        checked_product(most, config.validation_batch_size, "validation micro-batches x images"));
  if (read.given("iterations-between-evals")) {
    config.validate_every = read.integer("iterations-between-evals");
    return;
  }
  config.validate_every =
      checked_product(read.integer("epochs-between-evals"), config.iterations_per_epoch,
                      "epochs between validations");
}

void resolve_checkpoints(Reader& read, train::TrainConfig& config, Notices& notices) {
  if (read.options().flag("no-logs")) return check_nothing_saved(read, config);
  resolve_averaging(read, config.averaging);
  if (read.given("export-dir")) (void)read.text("export-dir");  // the command reads it at the end
  const bool averages = config.averaging.of_checkpoints();
  const bool all = config.validation == train::ValidationMode::End || averages;
  config.max_checkpoints_to_keep =
      static_cast<int>(read.follower("max-ckpts-to-keep", all ? 0 : 1));
  resolve_keeping_best(read, config);
  if (read.given("checkpoint-every")) return resolve_checkpoint_every(read, config);
  const bool disabled = read.flag("disable-checkpoints");
  const std::int64_t per_epoch = disabled ? 0 : read.integer("ckpts-per-epoch");
  if (per_epoch > 0)
    config.checkpoint_every = std::max<std::int64_t>(config.iterations_per_epoch / per_epoch, 1);
  else if (all)
    notices.emplace_back(
        "--validation-mode end validates saved checkpoints, but only the final one will be saved");
}

void resolve_logs(Reader& read, train::TrainConfig& config, Notices& notices) {
  resolve_summaries(read, config);
  const bool told = read.given("logs-per-epoch") || read.given("log-freq");
  if (read.given("batches-per-step") && !told) {
    config.log_every = read.integer("batches-per-step");
    return;
  }
  if (read.given("batches-per-step")) {
    read.use("batches-per-step");
    notices.push_back(fmt::format("{} has no effect here: {} sets the interval",
                                  read.where("batches-per-step"),
                                  read.given("log-freq") ? "--log-freq" : "--logs-per-epoch"));
  }
  const bool per_epoch =
      read.given("logs-per-epoch") || (!read.given("log-freq") && !read.given("iterations"));
  config.log_every = per_epoch
                         ? std::max<std::int64_t>(
                               config.iterations_per_epoch / read.integer("logs-per-epoch", 16), 1)
                         : read.integer("log-freq", 500);
}

RunPlace resolve_place(Reader& read) {
  const Options& options = read.options();
  RunPlace place;
  place.logs = !options.flag("no-logs");
  if (!place.logs) return place;
  place.run_directory = options.text("run-dir").value_or("");
  if (!place.run_directory.empty()) return place;
  // Recorded only when given: a restored run already has its directory.
  place.log_directory =
      read.given("log-dir") ? read.text("log-dir") : options.value<std::string>("log-dir");
  if (read.given("name-suffix")) place.suffix = read.text("name-suffix");
  if (place.suffix.find('/') != std::string::npos)
    fail(ErrorKind::Usage,
         "{} '{}' must not contain a '/', because it is part of a directory's name; --log-dir sets "
         "the parent directory",
         options.find("name-suffix")->where, place.suffix);
  return place;
}

}  // namespace millrace::cli
