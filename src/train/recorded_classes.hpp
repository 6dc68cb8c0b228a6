// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "train/network_facts.hpp"
#include "train/open_run.hpp"

namespace millrace::training {

enum class ImagesFor : std::uint8_t { Training, Validation };

/// What tells the classes of a set apart: "n01443537" of "n01443537 (goldfish)", or the whole names
/// where that would be the same for two classes.
[[nodiscard]] std::vector<std::string> class_keys(const std::vector<std::string>& names);

/// Requires that the images of a run have the classes of the network that was recorded, whatever
/// people call them, and takes the names that only the checkpoint knows. A training must have
/// images of all of them. `checkpoint` is what `known` was recorded in. Errors: Data, naming both.
void match_classes(OpenedRun& run, const NetworkFacts& known,
                   const std::filesystem::path& checkpoint, ImagesFor use);

}  // namespace millrace::training
