// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/dialect.hpp"

namespace millrace::cli {
namespace {

/// What a name becomes, or why it has no effect or is not supported.
std::string meaning(const DialectWord& word) {
  if (!word.refused.empty()) return fmt::format("not supported: {}", word.refused);
  if (!word.idle.empty()) return fmt::format("no effect: {}", word.idle);
  if (word.option.empty()) return std::string(word.becomes);
  return fmt::format("--{}: {}", word.option, find_option(word.option)->help);
}

std::string word_help(const DialectWord& word) {
  std::string left = fmt::format("  --{}", word.name);
  if (!word.shorthand.empty()) left += fmt::format(", -{}", word.shorthand);
  return help_entry(left, meaning(word));
}

}  // namespace

std::string dialect_help(std::vector<std::string> words) {
  std::string text;
  for (const DialectSpec& dialect : take_dialects(words)) {
    if (dialect.translate == nullptr) continue;
    if (text.empty())
      text +=
          fmt::format("usage: millrace train --dialect {} [SCRIPT.py] [options]\n", dialect.name);
    text += fmt::format("\n{}\n", dialect.title);
    for (const DialectWord& word : dialect.words) text += word_help(word);
  }
  if (!text.empty())
    text +=
        "\nDashes and underscores are interchangeable in these names. To switch a flag off, put no "
        "before its\nname or =false after it. Options of millrace are accepted too, written in "
        "full: "
        "millrace train --help.\n";
  return text;
}

}  // namespace millrace::cli
