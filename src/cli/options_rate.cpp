// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cli/option_table.hpp"

namespace millrace::cli {
namespace {

using enum ValueType;
using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::array kOptions = std::to_array<OptionSpec>({
    // Optimiser
    {.name = "optimiser",
     .alias = "optimizer",
     .section = Section::Optimiser,
     .type = Choice,
     .value_name = "SGD|momentum",
     .default_text = "SGD",
     .help = "rule of the weight update",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "momentum",
     .section = Section::Optimiser,
     .type = Real,
     .value_name = "X",
     .default_text = "0.9",
     .range = from_zero_below(1.0),
     .help = "coefficient of momentum",
     .needs = "--optimiser momentum",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "weight-decay",
     .section = Section::Optimiser,
     .type = Real,
     .value_name = "X",
     .default_text = "1e-6 for CIFAR, 1e-4 for ImageNet",
     .range = between(0.0, 1.0),
     .help = "added to the gradient times the weight; 0 is none. ImageNet: not for beta and gamma",
     .mathematics = kChanges,
     .commands = kRuns},

    // Learning rate
    {.name = "base-learning-rate",
     .section = Section::Rate,
     .type = Real,
     .value_name = "X",
     .default_text = "-6 for CIFAR; ImageNet: -8 SGD, -11 momentum",
     .unit = "power of 2",
     .range = between(-60.0, 20.0),
     .help = "exponent: the learning rate is 2^X times the total batch",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "lr-schedule",
     .section = Section::Rate,
     .type = Choice,
     .value_name = "stepped|cosine",
     .default_text = "stepped",
     .help = "how the learning rate falls",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "learning-rate-decay",
     .section = Section::Rate,
     .type = Real,
     .value_name = "X",
     .default_text = "0.1",
     .range = {.low = 0.0, .high = 1.0, .low_end = Range::Low::Excluded},
     .help = "factor of the learning rate at every step of the schedule",
     .needs = "--lr-schedule stepped",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "learning-rate-schedule",
     .section = Section::Rate,
     .type = RealList,
     .value_name = "X,X,..",
     .default_text = "0.5,0.75 for CIFAR, 0.3,0.6,0.8,0.9 for ImageNet",
     .unit = "fractions of the run",
     .range = between(0.0, 1.0),
     .help = "where the learning rate steps down",
     .needs = "--lr-schedule stepped",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "warmup-epochs",
     .section = Section::Rate,
     .type = Real,
     .value_name = "X",
     .default_text = "5",
     .unit = "epochs",
     .range = between(0.0, 1e6),
     .help = "time over which the learning rate rises from 0; 0 is none",
     .needs = "--epochs (a run of --iterations has no warm-up)",
     .mathematics = kChanges,
     .commands = kTrainings},
});

}  // namespace

std::span<const OptionSpec> rate_options() { return kOptions; }

}  // namespace millrace::cli
