// SPDX-License-Identifier: Apache-2.0
#include "run/patch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/run.hpp"

namespace millrace::run {
namespace {

bool inside(const Range& range, double value) {
  const bool above = range.low_excluded ? value > range.low : value >= range.low;
  const bool below = range.high_excluded ? value < range.high : value <= range.high;
  return above && below && std::isfinite(value);
}

ErrorKind kind_of(Origin origin) {
  return origin == Origin::File ? ErrorKind::Config : ErrorKind::Usage;
}

[[noreturn]] void refuse(const Field& spec, std::string_view text, Origin origin,
                         std::string_view where) {
  std::string hint;
  if (spec.type == ValueType::Choice) hint = nearest_match(text, choices(spec));
  fail(kind_of(origin), "{}: '{}' is not {}{}", where, text, describe_values(spec),
       hint.empty() ? "" : fmt::format("; did you mean {}?", hint));
}

/// The names of a list with one space between them.
std::string normal_list(std::string_view text) {
  std::string normal;
  for (const char c : text) {
    const bool separates = c == ' ' || c == ',' || c == '\t';
    if (separates && (normal.empty() || normal.back() == ' ')) continue;
    normal += separates ? ' ' : c;
  }
  if (!normal.empty() && normal.back() == ' ') normal.pop_back();
  return normal;
}

std::optional<Value> parse_list(std::string_view text) {
  std::vector<double> values;
  for (const std::string& piece : split_list(text)) {
    const auto value = parse_number<double>(piece);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return Value(std::move(values));
}

std::optional<Value> parse_type(ValueType type, std::string_view text) {
  switch (type) {
    case ValueType::Flag:
      if (text == "true") return Value(true);
      if (text == "false") return Value(false);
      return std::nullopt;
    case ValueType::Integer:
      if (const auto value = parse_number<std::int64_t>(text)) return Value(*value);
      return std::nullopt;
    case ValueType::Real:
      if (const auto value = parse_number<double>(text)) return Value(*value);
      return std::nullopt;
    case ValueType::RealList:
      return parse_list(text);
    case ValueType::NameList:
      return Value(normal_list(text));
    case ValueType::Choice:
    case ValueType::Text:
    case ValueType::Path:
      return Value(std::string(text));
  }
  return std::nullopt;
}

/// Two options that exclude each other.
using Pair = std::pair<std::string_view, std::string_view>;
constexpr std::array kConflicts = std::to_array<Pair>({
    {"epochs", "iterations"},
    {"batch-size", "batch-sizes"},
    {"training", "inference"},
    {"steps", "measured-epochs"},
    {"batch-norm", "group-norm"},
    {"synthetic-data", "generated-data"},
    {"dataset-cache", "no-dataset-cache"},
    {"data-loader-image-type", "no-hostside-norm"},
    {"data-loader-image-type", "eight-bit-io"},
    {"logs-per-epoch", "log-freq"},
    {"validation-mode", "no-validation"},
    {"epochs-between-evals", "iterations-between-evals"},
    {"run-dir", "log-dir"},
    {"run-dir", "name-suffix"},
    {"no-logs", "run-dir"},
    {"no-logs", "log-dir"},
    {"no-logs", "name-suffix"},
    {"ckpts-per-epoch", "disable-checkpoints"},
    {"checkpoint-every", "ckpts-per-epoch"},
    {"checkpoint-every", "disable-checkpoints"},
    {"pipeline-depth", "gradients-to-accumulate"},
    {"xla-recompute", "recompute-layers"},
    {"recompute", "xla-recompute"},
    {"recompute", "recompute-layers"},
    {"pipeline-schedule", "pipeline-schedule-file"},
    {"plan", "pipeline-splits"},
    {"plan", "device-mapping"},
    {"hostside-norm", "no-hostside-norm"},
    {"hostside-norm", "eight-bit-io"},
    {"base-learning-rate", "abs-learning-rate"},
    {"warmup-epochs", "warmup-iterations"},
    {"lr-horizon-epochs", "lr-horizon"},
    {"rmsprop-decay", "rmsprop-base-decay-exp"},
    {"init-weights", "init-path"},
});

/// The setting, unless it is a flag that is off.
const Setting* active(const Patch& options, std::string_view name) {
  const Setting* setting = options.find(name);
  if (setting == nullptr) return nullptr;
  const bool* flag = std::get_if<bool>(&setting->value);
  return flag != nullptr && !*flag ? nullptr : setting;
}

}  // namespace

Value check_value(const Field& spec, Value value, Origin origin, std::string_view where) {
  const auto in_range = [&spec](double x) { return inside(spec.range, x); };
  bool valid = true;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    valid = in_range(static_cast<double>(*integer));
  } else if (const auto* real = std::get_if<double>(&value)) {
    valid = in_range(*real);
  } else if (const auto* reals = std::get_if<std::vector<double>>(&value)) {
    valid = !reals->empty() && std::ranges::all_of(*reals, in_range) &&
            std::ranges::adjacent_find(*reals, std::greater_equal<>()) == reals->end();
  } else if (auto* text = std::get_if<std::string>(&value)) {
    valid = !text->empty();
    if (spec.type == ValueType::Choice) {
      const std::vector<std::string> known = choices(spec);
      const auto match = std::ranges::find(known, to_lower(*text),
                                           [](const std::string& c) { return to_lower(c); });
      valid = match != known.end();
      if (valid) return *match;
      valid = !spec.or_file.empty() && to_lower(*text).ends_with(spec.or_file);
    }
  }
  if (!valid) refuse(spec, to_string(value), origin, where);
  return value;
}

Value parse_value(const Field& spec, std::string_view text, Origin origin, std::string_view where) {
  std::optional<Value> value = parse_type(spec.type, text);
  if (!value) refuse(spec, text, origin, where);
  return check_value(spec, std::move(*value), origin, where);
}

void Patch::set(const Field& spec, Setting setting) {
  settings_.insert_or_assign(std::string(spec.name), std::move(setting));
}

void Patch::erase(std::string_view name) {
  if (const auto found = settings_.find(name); found != settings_.end()) settings_.erase(found);
}

const Setting* Patch::find(std::string_view name) const {
  MILLRACE_ASSERT(find_field(name) != nullptr);
  const auto found = settings_.find(name);
  return found == settings_.end() ? nullptr : &found->second;
}

const Setting* Patch::typed(std::string_view name) const {
  const Setting* const given = find(name);
  return given != nullptr && given->origin == Origin::CommandLine ? given : nullptr;
}

Value Patch::value(std::string_view name) const {
  if (const Setting* given = find(name)) return given->value;
  const Field& spec = *find_field(name);
  return spec.by_default ? *spec.by_default : spec.get(spec, Run()).value();
}

void check_conflicts(const Patch& options) {
  for (const auto& [one, other] : kConflicts) {
    const Setting* first = active(options, one);
    const Setting* second = active(options, other);
    if (first == nullptr || second == nullptr || first->origin != second->origin) continue;
    fail(kind_of(first->origin), "{} and {} exclude each other: give one of them", first->where,
         second->where);
  }
}

std::vector<Difference> difference(const Patch& before, const Patch& now) {
  std::vector<Difference> found;
  const auto compare = [&](const std::string& name) {
    const Difference field{find_field(name), before.find(name), now.find(name)};
    const bool alike =
        field.before != nullptr && field.now != nullptr && field.before->value == field.now->value;
    if (!alike) found.push_back(field);
  };
  for (const auto& [name, setting] : before.settings()) compare(name);
  for (const auto& [name, setting] : now.settings())
    if (before.find(name) == nullptr) compare(name);
  std::ranges::sort(found, {}, [](const Difference& d) { return d.field->name; });
  return found;
}

void impose(Patch& options, std::string_view name, Value value) {
  options.set(
      *find_field(name),
      {.value = std::move(value), .origin = Origin::File, .where = fmt::format("`{}`", name)});
}

Patch merge(Patch stronger, const Patch& weaker) {
  for (const auto& [name, setting] : weaker.settings()) {
    const auto overruled = [&stronger, &name = name](const Pair& pair) {
      return (name == pair.first && active(stronger, pair.second) != nullptr) ||
             (name == pair.second && active(stronger, pair.first) != nullptr);
    };
    if (stronger.find(name) == nullptr && std::ranges::none_of(kConflicts, overruled))
      stronger.set(*find_field(name), setting);
  }
  if (!stronger.network) stronger.network = weaker.network;
  return stronger;
}

}  // namespace millrace::run
