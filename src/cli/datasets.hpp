// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/resolve.hpp"
#include "io/data/dataset.hpp"
#include "io/data/parallel.hpp"

namespace millrace::cli {

struct Datasets {
  std::shared_ptr<const io::Dataset> train;       ///< nullptr if not requested
  std::shared_ptr<const io::Dataset> validation;  ///< nullptr if not requested
  DatasetFacts facts;
  std::vector<std::string> notices;  ///< shown once, e.g. bad records that were left out
};

/// Name of the data set in `directory` or a folder below it, judged by file names; "" if there is
/// none. Errors: Data if the directory does not exist; Usage if there are two.
[[nodiscard]] std::string find_dataset(const std::filesystem::path& directory);
/// The same for the folder of these options; also "" if they name the data set, or read no files.
[[nodiscard]] std::string find_dataset(const Patch& options);

/// The user's cache folder; empty if the environment names none.
[[nodiscard]] std::filesystem::path cache_folder();

/// Shows progress in a line on standard error that is rewritten in place. Shows nothing if standard
/// error cannot rewrite lines, or if `quiet`.
[[nodiscard]] io::ProgressCallback progress_line(std::string what, bool quiet);

/// Opens the requested data sets. Errors: Data if one is missing or damaged; Io.
[[nodiscard]] Datasets open_datasets(const DataRequest& request);

}  // namespace millrace::cli
