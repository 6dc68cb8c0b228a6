// SPDX-License-Identifier: Apache-2.0
//
// From what was asked to a Run: every default of the recipe, every derived number.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.hpp"
#include "models/registry.hpp"
#include "run/patch.hpp"
#include "run/published_set.hpp"
#include "run/run.hpp"

namespace millrace::run {

using Notices = std::vector<std::string>;

struct DatasetFacts {
  std::int64_t train_size = 0;  ///< 0: nothing is trained
  std::int64_t validation_size = 0;
  std::int64_t classes = 0;
  Shape image;
  std::filesystem::path directory;  ///< where the set was found; empty without one
  std::vector<std::string> class_names = {};
  std::optional<Preparation> preparation = {};  ///< of its validation images
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
};

/// A run without its layout.
struct Completed {
  Run run;  ///< run_directory is still empty
  Notices notices = {};
};
/// All of a run but its layout and what follows from it. Errors: Usage and Config for fields that
/// contradict each other or lead to impossible numbers.
[[nodiscard]] Completed complete(const Patch& given, const DatasetFacts& data,
                                 const MachineFacts& machine);
/// Whether numbers that do not depend on the layout go together. Errors: Usage and Config.
void check_numbers(const Run& run);
/// What follows from a layout that was chosen: intervals, and which fields had no effect. Errors:
/// Usage and Config, as complete(), and for fields without an effect.
void complete_layout(const Patch& given, const MachineFacts& machine, Run& run, Notices& notices);

/// What the options ask for: the recipe of the network's family with the options that were given,
/// before anything is known of the data and the machine. What depends on these is not set. Errors:
/// Usage and Config for values that say nothing sensible.
[[nodiscard]] Run asked_run(const Patch& given);
/// Whether an option has an effect on a run with this configuration.
[[nodiscard]] bool has_effect(const Field& spec, const Run& config);
/// The values of config.toml, from which asked_run() makes the same configuration.
[[nodiscard]] std::map<std::string, Value, std::less<>> recorded_values(const Run& config);
/// The text of a config.toml that makes the same run.
[[nodiscard]] std::string to_toml(const Run& run);

/// Whether `dataset` or the path in `data-dir` names the data set. Also true without a directory,
/// because nothing else could name it.
[[nodiscard]] bool dataset_is_told(const Patch& options);

/// Whether images come from files or are generated.
[[nodiscard]] ImageSource image_source(const Patch& options);

/// Product of two positive numbers. Errors: Config, saying that `what` does not fit into 64 bits.
[[nodiscard]] std::int64_t checked_product(std::int64_t a, std::int64_t b, std::string_view what);

/// Whether `model` names a file.
[[nodiscard]] bool is_given_network(const Patch& options);
/// The network in the file that `model` names. Errors: Config if it was not read or recorded.
[[nodiscard]] const models::Graph& given_network(const Patch& options);
/// The number of classes that `classes` tells, if it is given. A recipe or a dialect may ask for
/// more than the network in a file has, which is meant for other networks.
[[nodiscard]] std::optional<std::int64_t> told_classes(const Patch& options);
/// Name of the family of networks, in lower case; kGivenModel for one in a file.
[[nodiscard]] std::string model_name(const Patch& options);
/// Size of a family's network in the spelling of the registry's tables: EfficientNet's 0 and b0 are
/// B0.
[[nodiscard]] std::string model_size(const Patch& options, models::Task task);
/// Name of the data set. Errors: Usage when no option names it.
[[nodiscard]] std::string dataset_name(const Patch& options);
[[nodiscard]] bool wants_validation(const Patch& options);
/// Errors: Usage for `quiet` with `verbose`.
[[nodiscard]] Verbosity verbosity_of(const Patch& options);
[[nodiscard]] inline bool is_quiet(const Patch& options) {
  return verbosity_of(options) == Verbosity::Quiet;
}

/// Micro-batches of an update and replica, as far as the options tell.
[[nodiscard]] std::int64_t micro_batches_of(const Patch& options);
/// Whether the cuts, or the schedule, are to be chosen.
[[nodiscard]] bool opens_cuts(const LayoutRequest& layout);
[[nodiscard]] bool opens_schedule(const LayoutRequest& layout);
/// Whether an option is there that only pipelines have. Without one, shards that accumulate
/// gradients run one after another, as in the IPU trainer.
[[nodiscard]] bool names_pipeline(const Patch& options);
/// Whether shards divide memory and not time: they do with one micro-batch an update, and where
/// nothing is given that only pipelines have.
[[nodiscard]] constexpr bool divides_memory(std::int64_t micro_batches, bool pipelined) {
  return micro_batches == 1 || !pipelined;
}
/// "512MiB", "8GiB", "1e9" as bytes; 0 when the option is not given. Errors: Usage.
[[nodiscard]] std::int64_t device_memory(const std::string& asked);
/// Threads of a rank: the same on all machines of a job, because results depend on the number.
[[nodiscard]] int threads_of_rank(const MachineFacts& machine, int local_ranks);
/// Ranks of the run on this machine, at least 1.
[[nodiscard]] int ranks_here(const MachineFacts& machine, const Run& config);
/// The ranks of the run and the threads of each, once its devices are known. Errors: Config for a
/// number of ranks that cannot share them evenly.
void complete_ranks(const MachineFacts& machine, Run& config, Notices& notices);
/// The devices of the run and the scratch limits of its kernels.
/// Errors: Usage.
void complete_devices(const MachineFacts& machine, Run& config, Notices& notices);
/// What to say of a warm-up that covers the whole run: the rates that it leaves. "" of others; a
/// run that ends before its schedule may end in a warm-up without having one that is too long.
[[nodiscard]] std::string notice_of_warmup(const Run& config);

/// Options of a restored run: those of its config.toml, overridden by the command line where this
/// does not change the mathematics, or makes the run longer. The environment only adds options that
/// config.toml does not have. Errors: Usage, naming the option and both values.
[[nodiscard]] Patch continued_options(const Patch& given, const Patch& recorded);

/// Whether the field gives the length of a run.
[[nodiscard]] bool is_length(std::string_view name);

/// The recorded options with those that were typed, unchecked: enough to open the data, on whose
/// number the options of a dialect depend.
[[nodiscard]] Patch located_options(const Patch& given, const Patch& recorded);

/// Options of a validation of a recorded run, which may have any layout: that of the run, unless
/// another one is given.
[[nodiscard]] Patch validated_options(const Patch& given, const Patch& recorded);
/// Leaves out the replicas of the training, and the ranks that only these need, unless `given` has
/// replicas that were typed: a validation may run on a smaller machine. Where `ranks` was typed, or
/// a launcher started processes (`started`; 0: there is none), there are as many replicas as occupy
/// these; a training of one replica gets more only for more processes than it has devices.
void drop_replicas(Patch& options, const Patch& given, std::int64_t started);
/// Options for forward passes alone: those of the backward pass and of the length are left out.
[[nodiscard]] Patch validated_options(Patch options);
/// Options that need replicas: with one, they have no effect.
inline constexpr auto kOptionsOfReplicas = std::to_array<std::string_view>(
    {"shard-optimizer", "reduce-precision", "max-cross-replica-buffer-size", "weight-check-every"});

}  // namespace millrace::run
