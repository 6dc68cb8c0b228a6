// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/option_text.hpp"
#include "tools/dialects/dialect.hpp"

namespace millrace::cli {
namespace {

/// What a name becomes, or why it has no effect or is not supported.
std::string meaning_of(const DialectWord& word) {
  switch (word.use) {
    case WordUse::Same:
      return fmt::format("--{}: {}", word.text,
                         respelled(std::string(find_field(word.text)->help), Patch()));
    case WordUse::Translated:
      return std::string(word.text);
    case WordUse::Idle:
      return fmt::format("no effect: {}", word.text);
    case WordUse::Refused:
      return fmt::format("not supported: {}", word.text);
  }
  return "";
}

std::string word_help(const DialectWord& word) {
  std::string left = fmt::format("  --{}", word.name);
  if (!word.shorthand.empty()) left += fmt::format(", -{}", word.shorthand);
  return help_entry(left, meaning_of(word));
}

}  // namespace

std::string dialect_help(std::span<const std::string> words) {
  std::vector<std::string> rest(words.begin(), words.end());
  std::string text;
  for (const DialectSpec& dialect : take_dialects(rest).dialects) {
    if (dialect.translate == nullptr) continue;
    if (text.empty())
      text += fmt::format("usage: millrace train --dialect {} [SCRIPT] [options]\n", dialect.name);
    text += fmt::format("\n{}\n", dialect.title);
    for (const DialectWord& word : dialect.words) text += word_help(word);
  }
  if (!text.empty())
    text +=
        "\nDashes and underscores are interchangeable in these names. To switch a flag off, put no "
        "before its\nname or =false after it. Options of millrace are accepted too, written in "
        "full: millrace train --help.\n";
  return text;
}

}  // namespace millrace::cli
