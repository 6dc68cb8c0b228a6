// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cli/option_table.hpp"

namespace millrace::cli {
namespace {

using enum ValueType;
using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::array kOptions = std::to_array<OptionSpec>({
    // Train
    {.name = "batch-size",
     .section = Section::Train,
     .type = Integer,
     .value_name = "N",
     .default_text = "32 for CIFAR, 4 for ImageNet",
     .unit = "images",
     .range = at_least(1),
     .help = "micro-batch: images that go through the network at once",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "gradients-to-accumulate",
     .section = Section::Train,
     .type = Integer,
     .value_name = "N",
     .default_text = "1",
     .unit = "micro-batches",
     .range = at_least(1),
     .help = "micro-batches of one weight update and replica",
     .commands = kRuns},
    {.name = "epochs",
     .section = Section::Train,
     .type = Real,
     .value_name = "X",
     .default_text = "160 for CIFAR, 100 for ImageNet",
     .unit = "epochs",
     .range = above_zero(),
     .help = "length of the training",
     .mathematics = kChanges,
     .commands = kTrainings},
    {.name = "iterations",
     .section = Section::Train,
     .type = Integer,
     .value_name = "N",
     .unit = "weight updates",
     .range = {.low = 1, .high = 1e15},
     .help = "length of the training instead of --epochs; without warm-up",
     .mathematics = kChanges,
     .commands = kTrainings},
    {.name = "label-smoothing",
     .section = Section::Train,
     .type = Real,
     .value_name = "X",
     .default_text = "0",
     .range = from_zero_below(1.0),
     .help = "share of the label that is spread over the other classes",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "loss-scaling",
     .section = Section::Train,
     .type = Real,
     .value_name = "X",
     .default_text = "128",
     .range = {.low = 0.0, .high = 16777216.0, .low_end = Range::Low::Excluded},
     .help = "factor of the loss during the backward pass",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "precision",
     .section = Section::Train,
     .type = Choice,
     .value_name = "16.32|32.32",
     .default_text = "16.32",
     .help = "bits of activations and of master weights; 16 means bfloat16 on CPUs",
     .mathematics = kChanges,
     .commands = kRunsAndValidate},
    {.name = "seed",
     .section = Section::Train,
     .type = Integer,
     .value_name = "N",
     .default_text = "0",
     .range = between(0.0, kMaxSeed),
     .help = "start of all random numbers: weights, order of the data, augmentation",
     .mathematics = kChanges,
     .commands = kRuns | set_of(Command::Generate)},
});

}  // namespace

std::span<const OptionSpec> train_options() { return kOptions; }

}  // namespace millrace::cli
