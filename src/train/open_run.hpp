// SPDX-License-Identifier: Apache-2.0
//
// Opening a run: from what a program asks for to a Run whose data are open, which all ranks have
// alike and whose directory is there. Functions are collective unless they say otherwise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "models/graph.hpp"
#include "run/run.hpp"
#include "train/datasets.hpp"
#include "train/memory.hpp"
#include "train/network_facts.hpp"
#include "train/setup.hpp"

namespace millrace::training {

class Runtime;
struct Images;

/// What a program asks for.
struct RunRequest {
  std::string_view command;  ///< "train"
  Patch options;
  std::vector<std::string> notices = {};  ///< to be told before those of the run
  /// The options for a training set of this number of images, if they depend on it.
  std::function<Patch(std::int64_t images)> for_images = nullptr;
  /// Makes the options of a new training smaller, and adds a line for each reduction.
  std::function<Patch(const Patch&, std::vector<std::string>& notices)> reduce = nullptr;
  DataReports reports = {};
  int threads = 0;  ///< of the device::Environment that there is; 0: there is none yet
  std::shared_ptr<const io::Dataset> train = nullptr;  ///< in place of what the options name
  std::shared_ptr<const io::Dataset> validation = nullptr;
  std::function<void(const run::Run&)> check = nullptr;  ///< refuses what was decided
};

/// What the trainer is given.
struct OpenedRun : Resolution {
  Patch options = {};
  MachineFacts machine = {};
  Datasets data = {};
  bool is_new = false;                   ///< whether the run directory was made for this run
  std::int64_t done = 0;                 ///< updates of the run so far
  std::optional<io::RunLock> lock = {};  ///< held while the run directory is in use
};

/// Requires that all ranks were given the same command and options, before rank 0 decides. Errors:
/// Usage, naming the rank that differs.
void require_asked_alike(const comm::World& world, const RunRequest& request);
/// Compares everything in which a differing rank would spoil the training. Does nothing in a single
/// process or if the ranks are not started yet.
void require_alike(const comm::World& world, const OpenedRun& run);

/// Writes config.toml into the directory of a new run, if it has one. Not collective.
void record_options(const OpenedRun& run);

/// Whether the run needs more ranks than there are, so that a launcher must start them.
[[nodiscard]] bool must_launch(const run::Run& config, const comm::World& world);

/// Opens the data and resolves the options. The run directory with config.toml is created last, so
/// that an error leaves no directory behind; it is not created if a launcher must start the ranks
/// first.
[[nodiscard]] OpenedRun open_new_run(const RunRequest& request, const comm::World& world);

/// The run at `restore-path` with the options that may change. Additional errors: Usage without a
/// path, Io without config.toml and checkpoints.
[[nodiscard]] OpenedRun open_restored_run(const RunRequest& request, const comm::World& world);

/// A training that is only checked, as open_new_run() would, for any number of ranks in one
/// process: nothing is created, and the run directory has no name.
[[nodiscard]] OpenedRun open_checked_run(const RunRequest& request, const comm::World& world);

/// The run or checkpoint at `restore-path`, for validation. The configuration comes from its newest
/// checkpoint. Without a path it comes from the options, and the weights are untrained. Only the
/// validation images are opened.
[[nodiscard]] OpenedRun open_validated_run(const RunRequest& request, const comm::World& world);

/// The run of a Training that its caller steps: nothing is created. As train() of train_run.hpp.
[[nodiscard]] OpenedRun open_for_steps(const Runtime& runtime, run::Run run, const Images& images);

/// The configuration of a run that saves checkpoints, if it does: they need memory, too.
[[nodiscard]] run::Run saving(run::Run config);

/// The layout of a run chosen again for what `measure` finds: before, what a process needs besides
/// its stages could only be assumed. Nothing changes where nothing is open or no memory is limited.
/// Not collective.
[[nodiscard]] Resolution fit_layout(const MachineFacts& machine, Resolution first,
                                    const MeasureUse& measure);
/// The same for a run that is about to start, or that this process only checks for all of its
/// ranks. Needs a device::Environment.
void fit_layout(OpenedRun& run, const comm::World& world);

// ---- the parts

/// The images that a command reads.
enum class Reads { All, Validation };

/// The data that the options name, opened, and what they resolve to with it; or the run that rank 0
/// `decided`, if that is not empty. `for_images`, if there is one, gives the options for the number
/// of training images that were found. `outputs` are those of the network that was recorded: data
/// that do not tell how many classes there are have as many. Images are prepared as `preparation`
/// says, if it says anything. Not collective.
[[nodiscard]] OpenedRun open_and_resolve(
    Patch options, const MachineFacts& machine, const std::string& decided,
    const RunRequest& request,
    const std::function<Patch(std::int64_t images)>& for_images = nullptr, Reads reads = Reads::All,
    std::optional<std::int64_t> outputs = std::nullopt,
    const std::optional<run::Preparation>& preparation = std::nullopt);

/// The run that `open` makes on each rank: first on rank 0, whose decisions the others are handed
/// in `decided`; then on the first rank of each other machine, which indexes files for the rest.
[[nodiscard]] OpenedRun open_in_turn(
    const comm::World& world, const std::function<OpenedRun(const std::string& decided)>& open);

/// Options are recorded in files that hold only UTF-8, but file names may be anything. Not
/// collective. Errors: Usage for a value that could not be read back, and for summaries that no
/// tool writes.
void check_recordable(const Patch& options, const OpenedRun& run);
/// Finds out whether the weights can be exported as `export-dir` says. Errors: Io, Usage.
void require_export(const Patch& options);
/// This machine for the processes that there are.
[[nodiscard]] MachineFacts machine_for(const RunRequest& request, const comm::World& world);
/// Errors: Config, if the device::Environment that there is, or will be, cannot have the threads of
/// the run. Not collective.
void require_threads(const RunRequest& request, const run::Run& config);
/// A trace without a path is written to the run directory.
void place_trace(const Patch& options, run::Run& config);

// ---- what was recorded; not collective

/// The configuration recorded in a checkpoint.
[[nodiscard]] Patch recorded_in(const io::CheckpointReader& checkpoint);
/// These options without data and layout, as a validation of other images has them.
[[nodiscard]] Patch options_for_use(Patch recorded);

/// Adds the network that a run recorded to the options of its config.toml, if a file gave it.
/// Errors: Checkpoint.
void add_recorded_network(Patch& options, const std::filesystem::path& run);

/// What is known of the data set without its files, from the options and what was recorded.
[[nodiscard]] DatasetFacts recorded_facts(const Patch& options,
                                          const std::optional<NetworkFacts>& recorded);

/// The network of a checkpoint, without its data.
struct RecordedNetwork {
  run::Run config;
  models::Graph graph;
};
/// With the options `given` that only change how its weights are used, as for a validation. Errors:
/// Checkpoint, if an older millrace wrote it without what only the data set knew, and it is not
/// what the data set has; Usage.
[[nodiscard]] RecordedNetwork network_of(const io::CheckpointReader& checkpoint,
                                         const Patch& given = {});

/// How a checkpoint's validation prepares images, where an older millrace did not record it: from
/// the training images in `data-dir`, recorded or given. Errors: Usage without one, Data.
[[nodiscard]] run::Preparation measured_preparation(const io::CheckpointReader& checkpoint,
                                                    const Patch& given);

}  // namespace millrace::training
