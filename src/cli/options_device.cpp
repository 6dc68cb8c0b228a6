// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cli/option_table.hpp"

namespace millrace::cli {
namespace {

using enum ValueType;
using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::array kOptions = std::to_array<OptionSpec>({
    // Device
    {.name = "available-memory-proportion",
     .section = Section::Device,
     .type = NameList,
     .value_name = "X ..",
     .help = "of the IPU trainer; has no effect: the memory of convolutions is planned exactly",
     .commands = kRuns},
    {.name = "batches-per-step",
     .section = Section::Device,
     .type = Integer,
     .value_name = "N",
     .range = at_least(1),
     .help = "of the IPU trainer; has no effect: every weight update is a step of its own",
     .commands = kRuns},
    {.name = "no-stochastic-rounding",
     .section = Section::Device,
     .type = Flag,
     .help = "of the IPU trainer; has no effect: 32-bit weights are not rounded",
     .commands = kRuns},
    {.name = "threads-per-device",
     .section = Section::Device,
     .type = Integer,
     .value_name = "N",
     .default_text = "the cores at hand",
     .unit = "threads",
     .range = between(1, 256),
     .help = "threads that compute; results are equal to the bit only at equal numbers",
     .commands = kRunsAndValidate | set_of(Command::Doctor)},
    {.name = "xla-recompute",
     .section = Section::Device,
     .type = Flag,
     .default_text = "off",
     .help = "compute activations again in the backward pass instead of keeping them",
     .commands = kRuns},
    {.name = "recompute-layers",
     .section = Section::Device,
     .type = NameList,
     .value_name = "NAME ..",
     .help = "do so for these layers only; b2 means all of b2/0, b2/1, ..",
     .commands = kRuns},
});

}  // namespace

std::span<const OptionSpec> device_options() { return kOptions; }

}  // namespace millrace::cli
