// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cli/option_table.hpp"

namespace millrace::cli {
namespace {

using enum ValueType;
using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr std::array kOptions = std::to_array<OptionSpec>({
    // Data
    {.name = "dataset",
     .section = Section::Data,
     .type = Choice,
     .value_name = "cifar-10|cifar-100|imagenet",
     .default_text = "told from --data-dir",
     .help = "data set",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "data-dir",
     .section = Section::Data,
     .type = Path,
     .value_name = "DIR",
     .help = "directory of the data set, or one above it",
     .environment = "DATA_DIR",
     .needs = "real data (no --synthetic-data)",
     .commands = kRunsAndValidate},
    {.name = "synthetic-data",
     .section = Section::Data,
     .type = Flag,
     .default_text = "off",
     .help = "one random image over and over, to measure speed; needs --dataset",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "image-size",
     .section = Section::Data,
     .type = Integer,
     .value_name = "N",
     .default_text = "32 for CIFAR, 224 for ImageNet",
     .unit = "pixels",
     .range = between(1, 4096),
     .help = "height and width of the images that the network sees",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "normalise",
     .section = Section::Data,
     .type = Choice,
     .value_name = "standardise|dataset|imagenet",
     .default_text = "standardise",
     .help =
         "CIFAR: each image by its own mean and deviation, or all by those of the training set or "
         "of ImageNet",
     .needs = "a CIFAR data set",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "normalise-input",
     .section = Section::Data,
     .type = Flag,
     .default_text = "off",
     .help =
         "ImageNet: divide by the deviation of the channels instead of only subtracting the mean",
     .needs = "--dataset imagenet",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "train-with-valid-preprocessing",
     .section = Section::Data,
     .type = Flag,
     .default_text = "off",
     .help = "train on images as validation sees them, without augmentation",
     .mathematics = kChanges,
     .commands = kRuns},
    {.name = "pipeline-num-parallel",
     .section = Section::Data,
     .type = Integer,
     .value_name = "N",
     .default_text = "1",
     .unit = "threads",
     .range = between(1, 1024),
     .help = "threads that read and prepare images; the pixels do not depend on it",
     .commands = kRunsAndValidate},
});

}  // namespace

std::span<const OptionSpec> data_options() { return kOptions; }

}  // namespace millrace::cli
