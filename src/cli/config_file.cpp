// SPDX-License-Identifier: Apache-2.0
//
// Configuration files. The code uses only calls that toml11 3.x and 4.x share and handles both
// versions where they differ (the location of a value).
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <toml.hpp>

#include "cli/options.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::cli {
namespace {

template <class Location>
std::size_t line_of(const Location& location) {
  if constexpr (requires { location.first_line_number(); })
    return location.first_line_number();
  else
    return location.line();
}

/// A message of toml11 has several lines: the first says what is wrong, and the first line with a
/// bar after a number says where.
std::string one_line(const std::string& file, const std::string& message) {
  std::istringstream lines(message);
  std::string what;
  std::getline(lines, what);
  if (const std::size_t colon = what.rfind("toml::"); colon != std::string::npos)
    if (const std::size_t text = what.find(": ", colon); text != std::string::npos)
      what.erase(0, text + 2);
  if (what.ends_with('.')) what.pop_back();
  if (what.starts_with("[error] ")) what.erase(0, what.find(' ') + 1);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t bar = line.find('|');
    if (bar == std::string::npos) continue;
    const std::vector<std::string> words = split_list(line.substr(0, bar), ' ');
    if (words.size() != 1 || words[0].find_first_not_of("0123456789") != std::string::npos)
      continue;
    return fmt::format("{}:{}: {}", file, words[0], what);
  }
  return fmt::format("{}: {}", file, what);
}

struct Entry {
  std::string section;
  std::string key;
  std::size_t line = 0;
  toml::value value;
};

std::string place(const std::string& file, const Entry& entry) {
  return fmt::format("{}:{}: [{}] {}", file, entry.line, entry.section, entry.key);
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const OptionSpec& spec : option_table()) {
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
      entries.push_back({name, key, line_of(value.location()), value});
  }
  std::ranges::sort(entries, {}, &Entry::line);
  return entries;
}

const OptionSpec& spec_of(const std::string& file, const Entry& entry) {
  const OptionSpec* spec = find_option(entry.key);
  if (spec != nullptr && section_key(spec->section) == entry.section) return *spec;
  if (spec != nullptr && spec->section != Section::Command)
    fail(ErrorKind::Config, "{}: this key belongs to section [{}]", place(file, entry),
         section_key(spec->section));
  if (spec != nullptr)
    fail(ErrorKind::Config, "{}: this option can only be given on the command line",
         place(file, entry));
  std::vector<std::string> keys;
  for (const OptionSpec& each : option_table())
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
std::optional<Value> convert(const OptionSpec& spec, const toml::value& value) {
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

/// toml11 recurses without a limit into lists, tables and dotted keys, and takes a time that grows
/// with the square of a list's length. Brackets, commas and the dots of a line are counted wherever
/// they are: whatever the parser takes for a string, it cannot go deeper. Errors: Config.
void require_shallow(std::string_view text, std::string_view file_name) {
  constexpr int kMostCommas = 2048;
  constexpr int kMost = 512;  // a configuration has two levels and some forty sections and lists
  int opened = 0;
  int dots = 0;
  int commas = 0;
  int line = 1;
  for (const char c : text) {
    commas += c == ',' ? 1 : 0;
    if (commas > kMostCommas)
      fail(ErrorKind::Config, "{}:{}: more than {} commas: a list is too long", file_name, line,
           kMostCommas);
    opened += c == '[' || c == '{' ? 1 : 0;
    dots = c == '\n' ? 0 : c == '.' ? dots + 1 : dots;
    line += c == '\n' ? 1 : 0;
    if (std::max(opened, dots) > kMost)
      fail(ErrorKind::Config, "{}:{}: more than {} {}: nested too deeply", file_name, line, kMost,
           opened > kMost ? "brackets" : "dots in a line");
  }
}

/// TOML is UTF-8. toml11 3.7 reads beyond the end of a text that is not. Errors: Config.
void require_utf8(std::string_view text, std::string_view file_name) {
  if (is_utf8(text)) return;
  int line = 1;
  for (std::string_view rest = text; !rest.empty(); ++line) {
    const std::size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
    if (!is_utf8(rest.substr(0, end))) break;
    rest.remove_prefix(end);
  }
  fail(ErrorKind::Config, "{}:{}: is not UTF-8 text: save the file as UTF-8", file_name, line);
}

}  // namespace

Options parse_config(const std::string& text, const std::string& file_name) {
  if (text.size() > kMaxConfigBytes)
    fail(ErrorKind::Config, "{}: the configuration has {} bytes; the maximum is {}", file_name,
         text.size(), kMaxConfigBytes);
  require_utf8(text, file_name);
  require_shallow(text, file_name);
  toml::value root;
  try {
    std::istringstream stream(text);
    root = toml::parse(stream, file_name);
  } catch (const std::exception& error) {
    fail(ErrorKind::Config,
         "{}; a configuration is a TOML file with headings such as [train] and lines such as "
         "batch-size = 32",
         one_line(file_name, error.what()));
  }
  Options options;
  for (const Entry& entry : entries_of(file_name, root)) {
    const OptionSpec& spec = spec_of(file_name, entry);
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

std::filesystem::path find_config(const std::filesystem::path& given) {
  namespace fs = std::filesystem;
  if (fs::exists(given) || given.has_parent_path()) return given;
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  const fs::path file = given.extension() == ".toml" ? given : fs::path(given.string() + ".toml");
  for (const fs::path& folder : {fs::path("configs"), program / "../share/millrace/configs",
                                 program / "../configs", program / "../../configs"})
    if (fs::exists(folder / file)) return (folder / file).lexically_normal();
  return given;
}

Options read_config_file(const std::filesystem::path& path) {
  return parse_config(io::read_text(path, kMaxConfigBytes), path.string());
}

std::string to_toml(const std::map<std::string, Value, std::less<>>& values) {
  std::string text;
  std::string_view section;
  for (const OptionSpec& spec : option_table()) {
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

}  // namespace millrace::cli
