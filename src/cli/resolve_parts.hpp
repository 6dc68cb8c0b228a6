// SPDX-License-Identifier: Apache-2.0
//
// The parts of resolve(), in the order of their calls. Each part sets the fields that its options
// determine, from the options and from fields set by earlier parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/option_reader.hpp"
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
/// As in resolve.hpp; the options that it reads count as used.
[[nodiscard]] DataRequest data_request(Reader& read, DataNeed need);
[[nodiscard]] bool wants_validation(const Options& options);
[[nodiscard]] std::int64_t image_size(Reader& read, const std::string& dataset);

/// Errors: Usage for an option of another family of networks.
void check_families(const Options& options, Notices& notices);
void resolve_model(Reader& read, const DatasetFacts& data, models::Task task,
                   train::TrainConfig& config, Notices& notices);
void resolve_data(Reader& read, const DataRequest& request, const DatasetFacts& facts,
                  train::TrainConfig& config);
void resolve_batch(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
void resolve_length(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
void resolve_optimiser(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
/// What to say of a warm-up that covers the whole run: the rates that it leaves. "" of others; a
/// run that ends before its schedule may end in a warm-up without having one that is too long.
[[nodiscard]] std::string notice_of_warmup(const train::TrainConfig& config);
void resolve_rate(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config,
                  Notices& notices);
void resolve_numerics(Reader& read, train::TrainConfig& config, Notices& notices);
/// Sets stages, devices, schedule, ranks and threads of a configuration whose model, batch and
/// precision are already set. Errors: Config and Usage, with the possible values; for missing
/// splits with a list of all cuts and their costs.
[[nodiscard]] Layout resolve_layout(Reader& read, const MachineFacts& machine,
                                    train::TrainConfig& config, Notices& notices);
/// Threads of a rank: the same on all machines of a job, because results depend on the number.
[[nodiscard]] int threads_of_rank(const MachineFacts& machine, int local_ranks);
/// Ranks of the run on this machine, at least 1.
[[nodiscard]] int ranks_here(const MachineFacts& machine, const train::TrainConfig& config);
/// The devices of the run, the scratch limits of its kernels, and the weight updates to trace.
/// Errors: Usage.
void resolve_devices(Reader& read, const MachineFacts& machine, train::TrainConfig& config,
                     Notices& notices);
/// Checks options that depend on the layout. Errors: Config.
void check_layout(Reader& read, const train::TrainConfig& config);
void resolve_validation(Reader& read, train::TrainConfig& config, Notices& notices);
void resolve_checkpoints(Reader& read, train::TrainConfig& config, Notices& notices);
void resolve_logs(Reader& read, train::TrainConfig& config, Notices& notices);
[[nodiscard]] RunPlace resolve_place(Reader& read);

/// "512MiB", "8GiB", "1e9" as bytes; 0 when the option is not given. Errors: Usage.
[[nodiscard]] std::int64_t device_memory(Reader& read);
/// Whether --recompute auto chooses what is repeated.
[[nodiscard]] bool recomputes_to_fit(const Reader& read);
/// What a device must hold besides its stages: on cores, its part of the rest of a process.
[[nodiscard]] std::int64_t rest_beside_stages(const Reader& read, const models::Graph& graph,
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
void note_sharding_filters(Reader& read, std::size_t stages, Notices& notices);
/// What --device-memory leaves to the stages of a device.
[[nodiscard]] partition::Room room_of_stages(const Reader& read, const models::Graph& graph,
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
