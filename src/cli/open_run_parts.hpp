// SPDX-License-Identifier: Apache-2.0
//
// What the functions of open_run.hpp have in common: those for new runs, in open_run.cpp, and those
// for runs that were recorded, in open_recorded.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "cli/open_run.hpp"

namespace millrace::cli {

/// The images that a command reads.
enum class Images { All, OfValidation };

/// The data that the options name, opened, and what they resolve to with it; or the run that rank 0
/// `decided`, if that is not empty. `for_images`, if there is one, gives the options for the number
/// of training images that were found. `outputs` are those of the network that was recorded: data
/// that do not tell how many classes there are have as many.
[[nodiscard]] OpenedRun open_and_resolve(
    Patch options, const MachineFacts& machine, const std::string& decided,
    const std::function<Patch(std::int64_t images)>& for_images = nullptr,
    Images images = Images::All, std::optional<std::int64_t> outputs = std::nullopt);

/// The configuration recorded in a checkpoint.
[[nodiscard]] Patch recorded_in(const io::CheckpointReader& checkpoint);

/// Options are recorded in files that hold only UTF-8, but file names may be anything. Errors:
/// Usage for a value that could not be read back, and for summaries that no tool writes.
void check_recordable(const Patch& options, const OpenedRun& run);

/// The run that `open` makes on each rank: first on rank 0, whose decisions the others are handed
/// in `decided`; then on the first rank of each other machine, which indexes files for the rest.
/// Collective.
[[nodiscard]] OpenedRun open_in_turn(
    const comm::World& world, const std::function<OpenedRun(const std::string& decided)>& open);

/// Finds out whether the weights can be exported as --export-dir says. Errors: Io, Usage.
void require_export(const Patch& options);

/// A trace without a path is written to the run directory.
void place_trace(const Patch& options, run::Run& config);

/// Compares everything in which a differing rank would spoil the training. Collective. Does nothing
/// in a single process or if the ranks are not started yet.
void require_alike(const comm::World& world, const OpenedRun& run);

}  // namespace millrace::cli
