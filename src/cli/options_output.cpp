// SPDX-License-Identifier: Apache-2.0
#include "cli/option_rows.hpp"

namespace millrace::cli {
namespace {

using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::string_view kOnTheWay = "validation during the training";

bool validates_on_the_way(const train::TrainConfig& c) {
  return c.validation == train::ValidationMode::All;
}

constexpr std::string_view kRunDirectory = "a run directory (no --no-logs)";

void add_validation(OptionTable& table) {
  const Rows row(table, Section::Validation, kTrainings, kMayChange);
  row("validation-mode", choice("all|end|none"), "IPU",
      "validate during training, all saved checkpoints but ckpt-0 after training, or never",
      by_default("all"), commands(kTrainings | kPlan), main_option());
  row("no-validation", flag(), "IPU", "same as --validation-mode none",
      commands(kTrainings | kPlan));
  row("epochs-between-evals", integer(at_least(1)), "Habana",
      "epochs between validations; the end of the run is always validated", by_default(1),
      unit("epochs"), needs("validation"), harmless());
  row("iterations-between-evals", integer(between(1, 1e15)), "Habana, NVIDIA",
      "weight updates between validations", unit("weight updates"), needs("validation"),
      harmless());
  row("early-stop", integer(between(0, 1e6)), "millrace",
      "stop when this many validations in a row were no better than the best one before them; 0: "
      "never",
      default_text("never"), unit("validations"), needs(kOnTheWay), when(validates_on_the_way),
      sets<&train::TrainConfig::early_stop>(), if_given());
  row("stop-threshold", real(above_zero_to(1.0)), "Habana",
      "stop when the top-1 accuracy of a validation reaches this fraction", default_text("never"),
      needs(kOnTheWay), when(validates_on_the_way), sets<&train::TrainConfig::stop_threshold>(),
      if_given());
  row("valid-batch-size", integer(at_least(1)), "IPU", "images per micro-batch in validation",
      default_text("--batch-size"), unit("images"), needs("validation"), harmless(),
      commands(kTrainings | kPlan | set_of(Command::Validate)));
  row("max-eval-steps", integer(at_least(0)), "Habana",
      "validate only N micro-batches of the validation images, evenly spaced ones of class "
      "folders; 0: all. Restarts keep it; millrace validate takes all images unless it has the "
      "option itself",
      default_text("all images"), unit("micro-batches"), needs("validation"), harmless(),
      commands(kTrainings | set_of(Command::Validate)));
}

void add_checkpoint(OptionTable& table) {
  const Rows row(table, Section::Checkpoint, kTrainings, kMayChange, {needs(kRunDirectory)});
  row("ckpts-per-epoch", integer(at_least(0)), "IPU",
      "number of checkpoints per epoch; 0 saves only the final one", by_default(1),
      unit("checkpoints"), harmless());
  row("checkpoint-every", text("N[updates|epochs|minutes]"), "millrace",
      "interval between checkpoints: weight updates (500, 500updates), epochs (0.5epochs) or "
      "wall-clock time (10minutes)",
      alias("save-checkpoint-steps"), main_option());
  row("disable-checkpoints", flag(), "Habana", "save only the final checkpoint", harmless());
  row("max-ckpts-to-keep", integer(at_least(0)), "IPU",
      "maximum number of checkpoints to keep besides the newest validated one; 0 keeps all",
      default_text("1; all with --validation-mode end"), unit("checkpoints"), harmless());
  row("keep-best", flag(), "millrace",
      "also keep the checkpoint with the best validation accuracy");
  row("weight-avg-N", reals("N ..", at_least(1)), "IPU",
      "after training, also save the mean of the checkpoints of the last N epochs", unit("epochs"));
  row("weight-avg-exp", reals("X ..", between_zero_and_one()), "IPU",
      "after training, also save the moving average of all checkpoints with decay X");
  row("export-dir", path("DIR"), "NVIDIA, Habana",
      "after training, also write the network to this folder: for ONNX, and for h5py. RUN_DIR/NAME "
      "stands for a folder in the run directory",
      default_text("nothing is written"));
  row("ckpt-all-instances", flag(), "IPU 2.0", "every worker saves checkpoints",
      idle("all replicas have the same weights; each stage saves its part once"), needs(""));
}

void add_log(OptionTable& table) {
  const Rows row(table, Section::Log, kTrainings, kMayChange);
  row("log-dir", path("DIR"), "IPU", "directory in which the run directory is created",
      by_default("logs"), commands(kTrain));
  row("name-suffix", text("TEXT"), "IPU", "text to append to the name of the run directory",
      commands(kTrain));
  row("logs-per-epoch", integer(at_least(1)), "IPU", "number of log lines per epoch",
      default_text("16 with --epochs"), unit("lines"));
  row("log-freq", integer(at_least(1)), "IPU",
      "weight updates between log lines, instead of --logs-per-epoch",
      default_text("500 with --iterations"), unit("weight updates"));
  row("enable-tensorboard", flag(), "Habana",
      "write event files for TensorBoard, with the run's settings for its HParams tab",
      needs(kRunDirectory));
  row("summary-every", integer(at_least(1)), "Habana",
      "weight updates between the numbers in event files, which are then those of one update; "
      "implies --enable-tensorboard",
      default_text("at every log line, the means since the line before"), unit("weight updates"),
      needs(kRunDirectory));
  row("log-all-instances", flag(), "IPU 2.0", "every worker writes logs",
      idle("rank 0 writes the logs of all replicas"));
}

}  // namespace

void add_output_options(OptionTable& table) {
  add_validation(table);
  add_checkpoint(table);
  add_log(table);
}

}  // namespace millrace::cli
