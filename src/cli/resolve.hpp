// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "core/shape.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// The data that a command line asks for; whoever opens it answers with DatasetFacts.
struct DataRequest {
  std::string dataset;
  std::filesystem::path directory;  ///< empty with synthetic data
  train::ImageSource source = train::ImageSource::Files;
  train::Normalisation normalisation = train::Normalisation::Standardise;
  bool validation = true;  ///< whether the images of validation are needed
  Shape image;
  std::uint64_t seed = 0;
  std::string preset = "tf";      ///< of pictures
  std::string picture_scaling;    ///< name of their normalisation; empty: the preset's
  std::int64_t classes = 1000;    ///< most of them that pictures may be of
  std::int32_t label_offset = 1;  ///< label that TFRecords give to class 0
  double max_bad_fraction = 0.001;
  bool missing_shards = false;                 ///< whether a set may lack some
  std::vector<std::string> typed_for_records;  ///< options of the command line for TFRecords alone
  std::int64_t cached_bytes = 0;  ///< of this machine's memory for files that were read
  friend bool operator==(const DataRequest&, const DataRequest&) = default;
};

struct DatasetFacts {
  std::int64_t train_size = 0;
  std::int64_t validation_size = 0;
  std::int64_t classes = 0;
  Shape image;
  std::filesystem::path directory;  ///< where the set was found; empty when it has no place
};

struct MachineFacts {
  int cores = 1;
  int ranks = 0;            ///< that a launcher started; 0: none did
  int local_ranks = 0;      ///< of them, those on this machine
  int threads = 0;          ///< that a rank of any machine of the job has cores for; 0: unknown
  std::int64_t memory = 0;  ///< bytes; 0: unknown
  bool has_gpu = false;     ///< whether kernels run on one, not on the cores
};

/// Whether the images themselves are needed, or only what the set is called.
enum class DataNeed { Images, Name };

/// Whether the options say themselves which data set is meant, in --dataset or by the words of
/// --data-dir; without a directory there is nothing else to ask.
[[nodiscard]] bool dataset_is_told(const Options& options);

/// Whether images come from files or are made up. Errors: Usage when two ways are asked for.
[[nodiscard]] train::ImageSource image_source(const Options& options);

/// Errors: Usage and Config when the set is not named, has no place, or is none that can be read.
[[nodiscard]] DataRequest data_request(const Options& options, DataNeed need = DataNeed::Images);

/// Sizes and classes of the published set, for synthetic data and for runs that have no data yet.
[[nodiscard]] DatasetFacts published_facts(const DataRequest& request);

/// Where a run goes; run_name.hpp makes the directory.
struct RunPlace {
  bool logs = true;
  std::filesystem::path run_directory;  ///< given by name, or empty
  std::filesystem::path log_directory;
  std::string suffix;
};

struct Resolution {
  train::TrainConfig config;  ///< run_directory is still empty
  RunPlace place;
  std::vector<std::string> notices;  ///< one line each, to be printed
};

/// Fills in every default of the recipe and computes every derived number. A pure function of its
/// arguments. Errors: Usage and Config for options that contradict each other, have no effect, or
/// lead to numbers that cannot be.
[[nodiscard]] Resolution resolve(const Options& options, const DatasetFacts& data,
                                 const MachineFacts& machine);

/// Options of a run that continues: those of its config.toml, changed by what was given on the
/// command line where that leaves the mathematics alone. The environment only fills gaps, because
/// the run has its own record of what was decided. Errors: Usage, naming the option and both
/// values.
[[nodiscard]] Options continued_options(const Options& given, const Options& recorded);

}  // namespace millrace::cli
