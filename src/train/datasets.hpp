// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/data/dataset.hpp"
#include "io/data/parallel.hpp"
#include "train/resolve.hpp"

namespace millrace::training {

struct Datasets {
  std::shared_ptr<const io::Dataset> train = {};       ///< nullptr if not requested
  std::shared_ptr<const io::Dataset> validation = {};  ///< nullptr if not requested
  DatasetFacts facts = {};
  std::vector<std::string> notices = {};  ///< shown once, e.g. bad records that were left out
};

/// Name of the data set in `directory` or a folder below it, judged by file names; "" if there is
/// none. Errors: Data if the directory does not exist; Usage if there are two.
[[nodiscard]] std::string find_dataset(const std::filesystem::path& directory);
/// The same for the folder of these options; also "" if they name the data set, or read no files.
[[nodiscard]] std::string find_dataset(const Patch& options);

/// The user's cache folder; empty if the environment names none.
[[nodiscard]] std::filesystem::path cache_folder();

/// How data sets tell what they do. What has no function is not told.
struct DataReports {
  std::function<void(const std::string& line)> tell = {};
  std::function<void(const std::string& line)> bad_image = {};  ///< from threads that read images
  std::function<io::ProgressCallback(std::string what)> progress = {};
};

/// The sets, of which one or none may be missing, with what is known of them.
[[nodiscard]] Datasets with_facts(Datasets sets, std::filesystem::path directory = {});

/// Opens the requested data sets. Errors: Data if one is missing or damaged; Io.
[[nodiscard]] Datasets open_datasets(const DataRequest& request, const DataReports& reports = {});

}  // namespace millrace::training
