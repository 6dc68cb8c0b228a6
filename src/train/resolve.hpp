// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "io/data/dataset_kinds.hpp"
#include "partition/choose.hpp"
#include "run/complete.hpp"
#include "run/patch.hpp"
#include "train/setup.hpp"

namespace millrace::training {

using run::DatasetFacts;
using run::Field;
using run::find_field;
using run::holds_photos;
using run::MachineFacts;
using run::Origin;
using run::parse_config;
using run::Patch;
using run::Section;
using run::Setting;
using run::task_of;
using run::to_string;
using run::Value;

/// The data that a run asks for. The code that opens it returns DatasetFacts.
struct DataRequest {
  std::string dataset;
  run::ImageSource source = run::ImageSource::Files;
  run::Normalisation normalisation = run::Normalisation::Standardise;
  Shape image;
  std::uint64_t seed = 0;
  io::DatasetRequest files;  ///< without a directory with synthetic data
};

/// Whether the images are needed, or only the name of the data set.
enum class DataNeed { Images, Name };

/// Errors: Usage and Config when the data set is not named, has no directory or cannot be read.
[[nodiscard]] DataRequest data_request(const Patch& given, DataNeed need = DataNeed::Images);

/// Asks for images that are prepared so, whatever the options say.
void prepare_as(const run::Preparation& preparation, DataRequest& request);

/// Sizes and classes of the published data set, for synthetic data and for runs without data yet.
[[nodiscard]] DatasetFacts published_facts(const DataRequest& request);
[[nodiscard]] DatasetFacts published_facts(const Patch& options);

using partition::Layout;

struct Resolution {
  run::Run config = {};  ///< run_directory is still empty
  Layout layout = {};
  std::vector<std::string> notices = {};  ///< one line each, to print before those of the layout
};

/// Fills in every default of the recipe and computes every derived number. Depends on its
/// arguments and on the files of plans and schedules that they name alone. Errors: Io; Usage and
/// Config for options that contradict each other, have no effect, or
/// lead to impossible numbers.
[[nodiscard]] Resolution resolve(const Patch& given, const DatasetFacts& data,
                                 const MachineFacts& machine);

/// A decided run as text, for ranks that decide nothing.
[[nodiscard]] std::string handed_over(const run::Run& decided);
/// The run that another rank decided and handed over in `text`. `given` and `data` are those of
/// this rank, of which it takes what no file records, as the place of a trace.
[[nodiscard]] Resolution taken_over(const std::string& text, const Patch& given,
                                    const DatasetFacts& data, const MachineFacts& machine);

/// A line for each thing that a new training would do without an error although nobody can want it:
/// norms of a single value, layers that stay random, a pipeline of one stage.
[[nodiscard]] std::vector<std::string> doubts_about_training(const Patch& options,
                                                             const run::Run& config);

}  // namespace millrace::training
