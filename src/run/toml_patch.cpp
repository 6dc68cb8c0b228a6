// SPDX-License-Identifier: Apache-2.0
//
// Configuration files.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "run/patch.hpp"
#include "run/toml_file.hpp"

namespace millrace::run {
namespace {

struct Entry {
  std::string section;
  std::string key;
  std::size_t line = 0;
  toml::value value;
};

/// Keys of features that are gone, which older versions recorded with their runs.
constexpr auto kDropped = std::to_array<std::string_view>(
    {"kernel-table", "train-annotations", "validation-annotations", "class-list"});

std::string place(const std::string& file, const Entry& entry) {
  return fmt::format("{}:{}: [{}] {}", file, entry.line, entry.section, entry.key);
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Field& spec : field_table()) {
    const std::string_view key = section_key(spec.section);
    if (!key.empty() && std::ranges::find(names, key) == names.end()) names.emplace_back(key);
  }
  return names;
}

[[noreturn]] void fail_section(const std::string& file, std::size_t line, const std::string& name) {
  const std::vector<std::string> known = section_names();
  const std::string nearest = nearest_match(name, known);
  fail(ErrorKind::Config, "{}:{}: unknown section [{}]; {}", file, line, name,
       nearest.empty() ? fmt::format("sections: {}", join(known, ", "))
                       : fmt::format("did you mean [{}]?", nearest));
}

/// All keys of the file in the order of their lines, so that the first mistake is reported.
std::vector<Entry> entries_of(const std::string& file, const toml::value& root) {
  const std::vector<std::string> known = section_names();
  std::vector<Entry> entries;
  for (const auto& [name, table] : root.as_table()) {
    const std::size_t line = line_of(table.location());
    if (!table.is_table())
      fail(ErrorKind::Config, "{}:{}: key {} is outside a section; sections: {}", file, line, name,
           join(known, ", "));
    if (std::ranges::find(known, name) == known.end()) fail_section(file, line, name);
    for (const auto& [key, value] : table.as_table())
      if (std::ranges::find(kDropped, key) == kDropped.end())
        entries.push_back({name, key, line_of(value.location()), value});
  }
  std::ranges::sort(entries, {}, &Entry::line);
  return entries;
}

const Field& spec_of(const std::string& file, const Entry& entry) {
  const Field* spec = find_field(entry.key);
  if (spec != nullptr && section_key(spec->section) == entry.section) return *spec;
  if (spec != nullptr && spec->section != Section::Command)
    fail(ErrorKind::Config, "{}: this key belongs to section [{}]", place(file, entry),
         section_key(spec->section));
  if (spec != nullptr)
    fail(ErrorKind::Config, "{}: this option can only be given on the command line",
         place(file, entry));
  std::vector<std::string> keys;
  for (const Field& each : field_table())
    if (each.section != Section::Command) keys.emplace_back(each.name);
  const std::string nearest = nearest_match(entry.key, keys);
  fail(ErrorKind::Config, "{}: unknown key; {}", place(file, entry),
       nearest.empty() ? "configs/README.md lists the keys"
                       : fmt::format("did you mean {}?", nearest));
}

std::optional<double> as_real(const toml::value& value) {
  if (value.is_integer()) return static_cast<double>(value.as_integer());
  if (value.is_floating()) return value.as_floating();
  return std::nullopt;
}

std::optional<Value> as_reals(const toml::value& value) {
  std::vector<double> reals;
  for (const toml::value& element : value.as_array()) {
    const std::optional<double> real = as_real(element);
    if (!real) return std::nullopt;
    reals.push_back(*real);
  }
  return Value(std::move(reals));
}

/// Converts a value of the file to the option's type if possible. A whole number is also accepted
/// for a number and for a text (`model-size = 20`).
std::optional<Value> convert(const Field& spec, const toml::value& value) {
  switch (spec.type) {
    case ValueType::Flag:
      if (value.is_boolean()) return Value(value.as_boolean());
      break;
    case ValueType::Integer:
      if (value.is_integer()) return Value(std::int64_t{value.as_integer()});
      break;
    case ValueType::Real:
      if (const std::optional<double> real = as_real(value)) return Value(*real);
      break;
    case ValueType::RealList:
      if (value.is_array()) return as_reals(value);
      break;
    case ValueType::Text:
      if (value.is_integer()) return Value(std::to_string(value.as_integer()));
      if (value.is_floating()) return Value(fmt::format("{}", value.as_floating()));
      [[fallthrough]];
    case ValueType::Choice:
    case ValueType::NameList:
    case ValueType::Path:
      if (value.is_string()) return Value(toml::get<std::string>(value));
      break;
  }
  return std::nullopt;
}

std::string_view toml_type(ValueType type) {
  if (type == ValueType::Flag) return "true or false";
  if (type == ValueType::Integer) return "a whole number";
  if (type == ValueType::Real) return "a number";
  return type == ValueType::RealList ? "a list of numbers in brackets" : "a quoted string";
}

std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (code < 0x20 || code == 0x7f)
      out += fmt::format("\\u{:04X}", code);
    else
      out += c;
  }
  return out + '"';
}

/// A value as it may be written in the file.
std::string quoted(const toml::value& value) {
  if (value.is_boolean()) return value.as_boolean() ? "true" : "false";
  if (value.is_integer()) return fmt::format("{}", std::int64_t{value.as_integer()});
  if (value.is_floating()) return fmt::format("{}", value.as_floating());
  if (value.is_string()) return toml_text(toml::get<std::string>(value));
  if (value.is_table()) return "a table";
  if (!value.is_array()) return "a date or time";
  std::vector<std::string> elements;
  for (const toml::value& element : value.as_array()) elements.push_back(quoted(element));
  return fmt::format("[{}]", join(elements, ", "));
}

std::string to_toml(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return toml_text(*text);
  if (std::holds_alternative<std::vector<double>>(value)) {
    const auto& reals = std::get<std::vector<double>>(value);
    std::vector<std::string> numbers;
    for (const double real : reals) {
      // A list in TOML 0.5 has a single type, so whole numbers are written as floats.
      std::string number = fmt::format("{}", real);
      if (number.find_first_of(".e") == std::string::npos) number += ".0";
      numbers.push_back(std::move(number));
    }
    return fmt::format("[{}]", join(numbers, ", "));
  }
  return to_string(value);
}

}  // namespace

Patch parse_config(const std::string& text, const std::string& file_name) {
  const toml::value root = parse_toml(text, file_name,
                                      "a configuration is a TOML file with headings such as "
                                      "[train] and lines such as batch-size = 32");
  Patch options;
  for (const Entry& entry : entries_of(file_name, root)) {
    const Field& spec = spec_of(file_name, entry);
    const std::string where = place(file_name, entry);
    std::optional<Value> value = convert(spec, entry.value);
    if (!value)
      fail(ErrorKind::Config, "{}: expected {}, found {}; allowed: {}", where, toml_type(spec.type),
           quoted(entry.value), describe_values(spec));
    options.set(spec, {.value = check_value(spec, std::move(*value), Origin::File, where),
                       .origin = Origin::File,
                       .where = where});
  }
  return options;
}

Patch read_config_file(const std::filesystem::path& path) {
  return parse_config(io::read_text(path, kMaxConfigBytes), path.string());
}

std::string to_toml(const std::map<std::string, Value, std::less<>>& values) {
  std::string text;
  std::string_view section;
  for (const Field& spec : field_table()) {
    const auto found = values.find(spec.name);
    if (found == values.end() || spec.section == Section::Command) continue;
    if (section != section_key(spec.section)) {
      section = section_key(spec.section);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", spec.name, to_toml(found->second));
  }
  return text;
}

}  // namespace millrace::run
