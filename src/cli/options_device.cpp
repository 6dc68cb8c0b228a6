// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cli/option_table.hpp"

namespace millrace::cli {
namespace {

using enum ValueType;
using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::array kOptions = std::to_array<OptionSpec>({
    // Device
    {.name = "threads-per-device",
     .section = Section::Device,
     .type = Integer,
     .value_name = "N",
     .default_text = "the cores at hand",
     .unit = "threads",
     .range = between(1, 256),
     .help = "threads that compute; results are equal to the bit only at equal numbers",
     .source = "millrace",
     .commands = kRunsAndValidate | set_of(Command::Doctor)},
    {.name = "xla-recompute",
     .section = Section::Device,
     .type = Flag,
     .default_text = "off",
     .help = "compute activations again in the backward pass instead of keeping them",
     .source = "IPU",
     .commands = kRuns},
    {.name = "recompute-layers",
     .section = Section::Device,
     .type = NameList,
     .value_name = "NAME ..",
     .help = "do so for these layers only; b2 means all of b2/0, b2/1, ..",
     .source = "millrace",
     .commands = kRuns},
    {.name = "batches-per-step",
     .section = Section::Device,
     .type = Integer,
     .value_name = "N",
     .unit = "weight updates",
     .range = at_least(1),
     .help = "weight updates from one report to the next, where neither --log-freq nor "
             "--logs-per-epoch says it",
     .source = "IPU",
     .commands = kRuns},
    {.name = "available-memory-proportion",
     .section = Section::Device,
     .type = NameList,
     .value_name = "X ..",
     .default_text = "no cap",
     .unit = "share of --device-memory, or else of the machine's memory by rank",
     .help =
         "most scratch that a kernel of the vendor's library may take; one number, or two a stage "
         "of a pipeline: of its convolutions and of its products. Where no kernel makes do with "
         "so little, the most frugal is taken",
     .source = "IPU",
     .commands = kRuns},
    {.name = "select-ipus",
     .section = Section::Device,
     .type = NameList,
     .value_name = "N ..",
     .default_text = "AUTO",
     .help =
         "devices to compute on, by number: one for each device of the run, replica by replica, or "
         "the first of as many in a row. Number n is the GPU n of its machine, or else the n-th "
         "set of --threads-per-device cores. A second number for a single device is that of "
         "validation, which runs on the first here",
     .source = "IPU",
     .commands = kRunsAndValidate},
    {.name = "max-cross-replica-buffer-size",
     .section = Section::Device,
     .type = Integer,
     .value_name = "N",
     .unit = "bytes",
     .range = at_least(1),
     .help = "bytes that replicas add up at once",
     .source = "IPU",
     .idle = "the gradients of a stage are added up at once",
     .commands = kRuns},
    {.name = "enable-half-partials",
     .section = Section::Device,
     .type = Flag,
     .help = "accumulate products in 16 bits",
     .source = "IPU",
     .idle = "products are accumulated in float32",
     .commands = kRuns},
    {.name = "disable-variable-offloading",
     .section = Section::Device,
     .type = Flag,
     .help = "keep the optimiser's state on the device",
     .source = "IPU",
     .idle = "it never leaves the device",
     .commands = kRuns},
    {.name = "enable-conv-dithering",
     .section = Section::Device,
     .type = Flag,
     .help = "place convolutions in turn on the tiles of an IPU",
     .source = "IPU",
     .idle = "there are no tiles",
     .commands = kRuns},
    {.name = "internal-exchange-optimisation-target",
     .section = Section::Device,
     .type = Choice,
     .value_name = "balanced|cycles|memory",
     .help = "how the tiles of an IPU exchange data",
     .source = "IPU",
     .idle = "there are no tiles",
     .commands = kRuns},
});

}  // namespace

std::span<const OptionSpec> device_options() { return kOptions; }

}  // namespace millrace::cli
