// SPDX-License-Identifier: Apache-2.0
//
// What the commands of `millrace data` share: the images that their options name.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/data/packed_images.hpp"

namespace millrace::cli {

/// `data convert`, which has a file of its own.
int command_data_convert(const Invocation& invocation);

/// --threads; 0: one for each core.
[[nodiscard]] unsigned threads_of(const Patch& options);

[[nodiscard]] io::OpenOptions open_options(const Invocation& invocation, io::Split split);

/// --split.
[[nodiscard]] std::vector<io::Split> asked_splits(const Patch& options);

/// Errors: Usage, with this reason, for options given on the command line that nothing reads.
void refuse_idle(const Patch& options, std::initializer_list<std::string_view> names,
                 std::string_view reason);

/// Opens a set and prints its notices. Errors: as io::open_image_dataset().
[[nodiscard]] std::unique_ptr<io::ImageDataset> open_set(
    const std::filesystem::path& directory, io::Split split, const Invocation& invocation,
    io::PackedFile packed = io::PackedFile::Counts);

}  // namespace millrace::cli
