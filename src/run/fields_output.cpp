// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/field_rows.hpp"

namespace millrace::run {
namespace {

using namespace field_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::string_view kOnTheWay = "validation during the training";

bool validates(const Run& c) { return c.validation != ValidationMode::None; }
bool validates_on_the_way(const Run& c) { return c.validation == ValidationMode::All; }
bool validates_by_epochs(const Run& c) { return validates(c) && !c.validating.every_iterations; }
bool keeps(const Run& c) { return c.logging.keeps; }
bool saves_by_epochs(const Run& c) { return keeps(c) && !c.saving.every; }
bool saves_on_the_way(const Run& c) { return saves_by_epochs(c) && !c.saving.only_last; }
bool is_supervised(const Run& c) { return keeps(c) && c.layout.elastic; }
/// Whether its directory gets a name.
bool is_named(const Run& c) { return keeps(c) && c.logging.place.empty(); }

/// "500", "500updates", "0.5epochs", "10minutes".
CheckpointInterval parse_interval(const Setting& given) {
  const auto& text = text_of(given);
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
         given.where, text, kMost);
  using Unit = CheckpointInterval::Unit;
  return {.unit = minutes  ? Unit::Minutes
                  : epochs ? Unit::Epochs
                           : Unit::Updates,
          .number = *number};
}
std::optional<Value> print_interval(const std::optional<CheckpointInterval>& interval) {
  if (!interval) return std::nullopt;
  using Unit = CheckpointInterval::Unit;
  return Value(fmt::format("{}{}", interval->number,
                           interval->unit == Unit::Minutes  ? "minutes"
                           : interval->unit == Unit::Epochs ? "epochs"
                                                            : ""));
}

void set_averaged_epochs(const Setting& given, Run& c) {
  for (const double epochs : std::get<std::vector<double>>(given.value)) {
    if (epochs != std::floor(epochs))
      fail(ErrorKind::Usage, "{}: {} is not a whole number of epochs", given.where, epochs);
    c.averaging.last_epochs.push_back(static_cast<std::int64_t>(epochs));
  }
}
std::optional<Value> averaged_epochs(const Run& c) {
  const std::vector<std::int64_t>& epochs = c.averaging.last_epochs;
  if (epochs.empty()) return std::nullopt;
  return Value(std::vector<double>(epochs.begin(), epochs.end()));
}

/// What says how often lines are logged: one of three options.
enum class LogBy { Epoch, Updates, Report };
LogBy logged_by(const Run& c) {
  if (c.logging.per_epoch) return LogBy::Epoch;
  if (c.logging.every) return LogBy::Updates;
  if (c.logging.per_report) return LogBy::Report;
  return c.length.iterations ? LogBy::Updates : LogBy::Epoch;
}
template <LogBy by>
bool logs_by(const Run& c) {
  return logged_by(c) == by;
}

constexpr std::string_view kRunDirectory = "a run directory (no `no-logs`)";

void add_validation(FieldTable& table) {
  const Rows row(table, Section::Validation, kTrainings, kOutput);
  row("validation-mode", choice("all|end|none"), "IPU",
      "validate during training, all saved checkpoints but ckpt-0 after training, or never",
      commands(kTrainings | kPlan), main_option(), sets<&Run::validation>());
  row("no-validation", flag(), "IPU", "same as `validation-mode` none",
      commands(kTrainings | kPlan), changes([](const Setting& given, Run& c) {
        if (flag_of(given)) c.validation = ValidationMode::None;
      }),
      says<&Run::validation>());
  row("epochs-between-evals", integer(at_least(1)), "Habana",
      "epochs between validations; the end of the run is always validated", unit("epochs"),
      needs("validation"), harmless(), when(validates_by_epochs),
      sets<&ValidationRequest::every_epochs>(), yields<&Run::validate_every>());
  row("iterations-between-evals", integer(between(1, 1e15)), "Habana, NVIDIA",
      "weight updates between validations", unit("weight updates"), needs("validation"), harmless(),
      when(validates), sets<&ValidationRequest::every_iterations>());
  row("early-stop", integer(between(0, 1e6)), "millrace",
      "stop when this many validations in a row were no better than the best one before them; 0: "
      "never",
      default_text("never"), unit("validations"), needs(kOnTheWay), when(validates_on_the_way),
      sets<&Run::early_stop>(), if_given());
  row("stop-threshold", real(above_zero_to(1.0)), "Habana",
      "stop when the top-1 accuracy of a validation reaches this fraction", default_text("never"),
      needs(kOnTheWay), when(validates_on_the_way), sets<&Run::stop_threshold>(), if_given());
  row("valid-batch-size", integer(at_least(1)), "IPU", "images per micro-batch in validation",
      default_text("`batch-size`"), unit("images"), needs("validation"), harmless(),
      commands(kTrainings | kPlan | set_of(Command::Validate)), when(validates),
      sets<&ValidationRequest::batch_size>(), yields<&Run::validation_batch_size>());
  row("max-eval-steps", integer(at_least(0)), "Habana",
      "validate only N micro-batches of the validation images, evenly spaced ones of class "
      "folders; 0: all. Restarts keep it; millrace validate takes all images unless it has the "
      "option itself",
      default_text("all images"), unit("micro-batches"), needs("validation"), harmless(),
      commands(kTrainings | set_of(Command::Validate)), when(validates),
      sets<&ValidationRequest::most_batches>());
}

void add_checkpoint(FieldTable& table) {
  const Rows row(table, Section::Checkpoint, kTrainings, kOutput,
                 {needs(kRunDirectory), when(keeps)});
  row("ckpts-per-epoch", integer(at_least(0)), "IPU",
      "number of checkpoints per epoch; 0 saves only the final one", unit("checkpoints"),
      harmless(), when(saves_on_the_way), sets<&CheckpointRequest::per_epoch>());
  row("checkpoint-every", text("N[updates|epochs|minutes]"), "millrace",
      "interval between checkpoints: weight updates (500, 500updates), epochs (0.5epochs) or "
      "wall-clock time (10minutes)",
      alias("save-checkpoint-steps"), main_option(),
      written<&CheckpointRequest::every>(parse_interval, print_interval),
      yields<&Run::checkpoint_every, &Run::checkpoint_minutes>());
  row("partner-every", integer(between(0, 1e15)), "millrace",
      "weight updates between snapshots in the memory of two hosts each, from which a run goes on "
      "that has lost one of them; 0: none",
      default_text("none"), unit("weight updates"), needs("`elastic`"), when(is_supervised),
      commands(kContinues), sets<&Run::partner_every>(), if_given());
  row("disable-checkpoints", flag(), "Habana", "save only the final checkpoint", harmless(),
      when(saves_by_epochs), sets<&CheckpointRequest::only_last>());
  row("max-ckpts-to-keep", integer(at_least(0)), "IPU",
      "maximum number of checkpoints to keep besides the newest validated one; 0 keeps all",
      default_text("1; 2 with `elastic`; all with `validation-mode` end"), unit("checkpoints"),
      harmless(), sets<&CheckpointRequest::keep>(), yields<&Run::max_checkpoints_to_keep>());
  row("keep-best", flag(), "millrace", "also keep the checkpoint with the best validation accuracy",
      sets<&Run::keep_best>());
  row("weight-avg-N", reals("N ..", at_least(1)), "IPU",
      "after training, also save the mean of the checkpoints of the last N epochs", unit("epochs"),
      records(averaged_epochs), changes(set_averaged_epochs),
      says<&AveragingConfig::last_epochs>());
  row("weight-avg-exp", reals("X ..", between_zero_and_one()), "IPU",
      "after training, also save the moving average of all checkpoints with decay X",
      sets<&AveragingConfig::decays>(), if_given());
  row("export-dir", path("DIR"), "NVIDIA, Habana",
      "after training, also write the network to this folder: for ONNX, and for h5py. RUN_DIR/NAME "
      "stands for a folder in the run directory",
      default_text("nothing is written"), sets<&CheckpointRequest::export_folder>(), if_given());
  row("ckpt-all-instances", flag(), "IPU 2.0", "every worker saves checkpoints",
      idle("all replicas have the same weights; each stage saves its part once"), needs(""));
}

void add_log(FieldTable& table) {
  const Rows row(table, Section::Log, kTrainings, kOutput);
  row("log-dir", path("DIR"), "IPU", "directory in which the run directory is created",
      by_default("logs"), commands(kTrain), when(is_named),
      records([](const Run& c) -> std::optional<Value> {
        if (c.logging.directory.empty()) return std::nullopt;
        return Value(c.logging.directory);
      }),
      changes([](const Setting& given, Run& c) { c.logging.directory = text_of(given); }),
      says<&LogRequest::directory>());
  row("name-suffix", text("TEXT"), "IPU", "text to append to the name of the run directory",
      commands(kTrain), when(is_named), sets<&LogRequest::suffix>(), if_given());
  row("logs-per-epoch", integer(at_least(1)), "IPU", "number of log lines per epoch",
      default_text("16 with `epochs`"), unit("lines"), when(logs_by<LogBy::Epoch>), set_first(),
      sets<&LogRequest::per_epoch>(), records([](const Run& c) {
        return Value(c.logging.per_epoch.value_or(LogRequest::kLinesPerEpoch));
      }));
  row("log-freq", integer(at_least(1)), "IPU",
      "weight updates between log lines, instead of `logs-per-epoch`",
      default_text("500 with `iterations`"), unit("weight updates"), when(logs_by<LogBy::Updates>),
      set_first(), sets<&LogRequest::every>(), records([](const Run& c) {
        return Value(c.logging.every.value_or(LogRequest::kUpdatesPerLine));
      }),
      yields<&Run::log_every>());
  row("enable-tensorboard", flag(), "Habana",
      "write event files for TensorBoard, with the run's settings for its HParams tab",
      needs(kRunDirectory), when(keeps), sets<&LogRequest::tensorboard>(), if_given(),
      yields<&Run::tensorboard>());
  row("summary-every", integer(at_least(1)), "Habana",
      "weight updates between the numbers in event files, which are then those of one update; "
      "implies `enable-tensorboard`",
      default_text("at every log line, the means since the line before"), unit("weight updates"),
      needs(kRunDirectory), when(keeps), sets<&LogRequest::summary_every>(),
      yields<&Run::summary_every>());
  row("log-all-instances", flag(), "IPU 2.0", "every worker writes logs",
      idle("rank 0 writes the logs of all replicas"));
}

}  // namespace

void add_output_fields(FieldTable& table) {
  add_validation(table);
  add_checkpoint(table);
  add_log(table);
}

}  // namespace millrace::run
