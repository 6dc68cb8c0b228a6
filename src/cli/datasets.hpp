// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/resolve.hpp"
#include "io/dataset.hpp"

namespace millrace::cli {

struct Datasets {
  std::shared_ptr<const io::Dataset> train;
  std::shared_ptr<const io::Dataset> validation;  ///< nullptr when nobody asked for it
  DatasetFacts facts;
  std::vector<std::string> notices;  ///< what is to be told once: bad records that were left out
};

/// Name of the data set that `directory`, or a folder below it, holds by the names of its files; ""
/// when there is none. Errors: Usage when there are two.
[[nodiscard]] std::string find_dataset(const std::filesystem::path& directory);

/// The user's folder for what can be made again, or nothing where the environment names none.
[[nodiscard]] std::filesystem::path cache_folder();

/// Opens what a command line asks for. Errors: Data for a set that is missing or damaged, Io.
[[nodiscard]] Datasets open_datasets(const DataRequest& request);

}  // namespace millrace::cli
