// SPDX-License-Identifier: Apache-2.0
#include "cli/library_notes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/weights/libraries.hpp"
#include "models/registry.hpp"

namespace millrace::cli {
namespace {

using models::Graph;
using models::ModelOptions;

/// An option of the command line that a library decides for its networks.
struct Choice {
  std::string (*words)(const ModelOptions&);
  void (*copy)(ModelOptions& to, const ModelOptions& from);
};

template <std::size_t N, typename Enum>
std::string word(std::string_view option, const std::array<std::string_view, N>& names,
                 Enum value) {
  return fmt::format("{} {}", option, names.at(static_cast<std::size_t>(value)));
}
std::string flag(std::string_view option, bool set) {
  return fmt::format("{}{}", set ? "" : "without ", option);
}
std::string factor(std::string_view option, std::optional<double> value) {
  return value ? fmt::format("{} {:g}", option, *value) : fmt::format("without {}", option);
}
double epsilon(const ModelOptions& m) {
  return m.model == "efficientnet" ? m.efficientnet.norm_epsilon : m.norm_epsilon;
}

using To = ModelOptions&;
using From = const ModelOptions&;
using Names2 = std::array<std::string_view, 2>;
using Names3 = std::array<std::string_view, 3>;
using Names4 = std::array<std::string_view, 4>;

// In this order: a later one may only have an effect after an earlier one is as in the library.
const std::array kChoices = std::to_array<Choice>({
    {[](From m) {
       return word("--block", Names3{"auto", "basic", "bottleneck"}, m.block);
     },
     [](To to, From from) { to.block = from.block; }},
    {[](From m) { return fmt::format("--shortcut {}", m.shortcut); },
     [](To to, From from) { to.shortcut = from.shortcut; }},
    {[](From m) {
       return word("--shortcut-pad", Names2{"end", "both"}, m.shortcut_pad);
     },
     [](To to, From from) { to.shortcut_pad = from.shortcut_pad; }},
    {[](From m) {
       return word("--stage-one-shortcut", Names2{"project", "identity"}, m.residual.stage_one);
     },
     [](To to, From from) { to.residual.stage_one = from.residual.stage_one; }},
    {[](From m) {
       return word("--resnet-version", Names3{"1.5", "2", "1"}, m.residual.version);
     },
     [](To to, From from) { to.residual.version = from.residual.version; }},
    {[](From m) { return flag("--widenet", m.resnext.widening == models::Widening::Widenet); },
     [](To to, From from) { to.resnext.widening = from.resnext.widening; }},
    {[](From m) { return flag("--conv-bias", m.squeezenet.bias); },
     [](To to, From from) { to.squeezenet.bias = from.squeezenet.bias; }},
    {[](From m) { return flag("--use-bypass", m.squeezenet.bypass == models::Bypass::Simple); },
     [](To to, From from) { to.squeezenet.bypass = from.squeezenet.bypass; }},
    {[](From m) {
       return flag("--no-se", m.efficientnet.squeeze_excitation == models::SqueezeExcitation::Off);
     },
     [](To to, From from) {
       to.efficientnet.squeeze_excitation = from.efficientnet.squeeze_excitation;
     }},
    {[](From m) { return flag("--use-relu", m.efficientnet.activation == Activation::Relu); },
     [](To to, From from) { to.efficientnet.activation = from.efficientnet.activation; }},
    {[](From m) { return fmt::format("--group-dim {}", m.efficientnet.group_dim); },
     [](To to, From from) { to.efficientnet.group_dim = from.efficientnet.group_dim; }},
    {[](From m) { return fmt::format("--expand-ratio {}", m.efficientnet.expand_ratio); },
     [](To to, From from) { to.efficientnet.expand_ratio = from.efficientnet.expand_ratio; }},
    {[](From m) { return factor("--width-coefficient", m.efficientnet.width); },
     [](To to, From from) { to.efficientnet.width = from.efficientnet.width; }},
    {[](From m) { return factor("--depth-coefficient", m.efficientnet.depth); },
     [](To to, From from) { to.efficientnet.depth = from.efficientnet.depth; }},
    {[](From m) { return fmt::format("--depth-divisor {}", m.efficientnet.depth_divisor); },
     [](To to, From from) { to.efficientnet.depth_divisor = from.efficientnet.depth_divisor; }},
    {[](From m) { return fmt::format("--top-width {}", m.efficientnet.top_width); },
     [](To to, From from) { to.efficientnet.top_width = from.efficientnet.top_width; }},
    {[](From m) {
       return word("--padding", Names4{"ipu", "torch", "same", "keras"}, m.padding);
     },
     [](To to, From from) { to.padding = from.padding; }},
    {[](From m) { return fmt::format("--norm-epsilon {:g}", epsilon(m)); },
     [](To to, From from) {
       to.norm_epsilon = from.norm_epsilon;
       to.efficientnet.norm_epsilon = from.efficientnet.norm_epsilon;
     }},
});

bool same_tensors(const Graph& a, const Graph& b) {
  return std::ranges::equal(a.parameters, b.parameters, [](const auto& p, const auto& q) {
    return p.name == q.name && p.shape == q.shape;
  });
}

struct Difference {
  std::string ours;
  std::string theirs;
  bool in_tensors = false;
};

std::vector<Difference> differences(const ModelOptions& ours, const ModelOptions& theirs) {
  std::vector<Difference> all;
  ModelOptions options = ours;
  Graph graph = models::build_model(ours);
  for (const Choice& choice : kChoices) {
    ModelOptions next = options;
    choice.copy(next, theirs);
    std::optional<Graph> changed = models::try_to_build(next);
    if (!changed) continue;
    if (*changed != graph)
      all.push_back({choice.words(options), choice.words(next), !same_tensors(*changed, graph)});
    options = std::move(next);
    graph = std::move(*changed);
  }
  return all;
}

}  // namespace

std::vector<std::string> library_notes(const ModelOptions& model, io::WeightStyle style) {
  if (model.given.graph) return {};  // no option says what a file's network is
  const std::string_view library = io::name_of(style);
  if (const std::string absent = io::why_absent(model, style); !absent.empty())
    return {fmt::format("{}: the file has names like those of {}, but no network there loads it",
                        absent, library)};
  const ModelOptions own = io::own_network(model, style);
  if (style == io::WeightStyle::Timm && model.model == "efficientnet") {
    // timm has Google's networks, too, under the same names of tensors.
    ModelOptions google = own;
    google.padding = models::PaddingRule::Same;
    google.efficientnet.norm_epsilon = 1e-3;
    if (differences(model, google).empty())
      return {
          fmt::format("This is timm's tf_efficientnet_{0}: its efficientnet_{0} loads the file, "
                      "too, but gives other logits",
                      to_lower(model.size))};
  }
  const std::vector<Difference> all = differences(model, own);
  if (all.empty()) return {};
  const bool fails = std::ranges::any_of(all, &Difference::in_tensors);
  const std::string name = fmt::format("{}'s own {}-{}", library, model.model, model.size);
  std::vector<std::string> lines = {
      fails ? fmt::format("{} has other tensors: strict loading of the file fails", name)
            : fmt::format("{} loads the file, but gives other logits", name)};
  std::vector<std::string> wanted;
  for (const Difference& one : all) {
    lines.push_back(fmt::format("  {} here, {} there: {}", one.ours, one.theirs,
                                one.in_tensors ? "other tensors" : "other logits"));
    wanted.push_back(one.theirs);
  }
  lines.push_back(fmt::format("To train {}: {}; --to onnx writes this network as it is", name,
                              join(wanted, " ")));
  return lines;
}

}  // namespace millrace::cli
