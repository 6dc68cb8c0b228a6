// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "core/permute.hpp"
#include "models/registry.hpp"

namespace millrace::io {
namespace {

using models::Conv;
using models::Dense;
using models::Graph;
using models::Op;
using models::Parameter;
using models::ParameterRole;

/// The library's names for the family of a network; none if it has no such network.
const models::NameMap* names_for(const Graph& graph, WeightStyle style) {
  const std::string_view family = std::string_view(graph.name).substr(0, graph.name.find('-'));
  for (const models::Family& known : models::families())
    for (const models::NameMap& names : known.names)
      if (known.name == family && names.library == name_of(style)) return &names;
  return nullptr;
}

/// Takes a number, or letters that count, off the front of `text`; -1 if it begins with neither.
std::int64_t take_count(std::string_view& text, bool letters) {
  constexpr std::size_t kMostDigits = 6;
  std::int64_t count = 0;
  std::size_t digits = 0;
  for (; digits < text.size() && digits < kMostDigits; ++digits) {
    const char c = text[digits];
    if (c < (letters ? 'a' : '0') || c > (letters ? 'z' : '9')) break;
    count = letters ? 26 * count + (c - 'a' + 1) : 10 * count + (c - '0');
  }
  text.remove_prefix(digits);
  return digits == 0 ? -1 : letters ? count - 1 : count;
}

/// The numbers in an op's name at the places of a pattern; nothing if it is another name.
std::optional<std::vector<std::int64_t>> counts_in(std::string_view op, std::string_view pattern) {
  std::vector<std::int64_t> counts;
  while (!pattern.empty()) {
    if (!pattern.starts_with('{')) {
      if (op.empty() || op.front() != pattern.front()) return std::nullopt;
      op.remove_prefix(1);
      pattern.remove_prefix(1);
      continue;
    }
    counts.push_back(take_count(op, pattern[1] == 'a'));
    if (counts.back() < 0) return std::nullopt;
    pattern.remove_prefix(pattern.find('}') + 1);
  }
  return op.empty() ? std::optional(counts) : std::nullopt;
}

/// 0 as "a", 25 as "z", 26 as "aa".
std::string in_letters(std::int64_t count) {
  const std::string last(1, static_cast<char>('a' + count % 26));
  return count < 26 ? last : in_letters(count / 26 - 1) + last;
}

/// The name that a pattern makes of numbers.
std::string filled(std::string_view pattern, std::span<const std::int64_t> counts) {
  std::string name;
  for (std::size_t at = 0, hole = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '{') {
      name += pattern[at];
      continue;
    }
    const std::size_t end = pattern.find('}', at);
    const std::string_view how = pattern.substr(at + 1, end - at - 1);
    const std::int64_t count = counts[hole++];
    name += how == "a" ? in_letters(count)
                       : std::to_string(count + (how == "+1"   ? 1
                                                 : how == "-1" ? -1
                                                               : 0));
    at = end;
  }
  return name;
}

/// The library's name of an op; nothing if it has no such op.
std::optional<std::string> module_of(const Graph& graph, const Op& op,
                                     const models::NameMap& names) {
  for (const models::NameRule& rule : names.rules) {
    const auto counts = counts_in(op.name, rule.ours);
    if (!counts || (!rule.beside.empty() && !graph.find(filled(rule.beside, *counts)).valid()))
      continue;
    return rule.theirs.empty() ? std::nullopt : std::optional(filled(rule.theirs, *counts));
  }
  return std::nullopt;
}

/// Why a library has no network with this op.
std::string why_unlike(const Graph& graph, const Op& op, const models::NameMap* names) {
  if (names != nullptr)
    for (const models::NameRule& rule : names->rules)
      if (!rule.why.empty() && graph.find(rule.ours).valid()) return rule.why;
  const bool grouped = std::holds_alternative<models::GroupNorm>(op.kind);
  return fmt::format("nothing is like {}{}", op.name, grouped ? ", a group normalization" : "");
}

std::string_view torch_field(ParameterRole role) {
  switch (role) {
    case ParameterRole::Kernel:
    case ParameterRole::Gamma:
      return "weight";
    case ParameterRole::Bias:
    case ParameterRole::Beta:
      return "bias";
    case ParameterRole::MovingMean:
      return "running_mean";
    case ParameterRole::MovingVariance:
      return "running_var";
  }
  return "?";
}

/// One input channel a group: Keras has kernels of their own for it.
bool is_depthwise(const Graph& graph, const Parameter& parameter) {
  const auto* conv = std::get_if<Conv>(&graph.op(parameter.op).kind);
  return conv != nullptr && parameter.shape.size() == 4 && conv->groups > 1 &&
         parameter.shape[3] == 1;
}

std::string field_of(const Graph& graph, const Parameter& parameter, WeightStyle style) {
  if (style != WeightStyle::Keras) return fmt::format(".{}", torch_field(parameter.role));
  const bool depthwise = parameter.role == ParameterRole::Kernel && is_depthwise(graph, parameter);
  return fmt::format("/{}{}:0", depthwise ? "depthwise_" : "", role_name(parameter.role));
}

/// Which of our axes each axis of the library is.
std::vector<std::size_t> axes_of(const Graph& graph, const Parameter& parameter,
                                 WeightStyle style) {
  const std::size_t rank = parameter.shape.size();
  const bool keras = style == WeightStyle::Keras;
  if (rank == 4 && keras && is_depthwise(graph, parameter)) return {1, 2, 0, 3};
  if (rank == 4 && keras) return {1, 2, 3, 0};
  if (rank == 4 && style != WeightStyle::Millrace) return {0, 3, 1, 2};
  if (rank == 2 && keras) return {1, 0};
  std::vector<std::size_t> same(rank);
  std::iota(same.begin(), same.end(), std::size_t{0});
  return same;
}

}  // namespace

std::string_view name_of(WeightStyle style) {
  constexpr std::array<std::string_view, 5> kNames = {"torchvision", "timm", "akamaster", "keras",
                                                      "millrace"};
  return kNames.at(static_cast<std::size_t>(style));
}

ForeignParameters foreign_parameters(const Graph& graph, WeightStyle style) {
  ForeignParameters result;
  if (style == WeightStyle::Millrace) {
    for (const Parameter& own : graph.parameters) result.all.push_back({own.name, own.shape});
    return result;
  }
  const models::NameMap* const names = names_for(graph, style);
  for (const Parameter& parameter : graph.parameters) {
    const Op& op = graph.op(parameter.op);
    const bool grouped = std::holds_alternative<models::GroupNorm>(op.kind);
    const std::optional<std::string> module =
        grouped || names == nullptr ? std::nullopt : module_of(graph, op, *names);
    if (!module) {
      result.misfit = fmt::format("{} has no network like this {}: {}", name_of(style), graph.name,
                                  why_unlike(graph, op, names));
      break;
    }
    ForeignParameter foreign = {*module + field_of(graph, parameter, style), {}};
    for (const std::size_t axis : axes_of(graph, parameter, style))
      foreign.shape.push_back(parameter.shape[axis]);
    result.all.push_back(std::move(foreign));
  }
  return result;
}

namespace {

/// Whether these are weights for colors in another order.
bool reads_bgr(const Graph& graph, const Parameter& parameter, WeightStyle style) {
  const models::NameMap* const names = names_for(graph, style);
  return names != nullptr && names->reads_bgr && parameter.role == ParameterRole::Kernel &&
         graph.op(parameter.op).inputs.front() == Graph::input() && parameter.shape.back() == 3;
}

/// Exchanges red and blue.
void turn_colors(std::vector<float>& ohwi) {
  constexpr std::size_t kColors = 3;
  for (std::size_t i = 0; i + kColors <= ohwi.size(); i += kColors) std::swap(ohwi[i], ohwi[i + 2]);
}

}  // namespace

std::vector<float> to_foreign(const Graph& graph, const Parameter& parameter, WeightStyle style,
                              std::span<const float> values) {
  const std::vector<std::size_t> axes = axes_of(graph, parameter, style);
  if (!reads_bgr(graph, parameter, style)) return permuted(values, parameter.shape, axes);
  std::vector<float> turned(values.begin(), values.end());
  turn_colors(turned);
  return permuted(turned, parameter.shape, axes);
}

std::vector<float> from_foreign(const Graph& graph, const Parameter& parameter, WeightStyle style,
                                std::span<const float> values) {
  std::vector<float> ours = unpermuted(values, parameter.shape, axes_of(graph, parameter, style));
  if (reads_bgr(graph, parameter, style)) turn_colors(ours);
  return ours;
}

}  // namespace millrace::io
