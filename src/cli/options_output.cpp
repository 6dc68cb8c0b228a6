// SPDX-License-Identifier: Apache-2.0
#include "cli/option_rows.hpp"

namespace millrace::cli {
namespace {

using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::string_view kRunDirectory = "a run directory (no --no-logs)";

void add_validation(OptionTable& table) {
  Rows rows(table, Section::Validation, kTrainings, kMayChange);
  rows.choice("validation-mode", "all|end|none", "IPU",
              "validate during training, the saved checkpoints after training, or never")
      .by_default("all");
  rows.flag("no-validation", "IPU", "same as --validation-mode none");
  rows.integer("epochs-between-evals", "N", at_least(1), "Habana",
               "epochs between validations; the end of the run is always validated")
      .by_default(std::int64_t{1})
      .unit("epochs")
      .needs("validation");
  rows.integer("iterations-between-evals", "N", between(1, 1e15), "Habana, NVIDIA",
               "weight updates between validations")
      .unit("weight updates")
      .needs("validation");
  rows.integer("valid-batch-size", "N", at_least(1), "IPU", "images per micro-batch in validation")
      .default_text("--batch-size")
      .unit("images")
      .needs("validation")
      .commands(kTrainings | set_of(Command::Validate));
}

void add_checkpoint(OptionTable& table) {
  Rows rows(table, Section::Checkpoint, kTrainings, kMayChange);
  rows.integer("ckpts-per-epoch", "N", at_least(0), "IPU",
               "number of checkpoints per epoch; 0 saves only the final one")
      .by_default(std::int64_t{1})
      .unit("checkpoints")
      .needs(kRunDirectory);
  rows.text("checkpoint-every", "N[steps|epochs|minutes]", "millrace",
            "interval between checkpoints: weight updates (500, 500steps), epochs (0.5epochs) or "
            "wall-clock time (10minutes)")
      .needs(kRunDirectory);
  rows.flag("disable-checkpoints", "Habana", "save only the final checkpoint").needs(kRunDirectory);
  rows.integer(
          "max-ckpts-to-keep", "N", at_least(0), "IPU",
          "maximum number of checkpoints to keep besides the newest validated one; 0 keeps all")
      .default_text("1; all with --validation-mode end")
      .unit("checkpoints")
      .needs(kRunDirectory);
  rows.flag("keep-best", "millrace", "also keep the checkpoint with the best validation accuracy")
      .needs(kRunDirectory);
  rows.reals("weight-avg-N", "N ..", at_least(1), "IPU",
             "after training, also save the mean of the checkpoints of the last N epochs")
      .unit("epochs")
      .needs(kRunDirectory);
  rows.reals("weight-avg-exp", "X ..", between_zero_and_one(), "IPU",
             "after training, also save the moving average of all checkpoints with decay X")
      .needs(kRunDirectory);
  rows.flag("ckpt-all-instances", "IPU 2.0", "every worker saves checkpoints")
      .idle("all replicas have the same weights; each stage saves its part once");
}

void add_log(OptionTable& table) {
  Rows rows(table, Section::Log, kTrainings, kMayChange);
  rows.path("log-dir", "DIR", "IPU", "directory in which the run directory is created")
      .by_default("logs")
      .commands(kPlacesRun);
  rows.text("name-suffix", "TEXT", "IPU", "text to append to the name of the run directory")
      .commands(kPlacesRun);
  rows.integer("logs-per-epoch", "N", at_least(1), "IPU", "number of log lines per epoch")
      .default_text("16 with --epochs")
      .unit("lines");
  rows.integer("log-freq", "N", at_least(1), "IPU",
               "weight updates between log lines, instead of --logs-per-epoch")
      .default_text("500 with --iterations")
      .unit("weight updates");
  rows.flag("log-all-instances", "IPU 2.0", "every worker writes logs")
      .idle("rank 0 writes the logs of all replicas");
}

}  // namespace

void add_output_options(OptionTable& table) {
  add_validation(table);
  add_checkpoint(table);
  add_log(table);
}

}  // namespace millrace::cli
