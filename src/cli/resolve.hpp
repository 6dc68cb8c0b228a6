// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "core/error.hpp"
#include "core/shape.hpp"
#include "io/data/dataset_kinds.hpp"
#include "partition/layout.hpp"
#include "partition/plan.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// The data that a command line asks for. The code that opens it returns DatasetFacts.
struct DataRequest {
  std::string dataset;
  train::ImageSource source = train::ImageSource::Files;
  train::Normalisation normalisation = train::Normalisation::Standardise;
  Shape image;
  std::uint64_t seed = 0;
  io::DatasetRequest files;  ///< without a directory with synthetic data
  bool quiet = false;        ///< shows no progress
};

struct DatasetFacts {
  std::int64_t train_size = 0;  ///< 0: nothing is trained
  std::int64_t validation_size = 0;
  std::int64_t classes = 0;
  Shape image;
  std::filesystem::path directory;  ///< where the set was found; empty without one
  std::vector<std::string> class_names = {};
  std::optional<io::Preparation> preparation = {};  ///< of its validation images
};

struct MachineFacts {
  int cores = 1;
  int ranks = 0;            ///< started by a launcher; 0: no launcher
  int local_ranks = 0;      ///< those of them on this machine
  int threads = 0;          ///< per rank, the same on all machines of the job; 0: unknown
  std::int64_t memory = 0;  ///< bytes; 0: unknown
  std::optional<std::int64_t> device_memory = {};  ///< of a device's own
  bool has_gpu = false;                            ///< whether kernels run on a GPU
  bool copies_images = false;                      ///< whether the device has memory of its own
  bool has_cudnn = false;  ///< whether cuDNN computes, which has kernels with varying sums
  /// Bytes that a device needs besides its stages, as measured; none: they are assumed.
  std::optional<std::int64_t> rest = {};
};

/// Whether the images are needed, or only the name of the data set.
enum class DataNeed { Images, Name };

/// Whether --dataset or the path in --data-dir names the data set. Also true without a directory,
/// because nothing else could name it.
[[nodiscard]] bool dataset_is_told(const Options& options);

/// Whether images come from files or are generated.
[[nodiscard]] train::ImageSource image_source(const Options& options);

/// Errors: Usage and Config when the data set is not named, has no directory or cannot be read.
[[nodiscard]] DataRequest data_request(const Options& given, DataNeed need = DataNeed::Images);

/// Sizes and classes of the published data set, for synthetic data and for runs without data yet.
[[nodiscard]] DatasetFacts published_facts(const DataRequest& request);
[[nodiscard]] DatasetFacts published_facts(const Options& options);

/// Where a run is stored; run_name.hpp creates the directory.
struct RunPlace {
  bool logs = true;
  std::filesystem::path run_directory;  ///< given with --run-dir, or empty
  std::filesystem::path log_directory;
  std::string suffix;
};

/// From what the stages and schedule of the configuration were made.
struct Layout {
  train::LayoutRequest asked;  ///< before anything was chosen
  pipeline::ScheduleRequest request;
  bool schedule_chosen = false;      ///< whether the options leave the schedule open
  partition::Room room;              ///< for the stages of a device
  std::vector<std::string> notices;  ///< what was chosen; empty: nothing was open
};

struct Resolution {
  train::TrainConfig config;  ///< run_directory is still empty
  RunPlace place;
  Layout layout;
  std::vector<std::string> notices;  ///< one line each, to print before those of the layout
};

/// Errors: Usage for --quiet with --verbose.
[[nodiscard]] train::Verbosity verbosity_of(const Options& options);
[[nodiscard]] inline bool is_quiet(const Options& options) {
  return verbosity_of(options) == train::Verbosity::Quiet;
}

/// Fills in every default of the recipe and computes every derived number. A pure function of its
/// arguments. Errors: Usage and Config for options that contradict each other, have no effect, or
/// lead to impossible numbers.
[[nodiscard]] Resolution resolve(const Options& given, const DatasetFacts& data,
                                 const MachineFacts& machine);

/// Options of a restored run: those of its config.toml, overridden by the command line where this
/// does not change the mathematics, or makes the run longer. The environment only adds options that
/// config.toml does not have. Errors: Usage, naming the option and both values.
[[nodiscard]] Options continued_options(const Options& given, const Options& recorded);

/// The recorded options with those that were typed, unchecked: enough to open the data, on whose
/// number the options of a dialect depend.
[[nodiscard]] Options located_options(const Options& given, const Options& recorded);

/// Options of a validation of a recorded run, which may have any layout: that of the run, unless
/// another one is given.
[[nodiscard]] Options validated_options(const Options& given, const Options& recorded);
/// Leaves out the replicas of the training, and the ranks that only these need, unless `given` has
/// replicas that were typed: a validation may run on a smaller machine. Where --ranks was typed, or
/// a launcher started processes (`started`; 0: there is none), there are as many replicas as occupy
/// these; a training of one replica gets more only for more processes than it has devices.
void drop_replicas(Options& options, const Options& given, std::int64_t started);
/// Options for forward passes alone: those of the backward pass and of the length are left out.
[[nodiscard]] Options validated_options(Options options);

}  // namespace millrace::cli
