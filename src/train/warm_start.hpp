// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "io/checkpoint.hpp"
#include "io/foreign_files.hpp"
#include "models/graph.hpp"
#include "train/reporter.hpp"
#include "train/session.hpp"

namespace millrace::training {

/// How much of weights is looked at: names and shapes, as a start reads the rest itself; or also
/// the values of a file of another program, which may lie in other files.
enum class WeightCheck { Shapes, Values };

/// Finds out whether there are weights to start from at config.initial_weights(), a run, a
/// checkpoint or a file of another program, and whether they fit, before anything is written or
/// printed. `another`: the options that ask for another network than that of the weights. Nothing
/// is looked at for an empty path. Errors: Checkpoint, Io; as tensors_to_take().
void require_weights(const run::Run& config, const io::ForeignFiles& files, WeightCheck check,
                     const std::string& another = {});

/// Names of the parameters and running statistics that a run takes from the checkpoint `tensors` it
/// starts from. Parameters whose names contain one of `fresh` keep their initial values (for
/// example the last layer, for another number of classes). Optimizer state is never taken. Errors:
/// Config for a text that no name contains, with the nearest names; Checkpoint, in one line, with
/// all tensors that differ in shape or are missing on one side and that `fresh` does not cover, and
/// with the remedy: a fresh last layer, if only that differs; without `another`; or more of
/// `fresh`.
[[nodiscard]] std::set<std::string> tensors_to_take(const models::Graph& graph,
                                                    std::span<const io::TensorInfo> tensors,
                                                    std::span<const std::string> fresh,
                                                    const std::string& path,
                                                    const std::string& another = {});

/// Starts a new run from config.initial_weights(), a checkpoint or a file of another program, and
/// says so, if there is a reporter. Collective. Errors: as above.
void warm_start(const run::Run& config, const io::ForeignFiles& files, const comm::World& world,
                const Session& session, Reporter* reporter);

}  // namespace millrace::training
