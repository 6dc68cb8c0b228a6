// SPDX-License-Identifier: Apache-2.0
//
// What a configuration means on this machine: its network, its devices, its kernels.
#pragma once

#include <string>
#include <vector>

#include "comm/world.hpp"
#include "io/data/dataset.hpp"
#include "models/graph.hpp"
#include "partition/choose.hpp"
#include "pipeline/program.hpp"
#include "pipeline/stage.hpp"
#include "run/complete.hpp"
#include "run/run.hpp"

namespace millrace::training {

/// The facts about this machine that defaults depend on. Its cores are those that this process may
/// use; with a `world`, those that all ranks of this machine may use. Collective with a `world`.
[[nodiscard]] run::MachineFacts this_machine();
[[nodiscard]] run::MachineFacts this_machine(const comm::World& world);

/// The network that a configuration trains. Parameters that its filters leave out are frozen.
/// Errors: Config, as models::build_model and models::train_only.
[[nodiscard]] models::Graph network_of(const run::Run& config);

/// Errors: Data without images; Config for images of another shape or of more classes than the
/// network has.
void require_matching(const models::Graph& network, const io::Dataset& images);

/// Fills in what a run has to know of its images (`validation` may be null): whether labels have
/// weights; floats do not travel as bytes. Errors: Config if bytes were asked for; Data for a
/// weight that is none, a wrong number of class names or a preparation that is not possible.
void adapt_to(run::Run& run, const io::Dataset& images, const io::Dataset* validation);

/// What choosing a layout has to know besides the run: the machine and the files that it names.
/// Errors: Io; Config for a plan of another network.
[[nodiscard]] partition::LayoutFacts layout_facts(const models::Graph& graph, const run::Run& run,
                                                  const run::MachineFacts& machine);

/// Each split begins a stage with a device of its own, unless `layout` says how many there are.
void give_stages_devices(run::LayoutRequest& layout);
/// A run that trains nothing with the layout that it has on these processes, of so many threads
/// each. Errors: Config and Usage.
[[nodiscard]] run::Run decided(const models::Graph& network, const comm::World& world, int threads,
                               run::Run run);

using partition::training_program;

/// What a process does with its stages. Inference: batch after batch without end, with the programs
/// of an evaluation. Serving: evaluations of any number of images.
enum class Use { Training, Evaluation, Inference, Serving };
/// Whether the stages also run validations.
[[nodiscard]] bool evaluates(const run::Run& config, Use use);
/// The options of the stages of a run, but for their slots, shares and segments.
[[nodiscard]] pipeline::StageOptions stage_options(const run::Run& config, Use use);

/// Numbers of the devices assigned to `rank`, without duplicates, ascending; none: any device.
[[nodiscard]] std::vector<int> device_numbers_of(const run::Run& config, int rank);

/// The GPU of that rank, for device::Environment; -1: any. Errors: Config if several are assigned
/// to it, as a process uses one.
[[nodiscard]] int gpu_of(const run::Run& config, int rank);

/// Lines for people about how this machine computes: the instructions that kernels use, how 16-bit
/// values are multiplied, and what is slow.
[[nodiscard]] std::vector<std::string> describe_computing(const run::Run& config);

/// The text of a run's config.toml: those lines as comments, then the configuration.
[[nodiscard]] std::string config_file_text(const run::Run& config);

}  // namespace millrace::training
