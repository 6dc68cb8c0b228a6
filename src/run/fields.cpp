// SPDX-License-Identifier: Apache-2.0
#include "run/field_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/registry.hpp"

namespace millrace::run {
namespace {

/// Whole numbers without an exponent, others in their shortest exact form.
std::string number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15
             ? fmt::format("{}", static_cast<std::int64_t>(value))
             : fmt::format("{}", value);
}

std::string describe(const Range& range) {
  if (std::isinf(range.low) && std::isinf(range.high)) return "";
  if (std::isinf(range.high))
    return fmt::format(" {} {}", range.low_excluded ? "above" : "of at least", number(range.low));
  if (!range.low_excluded && !range.high_excluded)
    return fmt::format(" from {} to {}", number(range.low), number(range.high));
  return fmt::format(" {} {} and {} {}", range.low_excluded ? "above" : "of at least",
                     number(range.low), range.high_excluded ? "below" : "at most",
                     number(range.high));
}

/// Key in files and heading in the help, in the order of the sections.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kSections = {
    {{"model", "Model"},
     {"data", "Data"},
     {"train", "Training"},
     {"optimizer", "Optimizer"},
     {"lr", "Learning rate"},
     {"validation", "Validation"},
     {"checkpoint", "Checkpoints"},
     {"log", "Logs"},
     {"pipeline", "Pipeline and replicas"},
     {"device", "Device"},
     {"", "This command"}}};
static_assert(kSections.size() == static_cast<std::size_t>(Section::Command) + 1);

/// A default as the help shows it: 1e-8 for what prints as 1e-08.
std::string default_text_of(const Value& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "on" : "off";
  std::string text = to_string(value);
  if (const std::size_t zero = text.find("e-0");
      zero != std::string::npos && std::holds_alternative<double>(value))
    text.erase(zero + 2, 1);
  return text;
}

FieldTable make_table() {
  FieldTable table;
  add_model_fields(table);
  add_data_fields(table);
  add_train_fields(table);
  add_rate_fields(table);
  add_output_fields(table);
  add_pipeline_fields(table);
  add_command_fields(table);
  Run config;
  for (Field& spec : table) {
    spec.listed_by = spec.taken_by(Command::Train) ? spec.listed_by & spec.commands : spec.commands;
    const bool told = spec.default_text.has_value() || !spec.idle.empty();
    const std::optional<Value> value =
        spec.by_default || !spec.get ? spec.by_default : spec.get(spec, config);
    if (!told && value) spec.default_text = default_text_of(*value);
  }
  return table;
}

}  // namespace

std::span<const Field> field_table() {
  static const FieldTable table = make_table();
  return table;
}

std::size_t index_of_choice(const Field& spec, const std::string& choice) {
  const std::vector<std::string> all = choices(spec);
  const auto found = std::find(all.begin(), all.end(), choice);
  MILLRACE_ASSERT(found != all.end());
  return static_cast<std::size_t>(found - all.begin());
}

std::string choice_at(const Field& spec, std::size_t index) {
  const std::vector<std::string> all = choices(spec);
  if (index >= all.size())
    fail(ErrorKind::Config, "`{}` is {}, but its enumeration has 0 to {}", spec.name, index,
         all.size() - 1);
  return all[index];
}

std::string with_members(std::string text) {
  for (std::size_t at = text.find('`'); at != std::string::npos; at = text.find('`', at)) {
    const std::size_t end = text.find('`', at + 1);
    if (end == std::string::npos) break;
    const Field* const field = find_field(std::string_view(text).substr(at + 1, end - at - 1));
    const bool known = field != nullptr && !field->members.empty();
    std::string word = known ? field->members.front().name : text.substr(at, end + 1 - at);
    if (known && field->type == ValueType::Flag && field->set) {
      Run given;
      field->set(*field, {.value = true, .where = {}}, given);
      if (field->members.front().text(given) == "false") word += " = false";
    }
    text.replace(at, end + 1 - at, word);
    at += word.size();
  }
  return text;
}

const Field* find_field(std::string_view name) {
  for (const Field& spec : field_table())
    if (spec.name == name || (!spec.alias.empty() && spec.alias == name)) return &spec;
  return nullptr;
}

std::string_view section_key(Section section) {
  return kSections.at(static_cast<std::size_t>(section)).first;
}

std::string_view heading_of(const Field& spec) {
  return spec.heading.empty() ? kSections.at(static_cast<std::size_t>(spec.section)).second
                              : spec.heading;
}

FamilySet family_named(std::string_view model) {
  FamilySet bit = 1;
  for (const models::Family& family : models::families()) {
    if (family.name == model) return bit;
    bit <<= 1;
  }
  return model == models::kGivenModel ? bit : 0;
}

std::string describe_families(FamilySet families) {
  std::vector<std::string_view> names;
  for (const models::Family& family : models::families())
    if ((families & family_named(family.name)) != 0) names.push_back(family.name);
  if ((families & family_named(models::kGivenModel)) != 0) names.emplace_back("FILE.onnx");
  return join(names, " or ");
}

std::vector<std::string> choices(const Field& spec) { return split_list(spec.value_name, '|'); }

std::string describe_values(const Field& spec) {
  switch (spec.type) {
    case ValueType::Flag:
      return "true or false";
    case ValueType::Integer:
      return "a whole number" + describe(spec.range);
    case ValueType::Real:
      return "a number" + describe(spec.range);
    case ValueType::RealList:
      return "a list of ascending numbers" + describe(spec.range);
    case ValueType::Choice:
      return fmt::format("one of {}{}", join(choices(spec), ", "),
                         spec.or_file.empty() ? "" : fmt::format(", or a {} file", spec.or_file));
    case ValueType::Text:
      return "text";
    case ValueType::NameList:
      return "names separated by spaces or commas";
    case ValueType::Path:
      return "a path";
  }
  return "";
}

std::string to_string(const Value& value) {
  struct Visitor {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t integer) const { return fmt::format("{}", integer); }
    std::string operator()(double real) const { return fmt::format("{}", real); }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<double>& reals) const { return join(reals, ","); }
  };
  return std::visit(Visitor{}, value);
}

}  // namespace millrace::run
