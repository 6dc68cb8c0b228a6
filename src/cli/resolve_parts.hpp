// SPDX-License-Identifier: Apache-2.0
//
// The parts of resolve(), in the order of their calls. Each part sets the fields that its options
// determine, from the options and from fields set by earlier parts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.hpp"
#include "cli/resolve.hpp"
#include "core/update_rule.hpp"
#include "models/registry.hpp"
#include "partition/layout.hpp"
#include "train/config.hpp"

namespace millrace::cli {

using Notices = std::vector<std::string>;

inline constexpr std::string_view kCifar10 = "cifar-10";
inline constexpr std::string_view kCifar100 = "cifar-100";
inline constexpr std::string_view kImageNet = "imagenet";

/// The IPU trainer's defaults for a family of networks.
struct FamilyRecipe {
  std::int64_t batch_size = 0;
  double epochs = 0;
  double weight_decay = 0;
  double label_smoothing = 0;
  std::vector<std::string> decay_excludes;
  std::vector<double> boundaries;  ///< of a stepped schedule, as fractions of the run
  /// Exponents of 2 for the learning rate of one image; empty where the trainer has no default.
  std::optional<double> sgd_exponent;
  std::optional<double> momentum_exponent;
  std::optional<double> rmsprop_exponent;
  std::optional<double> lars_exponent;
  [[nodiscard]] std::optional<double> exponent(UpdateRule rule) const;
};

/// `model` is a name that models::default_options knows.
[[nodiscard]] FamilyRecipe family_recipe(std::string_view model, models::Task task);

/// Product of two positive numbers. Errors: Config, saying that `what` does not fit into 64 bits.
[[nodiscard]] std::int64_t checked_product(std::int64_t a, std::int64_t b, std::string_view what);

[[nodiscard]] models::Task task_of(std::string_view dataset);
/// Whether --model names a file.
[[nodiscard]] bool is_given_network(const Options& options);
/// The network in the file that --model names. Errors: Config if it was not read or recorded.
[[nodiscard]] const models::Graph& given_network(const Options& options);
/// The number of classes that --classes tells, if it is given. A recipe or a dialect may ask for
/// more than the network in a file has, which is meant for other networks.
[[nodiscard]] std::optional<std::int64_t> told_classes(const Options& options);
/// Name of the family of networks, in lower case; kGivenModel for one in a file.
[[nodiscard]] std::string model_name(const Options& options);
/// Size of a family's network in the spelling of the registry's tables: EfficientNet's 0 and b0 are
/// B0.
[[nodiscard]] std::string model_size(const Options& options, models::Task task);
/// Name of the data set. Errors: Usage when no option names it.
[[nodiscard]] std::string dataset_name(const Options& options);
[[nodiscard]] bool wants_validation(const Options& options);

/// Whether the cuts, or the schedule, are to be chosen.
[[nodiscard]] bool opens_cuts(const train::LayoutRequest& layout);
[[nodiscard]] bool opens_schedule(const train::LayoutRequest& layout);
/// What the options ask for: the recipe of the network's family with the options that were given,
/// before anything is known of the data and the machine. What depends on these is not set. Errors:
/// Usage and Config for values that say nothing sensible.
[[nodiscard]] train::TrainConfig asked_config(const Options& given);
/// Whether an option has an effect on a run with this configuration.
[[nodiscard]] bool has_effect(const OptionSpec& spec, const train::TrainConfig& config);
/// The values of config.toml, from which asked_config() makes the same configuration.
[[nodiscard]] std::map<std::string, Value, std::less<>> recorded_values(
    const train::TrainConfig& config);

/// Errors: Usage for an option of another family of networks.
void check_families(const Options& options, Notices& notices);
void resolve_model(const Options& given, const DatasetFacts& data, train::TrainConfig& config,
                   Notices& notices);
void resolve_data(const DatasetFacts& facts, const MachineFacts& machine,
                  train::TrainConfig& config);
void resolve_batch(const Options& given, train::TrainConfig& config);
void resolve_length(train::TrainConfig& config);
void resolve_optimiser(const Options& given, train::TrainConfig& config);
/// What to say of a warm-up that covers the whole run: the rates that it leaves. "" of others; a
/// run that ends before its schedule may end in a warm-up without having one that is too long.
[[nodiscard]] std::string notice_of_warmup(const train::TrainConfig& config);
void resolve_rate(const Options& given, train::TrainConfig& config, Notices& notices);
void resolve_numerics(const Options& given, train::TrainConfig& config);
/// Sets stages, devices, schedule, ranks and threads of a configuration whose model, batch and
/// precision are already set. Errors: Config and Usage, with the possible values; for missing
/// splits with a list of all cuts and their costs.
[[nodiscard]] Layout resolve_layout(const MachineFacts& machine, train::TrainConfig& config,
                                    Notices& notices);
/// Threads of a rank: the same on all machines of a job, because results depend on the number.
[[nodiscard]] int threads_of_rank(const MachineFacts& machine, int local_ranks);
/// Ranks of the run on this machine, at least 1.
[[nodiscard]] int ranks_here(const MachineFacts& machine, const train::TrainConfig& config);
/// The devices of the run and the scratch limits of its kernels.
/// Errors: Usage.
void resolve_devices(const MachineFacts& machine, train::TrainConfig& config, Notices& notices);
/// Errors: Usage for machines that a run would leave out because it has one rank that nobody asked
/// for.
void check_hosts(const Options& given, const MachineFacts& machine,
                 const train::TrainConfig& config, Notices& notices);
/// The weight updates to trace and the file to write. Errors: Usage.
void resolve_trace(const Options& given, train::TrainConfig& config, Notices& notices);
/// Checks options that depend on the layout. Errors: Config.
void check_layout(const Options& given, const train::TrainConfig& config);
void resolve_validation(const Options& given, train::TrainConfig& config, Notices& notices);
void resolve_checkpoints(const Options& given, train::TrainConfig& config, Notices& notices);
void resolve_logs(const Options& given, train::TrainConfig& config, Notices& notices);
[[nodiscard]] RunPlace resolve_place(const Options& given, const train::TrainConfig& config);

/// "512MiB", "8GiB", "1e9" as bytes; 0 when the option is not given. Errors: Usage.
[[nodiscard]] std::int64_t device_memory(const std::string& asked);
/// What a device must hold besides its stages: on cores, its part of the rest of a process.
[[nodiscard]] std::int64_t rest_beside_stages(const models::Graph& graph,
                                              const train::TrainConfig& config);
/// Whether an option is there that only pipelines have. Without one, shards that accumulate
/// gradients run one after another, as in the IPU trainer.
[[nodiscard]] bool names_pipeline(const Options& options);
/// How the notices of what was chosen begin.
inline constexpr std::string_view kAutomaticSplits = "Automatic splits: ";
inline constexpr std::string_view kAutomaticSchedule = "Automatic schedule: ";
/// Tells which cuts, or which schedule, were chosen.
[[nodiscard]] std::string splits_notice(std::span<const std::string> splits);
[[nodiscard]] std::string schedule_notice(std::string_view schedule,
                                          std::span<const std::string> splits);
/// Tells if the `local` ranks of this machine, or their threads, share its cores.
void note_turns(const MachineFacts& machine, const train::TrainConfig& config, int local,
                Notices& notices);
/// The IPU trainer ignores these filters in a pipeline, and its command lines contain them there.
void note_sharding_filters(const train::TrainConfig& config, Notices& notices);
/// What --device-memory leaves to the stages of a device.
[[nodiscard]] partition::Room room_of_stages(const models::Graph& graph,
                                             const train::TrainConfig& config,
                                             const MachineFacts& machine);
/// The request of plan_request with the sizes that the run will find, for choices within
/// --device-memory. `graph` must outlive it.
[[nodiscard]] partition::PlanRequest sized_request(const models::Graph& graph,
                                                   const train::TrainConfig& config,
                                                   const pipeline::ScheduleRequest& schedule);
/// Chooses what each stage repeats so that its device keeps to `room`.
void choose_segments(const models::Graph& graph, const partition::Room& room,
                     train::TrainConfig& config, Notices& notices);
/// The request from which plans for a configuration are made.
[[nodiscard]] partition::PlanRequest plan_request(const train::TrainConfig& config,
                                                  const pipeline::ScheduleRequest& schedule);

}  // namespace millrace::cli
