// SPDX-License-Identifier: Apache-2.0
//
// The parts of resolve(), in the order of their calls. Each part sets the fields that its options
// determine, from the options and from fields set by earlier parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/family_recipe.hpp"
#include "cli/option_reader.hpp"
#include "cli/resolve.hpp"
#include "train/config.hpp"

namespace millrace::cli {

using Notices = std::vector<std::string>;

inline constexpr std::string_view kCifar10 = "cifar-10";
inline constexpr std::string_view kCifar100 = "cifar-100";
inline constexpr std::string_view kImageNet = "imagenet";

/// Product of two positive numbers. Errors: Config, saying that `what` does not fit into 64 bits.
[[nodiscard]] std::int64_t checked_product(std::int64_t a, std::int64_t b, std::string_view what);

[[nodiscard]] models::Task task_of(std::string_view dataset);
/// Name of the family of networks, in lower case.
[[nodiscard]] std::string model_name(const Options& options);
/// Size in the spelling of the registry's tables: EfficientNet's 0 and b0 are B0.
[[nodiscard]] std::string model_size(const Options& options, models::Task task);
/// Name of the data set. Errors: Usage when no option names it.
[[nodiscard]] std::string dataset_name(const Options& options);
[[nodiscard]] bool wants_validation(const Options& options);
[[nodiscard]] train::Normalisation normalisation_of(Reader& read, std::string_view dataset);
[[nodiscard]] std::int64_t image_size(Reader& read, const std::string& dataset);

/// Errors: Usage for an option of another family of networks.
void check_families(const Options& options, Notices& notices);
void resolve_model(Reader& read, const DatasetFacts& data, models::Task task,
                   models::ModelOptions& model);
/// `usual_threads` is the default number of threads that read images.
void resolve_data(Reader& read, const DataRequest& request, const DatasetFacts& facts,
                  std::int64_t usual_threads, train::DataConfig& data);
void resolve_batch(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
void resolve_length(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
void resolve_optimiser(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
void resolve_rate(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config,
                  Notices& notices);
void resolve_numerics(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config,
                      Notices& notices);
/// Seed, initial weights, filters of the trained parameters.
void resolve_training(Reader& read, train::TrainConfig& config);
/// Checks options that depend on the layout. Errors: Config.
void check_layout(Reader& read, const train::TrainConfig& config);
void resolve_validation(Reader& read, train::TrainConfig& config, Notices& notices);
void resolve_checkpoints(Reader& read, train::TrainConfig& config, Notices& notices);
void resolve_logs(Reader& read, train::TrainConfig& config, Notices& notices);
[[nodiscard]] RunPlace resolve_place(Reader& read);

}  // namespace millrace::cli
