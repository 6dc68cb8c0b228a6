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
     .default_text = "the rank's share of the cores",
     .unit = "threads",
     .range = between(1, 256),
     .help = "compute threads per device; results are bit-identical only for equal numbers",
     .source = "millrace",
     .commands = kRunsAndValidate | set_of(Command::Doctor)},
    {.name = "xla-recompute",
     .section = Section::Device,
     .type = Flag,
     .default_text = "off",
     .help = "recompute activations in the backward pass instead of keeping them",
     .source = "IPU",
     .commands = kRuns},
    {.name = "recompute-layers",
     .section = Section::Device,
     .type = NameList,
     .value_name = "NAME ..",
     .help = "recompute only these layers; b2 means all of b2/0, b2/1, ..",
     .source = "millrace",
     .commands = kRuns},
    {.name = "batches-per-step",
     .section = Section::Device,
     .type = Integer,
     .value_name = "N",
     .unit = "weight updates",
     .range = at_least(1),
     .help = "weight updates between reports, if neither --log-freq nor --logs-per-epoch is given",
     .source = "IPU",
     .commands = kRuns},
    {.name = "available-memory-proportion",
     .section = Section::Device,
     .type = NameList,
     .value_name = "X ..",
     .default_text = "no limit",
     .unit = "fraction of --device-memory, or else of the machine's memory divided by its ranks",
     .help = "maximum scratch memory of a kernel of the vendor's library; one number, or two per "
             "stage of a pipeline (convolutions, matrix products). If no kernel fits, the one with "
             "the least scratch memory is used",
     .source = "IPU",
     .commands = kRuns},
    {.name = "select-ipus",
     .section = Section::Device,
     .type = NameList,
     .value_name = "N ..",
     .default_text = "AUTO",
     .help = "numbers of the devices to use: one per device of the run, replica by replica, or the "
             "first of consecutive ones. Number n is GPU n of the machine or, without GPUs, its "
             "n-th set of --threads-per-device cores. For a single device, a second number names "
             "that of validation, which runs on the first here",
     .source = "IPU",
     .commands = kRunsAndValidate},
    {.name = "max-cross-replica-buffer-size",
     .section = Section::Device,
     .type = Integer,
     .value_name = "N",
     .unit = "bytes",
     .range = at_least(1),
     .help = "bytes that replicas all-reduce at once",
     .source = "IPU",
     .idle = "the gradients of a stage are all-reduced at once",
     .commands = kRuns},
    {.name = "enable-half-partials",
     .section = Section::Device,
     .type = Flag,
     .help = "accumulate products in 16 bits",
     .source = "IPU",
     .idle = "products are always accumulated in float32",
     .commands = kRuns},
    {.name = "disable-variable-offloading",
     .section = Section::Device,
     .type = Flag,
     .help = "keep the optimizer state on the device",
     .source = "IPU",
     .idle = "the optimizer state never leaves the device",
     .commands = kRuns},
    {.name = "enable-conv-dithering",
     .section = Section::Device,
     .type = Flag,
     .help = "start convolutions on different tiles of an IPU in turn",
     .source = "IPU",
     .idle = "there are no tiles",
     .commands = kRuns},
    {.name = "internal-exchange-optimisation-target",
     .section = Section::Device,
     .type = Choice,
     .value_name = "balanced|cycles|memory",
     .help = "goal of the data exchange between the tiles of an IPU",
     .source = "IPU",
     .idle = "there are no tiles",
     .commands = kRuns},
});

}  // namespace

std::span<const OptionSpec> device_options() { return kOptions; }

}  // namespace millrace::cli
