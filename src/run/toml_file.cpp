// SPDX-License-Identifier: Apache-2.0
#include "run/toml_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/patch.hpp"

namespace millrace::run {
namespace {

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

toml::value parse_toml(const std::string& text, const std::string& file_name,
                       std::string_view expected) {
  if (text.size() > kMaxConfigBytes)
    fail(ErrorKind::Config, "{}: the configuration has {} bytes; the maximum is {}", file_name,
         text.size(), kMaxConfigBytes);
  require_utf8(text, file_name);
  require_shallow(text, file_name);
  try {
    std::istringstream stream(text);
    return toml::parse(stream, file_name);
  } catch (const std::exception& error) {
    fail(ErrorKind::Config, "{}; {}", one_line(file_name, error.what()), expected);
  }
}

}  // namespace millrace::run
