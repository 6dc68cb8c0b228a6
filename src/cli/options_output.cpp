// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cli/option_table.hpp"

namespace millrace::cli {
namespace {

using enum ValueType;
using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::array kOptions = std::to_array<OptionSpec>({
    // Validation
    {.name = "validation-mode",
     .section = Section::Validation,
     .type = Choice,
     .value_name = "all|end|none",
     .default_text = "all",
     .help = "validate during the training, the saved checkpoints after it, or not at all",
     .commands = kTrainings},
    {.name = "no-validation",
     .section = Section::Validation,
     .type = Flag,
     .default_text = "off",
     .help = "the same as --validation-mode none",
     .commands = kTrainings},
    {.name = "epochs-between-evals",
     .section = Section::Validation,
     .type = Integer,
     .value_name = "N",
     .default_text = "1",
     .unit = "epochs",
     .range = at_least(1),
     .help = "epochs from one validation to the next; the end is always validated",
     .needs = "validation",
     .commands = kTrainings},
    {.name = "valid-batch-size",
     .section = Section::Validation,
     .type = Integer,
     .value_name = "N",
     .default_text = "the batch size",
     .unit = "images",
     .range = at_least(1),
     .help = "images that go through the network at once in validation",
     .needs = "validation",
     .commands = kTrainings | set_of(Command::Validate)},

    // Checkpoint
    {.name = "ckpts-per-epoch",
     .section = Section::Checkpoint,
     .type = Integer,
     .value_name = "N",
     .default_text = "1",
     .unit = "checkpoints",
     .range = at_least(0),
     .help = "checkpoints in an epoch; 0 leaves the final one",
     .needs = "a run directory (no --no-logs)",
     .commands = kTrainings},
    {.name = "disable-checkpoints",
     .section = Section::Checkpoint,
     .type = Flag,
     .default_text = "off",
     .help = "write no checkpoint but the final one",
     .needs = "a run directory (no --no-logs)",
     .commands = kTrainings},
    {.name = "max-ckpts-to-keep",
     .section = Section::Checkpoint,
     .type = Integer,
     .value_name = "N",
     .default_text = "1; all with --validation-mode end",
     .unit = "checkpoints",
     .range = at_least(0),
     .help = "older checkpoints are removed; 0 keeps all",
     .needs = "a run directory (no --no-logs)",
     .commands = kTrainings},

    // Log
    {.name = "log-dir",
     .section = Section::Log,
     .type = Path,
     .value_name = "DIR",
     .default_text = "logs",
     .help = "directory in which a directory for the run is made",
     .commands = kPlacesRun},
    {.name = "name-suffix",
     .section = Section::Log,
     .type = Text,
     .value_name = "TEXT",
     .help = "added to the name of the run's directory",
     .commands = kPlacesRun},
    {.name = "logs-per-epoch",
     .section = Section::Log,
     .type = Integer,
     .value_name = "N",
     .default_text = "16 with --epochs",
     .unit = "lines",
     .range = at_least(1),
     .help = "log points in an epoch",
     .commands = kTrainings},
    {.name = "log-freq",
     .section = Section::Log,
     .type = Integer,
     .value_name = "N",
     .default_text = "500 with --iterations",
     .unit = "weight updates",
     .range = at_least(1),
     .help = "weight updates from one log point to the next, instead of --logs-per-epoch",
     .commands = kTrainings},
});

}  // namespace

std::span<const OptionSpec> output_options() { return kOptions; }

}  // namespace millrace::cli
