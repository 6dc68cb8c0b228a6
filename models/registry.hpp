// SPDX-License-Identifier: Apache-2.0
//
// The families of networks. A family is one file, models/<name>.cpp, which defines
// `Family <name>_family()`, and its name in the list of models/CMakeLists.txt.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/update_rule.hpp"
#include "models/graph.hpp"
#include "models/model_options.hpp"

namespace millrace::models {

/// How a family is trained by default.
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

/// The IPU trainer's recipe for CIFAR, with the same exponent for every rule, and for ImageNet.
[[nodiscard]] FamilyRecipe cifar_recipe(std::int64_t batch_size, double epochs, double exponent);
[[nodiscard]] FamilyRecipe imagenet_recipe(std::int64_t batch_size);

/// Defaults of a family for one task.
struct FamilyDefaults {
  std::string_view size;
  FamilyRecipe recipe;
  NormKind norm = NormKind::Group;
  std::int64_t groups = 32;
  std::int64_t image = 224;
};

/// What another library calls the module of an op: the first row whose `ours` is the op's name. In
/// `ours`, {} is a number and {a} letters that count (a, b, ..., z, aa, ...) from 0; in `theirs`
/// they follow in the same order, as {} or {a} again, or changed by one: {+1}, {-1}.
struct NameRule {
  std::string ours;
  std::string theirs;       ///< empty: the library has no network with such an op
  std::string beside = {};  ///< only if the network has this op, too
  std::string why = {};     ///< if `theirs` is empty: what the library's networks have instead
};

/// The names of a family's ops in a library.
struct NameMap {
  std::string_view library;  ///< as the tool `weights` calls it
  std::vector<NameRule> rules;
  bool reads_bgr = false;  ///< whether its networks read blue, green, red
};

struct Family {
  std::string_view name;      ///< value of `model`
  std::string_view run_name;  ///< in the names of runs; {} is the size
  Graph (*build)(const ModelOptions&) = nullptr;
  std::vector<std::string> (*sizes)(Task) = nullptr;  ///< the published ones for a task
  FamilyDefaults imagenet;
  FamilyDefaults cifar;
  bool normed = true;  ///< whether it has normalizations, of a kind to choose
  /// A size as the table of sizes spells it; nullptr: as it is given.
  std::string (*spelled)(std::string_view size) = nullptr;
  /// Height and width of the photos that a size is designed for; nullptr: those of the data set.
  std::int64_t (*image_side)(std::string_view size) = nullptr;
  /// Libraries that have its networks, for the exchange of weights.
  std::vector<NameMap> names = {};

  [[nodiscard]] const FamilyDefaults& defaults(Task task) const {
    return task == Task::Cifar ? cifar : imagenet;
  }
};

/// All families, in the order of the list.
[[nodiscard]] std::span<const Family> families();
/// Errors: Config for an unknown one, with the known ones.
[[nodiscard]] const Family& find_family(std::string_view model);

/// The IPU trainer's defaults for a model and task: size, classes, image size, normalization and
/// its groups, shortcut. Errors: as find_family.
[[nodiscard]] ModelOptions default_options(std::string_view model, Task task);

/// The recipe of a family, or of ResNet for a network that is given. Errors: as find_family.
[[nodiscard]] const FamilyRecipe& default_recipe(std::string_view model, Task task);

/// The options of a network that is given: its name is their size, and what it reads and says is as
/// in the graph.
[[nodiscard]] ModelOptions given_options(std::shared_ptr<const Graph> graph, Task task);

/// Builds the network. Of one that is given only the replicas that share statistics can be chosen.
/// Errors: Config for an unknown model or size, with the known ones.
[[nodiscard]] Graph build_model(const ModelOptions& options);
/// The same; nothing if the options do not go together.
[[nodiscard]] std::optional<Graph> try_to_build(const ModelOptions& options);

}  // namespace millrace::models
