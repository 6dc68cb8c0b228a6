// SPDX-License-Identifier: Apache-2.0
//
// Recipes: the TOML files in the folder configs/, which are found wherever the program is started.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "run/patch.hpp"

namespace millrace::run {

/// The file that `config` names: a path, or the name of a recipe with or without ".toml". Errors:
/// Usage if there is neither, with the recipes that there are.
[[nodiscard]] std::filesystem::path find_config(const std::filesystem::path& given);

/// What is in the file that `given` names: a path, or a recipe as it was when this library was
/// built, wherever the program is. Errors: as find_config() and read_config_file().
[[nodiscard]] Patch read_recipe(const std::filesystem::path& given);

/// The recipes of all folders, by name: configs/ of the working directory, of the installation and
/// of the source tree that the program was built in.
[[nodiscard]] std::vector<std::filesystem::path> recipe_files();

/// Whether `config` names a recipe that validates what another one has trained, and trains nothing.
[[nodiscard]] bool only_validates(const std::filesystem::path& given);

/// Lines about absolute learning rates that the file of `config` has for another total batch than
/// that of `options`, where a rate in proportion would be usual: recipes keep theirs.
[[nodiscard]] std::vector<std::string> rates_of_other_batch(const Patch& options);

/// What `config` list prints: the name of each recipe and what it trains.
[[nodiscard]] std::string recipe_list();

}  // namespace millrace::run
