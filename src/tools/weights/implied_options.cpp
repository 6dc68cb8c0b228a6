// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "core/text.hpp"
#include "io/images/presets.hpp"
#include "models/registry.hpp"
#include "run/published_set.hpp"

namespace millrace::cli {
namespace {

using io::WeightStyle;
using models::ModelOptions;

bool is_residual(const ModelOptions& model) { return model.model.starts_with("res"); }

void add_residual(std::vector<ImpliedOption>& all, const ModelOptions& model) {
  if (model.model == "resnet") {
    const bool basic = model.block == models::BlockKind::Basic;
    all.push_back({"block", basic ? "basic" : "bottleneck"});
    all.push_back({"shortcut", std::string(1, model.shortcut)});
  }
  if (model.shortcut == 'B') {
    const bool projects = model.residual.stage_one == models::StageOneShortcut::Project;
    all.push_back({"stage-one-shortcut", projects ? "project" : "identity"});
  }
  if (model.model != "resnext") return;
  all.push_back({"convolution-groups", std::to_string(model.resnext.groups)});
  all.push_back({"group-dim", std::to_string(model.resnext.group_dim)});
  if (model.resnext.squeeze_excitation == models::SqueezeExcitation::On)
    all.push_back({"squeeze-excitation", "true"});
  if (model.resnext.widening == models::Widening::Widenet) all.push_back({"widenet", "true"});
}

bool is_near(const std::array<double, 3>& one, const std::array<double, 3>& other) {
  return std::ranges::equal(
      one, other, [](double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); });
}

std::string numbers(const std::array<double, 3>& colours) {
  return fmt::format("{:.9g},{:.9g},{:.9g}", colours[0], colours[1], colours[2]);
}

/// How the network prepares images of ImageNet, or expects them.
void add_normalisation(std::vector<ImpliedOption>& all, const io::Identified& found) {
  const bool means = found.style == WeightStyle::Keras && is_residual(found.model);
  const io::ColourStatistics usual = io::statistics_of(io::ImageNormalisation::Torch);
  const std::optional<io::ColourStatistics>& own = found.input.statistics;
  if (!own || (is_near(own->mean, usual.mean) && is_near(own->deviation, usual.deviation))) {
    all.push_back({"image-normalisation", means ? "mean" : "torch"});
  } else {
    all.push_back({"image-mean", numbers(own->mean)});
    all.push_back({"image-deviation", numbers(own->deviation)});
  }
}

}  // namespace

std::vector<WeightStyle> wanted_styles(const Patch& options) {
  std::vector<WeightStyle> styles(io::kWeightStyles.begin(), io::kWeightStyles.end());
  if (const auto wanted = options.text("like"))
    std::erase_if(styles, [&](WeightStyle style) { return io::name_of(style) != *wanted; });
  return styles;
}

std::vector<ImpliedOption> options_shown(const io::Identified& found) {
  const ModelOptions& model = found.model;
  const run::PublishedSet& set = run::set_of_network(model.task, model.classes);
  std::vector<ImpliedOption> all = {{"dataset", std::string(set.name)},
                                    {"model", model.model},
                                    {"model-size", model.size},
                                    {"classes", std::to_string(model.classes)}};
  if (found.input.image_side)
    all.push_back({"image-size", std::to_string(*found.input.image_side)});
  if (models::find_family(model.model).normed) all.push_back({"batch-norm", "true"});
  if (is_residual(model)) add_residual(all, model);
  if (model.model == "squeezenet" && model.squeezenet.bias) all.push_back({"conv-bias", "true"});
  return all;
}

std::vector<ImpliedOption> options_assumed(const io::Identified& found) {
  const ModelOptions& model = found.model;
  const bool torch = model.padding == models::PaddingRule::Torch;
  std::vector<ImpliedOption> all = {{"padding", torch ? "torch" : "same"}};
  if (is_residual(model)) {
    all.push_back({"norm-epsilon", fmt::format("{:g}", model.norm_epsilon)});
    if (model.residual.version == models::ResNetVersion::V1) all.push_back({"resnet-version", "1"});
    if (model.shortcut == 'A') all.push_back({"shortcut-pad", "both"});
  } else if (model.model == "efficientnet") {
    all.push_back({"norm-epsilon", fmt::format("{:g}", model.efficientnet.norm_epsilon)});
  }
  if (model.task == models::Task::Cifar) {
    all.push_back({"normalise", "imagenet"});
  } else {
    all.push_back({"image-preset", found.style == WeightStyle::Keras ? "tf" : "torch"});
    add_normalisation(all, found);
  }
  return all;
}

void add_implied(Patch& options, std::span<const ImpliedOption> implied, std::string_view where) {
  for (const ImpliedOption& option : implied) {
    if (options.find(option.name) != nullptr) continue;
    const Field& spec = *find_field(option.name);
    options.set(spec, {.value = parse_value(spec, option.value, Origin::Dialect, where),
                       .origin = Origin::Dialect,
                       .where = std::string(where)});
  }
}

std::string text_of(std::span<const ImpliedOption> implied, const Patch& options) {
  std::string text;
  for (const ImpliedOption& option : implied) {
    const Value value = options.value(option.name);
    text += fmt::format("{}--{}", text.empty() ? "" : " ", option.name);
    if (!std::holds_alternative<bool>(value)) text += ' ' + to_string(value);
  }
  return text;
}

}  // namespace millrace::cli
