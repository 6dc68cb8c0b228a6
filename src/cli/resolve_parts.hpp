// SPDX-License-Identifier: Apache-2.0
//
// The parts of resolve(), in the order in which they are called: each fills the fields that its
// options decide, from options and from what parts before it have filled.
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

/// Product of two positive numbers. Errors: Config, saying `what` did not fit into 64 bits.
[[nodiscard]] std::int64_t checked_product(std::int64_t a, std::int64_t b, std::string_view what);

[[nodiscard]] models::Task task_of(std::string_view dataset);
/// Name of the family of networks, in lower case.
[[nodiscard]] std::string model_name(const Options& options);
/// Size as the registry's tables spell it: EfficientNet's 0 and b0 are B0.
[[nodiscard]] std::string model_size(const Options& options, models::Task task);
/// The data set that is meant. Errors: Usage when nothing tells it.
[[nodiscard]] std::string dataset_name(const Options& options);
[[nodiscard]] bool wants_validation(const Options& options);
[[nodiscard]] train::Normalisation normalisation_of(Reader& read, std::string_view dataset);
[[nodiscard]] std::int64_t image_size(Reader& read, const std::string& dataset);

/// Errors: Usage for an option of another family of networks.
void check_families(const Options& options, Notices& notices);
void resolve_model(Reader& read, const DatasetFacts& data, models::Task task,
                   models::ModelOptions& model);
/// `usual_threads` read images where nothing was said.
void resolve_data(Reader& read, const DataRequest& request, const DatasetFacts& facts,
                  std::int64_t usual_threads, train::DataConfig& data);
void resolve_batch(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
void resolve_length(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
void resolve_optimiser(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config);
void resolve_rate(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config,
                  Notices& notices);
void resolve_numerics(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config,
                      Notices& notices);
/// What is trained from where: seed, initial weights, filters; images that are mixed.
void resolve_training(Reader& read, train::TrainConfig& config);
/// What only a layout allows: statistics and states that replicas share, filters that match.
void check_layout(Reader& read, const train::TrainConfig& config);
void resolve_validation(Reader& read, train::TrainConfig& config, Notices& notices);
void resolve_checkpoints(Reader& read, train::TrainConfig& config, Notices& notices);
void resolve_logs(Reader& read, train::TrainConfig& config, Notices& notices);
[[nodiscard]] RunPlace resolve_place(Reader& read);

}  // namespace millrace::cli
