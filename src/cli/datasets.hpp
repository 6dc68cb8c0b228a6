// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cli/resolve.hpp"
#include "io/dataset.hpp"

namespace millrace::cli {

struct Datasets {
  std::shared_ptr<const io::Dataset> train;
  std::shared_ptr<const io::Dataset> validation;  ///< nullptr when nobody asked for it
  DatasetFacts facts;
};

/// Name of the data set that `directory`, or a folder below it, holds by the names of its files; ""
/// when there is none. Errors: Usage when there are two.
[[nodiscard]] std::string find_dataset(const std::filesystem::path& directory);

/// Opens what a command line asks for. Errors: Data for a set that is missing or damaged, Io.
[[nodiscard]] Datasets open_datasets(const DataRequest& request);

}  // namespace millrace::cli
