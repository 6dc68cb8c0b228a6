// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cli/option_table.hpp"

namespace millrace::cli {
namespace {

using enum ValueType;
using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::array kOptions = std::to_array<OptionSpec>({
    // Model (ResNet)
    {.name = "model",
     .section = Section::Model,
     .type = Text,
     .value_name = "NAME",
     .default_text = "resnet",
     .help = "family of networks",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "model-size",
     .section = Section::Model,
     .type = Text,
     .value_name = "SIZE",
     .default_text = "20 for CIFAR, 18 for ImageNet",
     .help = "number of layers, from the family's table of published sizes",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "block",
     .section = Section::Model,
     .type = Choice,
     .value_name = "auto|basic|bottleneck",
     .default_text = "auto",
     .help = "kind of residual block; auto takes that of the published size (56: bottleneck)",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "shortcut",
     .section = Section::Model,
     .type = Choice,
     .value_name = "A|B",
     .default_text = "A for CIFAR, B for ImageNet",
     .help = "where shapes change: A subsamples and adds zero channels, B projects",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "shortcut-pad",
     .section = Section::Model,
     .type = Choice,
     .value_name = "end|both",
     .default_text = "end",
     .help = "where shortcut A adds its zero channels",
     .needs = "--shortcut A",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "batch-norm",
     .section = Section::Model,
     .type = Flag,
     .default_text = "on for CIFAR",
     .help = "batch normalisation",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "group-norm",
     .section = Section::Model,
     .type = Flag,
     .default_text = "on for ImageNet",
     .help = "group normalisation, for small micro-batches",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "groups",
     .section = Section::Model,
     .type = Integer,
     .value_name = "N",
     .default_text = "16 for CIFAR, 32 for ImageNet",
     .range = at_least(1),
     .help = "groups of group normalisation",
     .needs = "--group-norm",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "BN-decay",
     .section = Section::Model,
     .type = Real,
     .value_name = "X",
     .default_text = "0.97",
     .range = from_zero_below(1.0),
     .help = "decay of the running statistics of batch normalisation",
     .needs = "--batch-norm",
     .mathematics = kChanges,
     .commands = kRuns},
});

}  // namespace

std::span<const OptionSpec> model_options() { return kOptions; }

}  // namespace millrace::cli
