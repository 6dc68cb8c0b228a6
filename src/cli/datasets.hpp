// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cli/resolve.hpp"
#include "io/dataset.hpp"

namespace millrace::cli {

struct Datasets {
  std::shared_ptr<const io::Dataset> train;
  std::shared_ptr<const io::Dataset> validation;
  DatasetFacts facts;
};

/// Opens what a command line asks for. Errors: Data for a set that is missing or damaged, Io.
[[nodiscard]] Datasets open_datasets(const DataRequest& request);

}  // namespace millrace::cli
