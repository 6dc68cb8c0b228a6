// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <vector>

#include "cli/commands.hpp"
#include "cli/dialect.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

constexpr std::size_t kHelpColumn = 30;  ///< where texts begin
constexpr std::size_t kHelpWidth = 100;

/// Breaks `text` between words into lines of kHelpWidth; later lines begin at kHelpColumn.
std::string wrapped(std::string_view text) {
  std::string out;
  std::size_t column = kHelpColumn;
  for (const std::string& word : split_list(text, ' ')) {
    const bool breaks = column + 1 + word.size() > kHelpWidth;
    if (breaks) {
      out += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (!out.empty()) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

/// `left`, followed by the text on the same or the next line, broken into lines.
std::string help_entry(const std::string& left, std::string_view text) {
  const std::string gap = left.size() + 2 <= kHelpColumn
                              ? std::string(kHelpColumn - left.size(), ' ')
                              : "\n" + std::string(kHelpColumn, ' ');
  return left + gap + wrapped(text) + "\n";
}

/// What an option does, or why it has no effect.
std::string meaning(const OptionSpec& spec) {
  if (!spec.idle.empty()) return fmt::format("{}; no effect: {}", spec.help, spec.idle);
  return std::string(spec.help);
}

/// Unit, default, variable and trainers of an option, e.g. " (images; default 1; or $N) [IPU]".
std::string remarks(const OptionSpec& spec) {
  std::vector<std::string> parts;
  if (!spec.unit.empty()) parts.emplace_back(spec.unit);
  if (!spec.default_text.value_or("").empty())
    parts.push_back(fmt::format("default {}", *spec.default_text));
  if (!spec.environment.empty()) parts.push_back(fmt::format("or ${}", spec.environment));
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return fmt::format("{} [{}]", text.empty() ? "" : fmt::format(" ({})", text), spec.source);
}

/// Choices that do not fit on the line of the name are listed before the text.
std::string option_help(const OptionSpec& spec) {
  std::string left = fmt::format("  --{}", spec.name);
  if (!spec.alias.empty()) left += fmt::format(", --{}", spec.alias);
  std::string text = meaning(spec) + remarks(spec);
  if (spec.type != ValueType::Flag && left.size() + 1 + spec.value_name.size() <= kHelpWidth) {
    left += fmt::format(" {}", spec.value_name);
  } else if (spec.type != ValueType::Flag) {
    left += " NAME";
    text = fmt::format("{}: {}", describe_values(spec), text);
  }
  return help_entry(left, text);
}

/// A cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out.empty() ? "-" : out;
}

std::string reference_row(const OptionSpec& spec) {
  const std::string values = spec.type != ValueType::Choice ? describe_values(spec)
                             : spec.or_file.empty()
                                 ? std::string(spec.value_name)
                                 : fmt::format("{}|FILE{}", spec.value_name, spec.or_file);
  const std::string_view restore =
      spec.on_restore == OnRestore::Fixed                                   ? "fixed"
      : spec.taken_by(Command::Restore) && spec.section != Section::Command ? "may change"
                                                                            : "-";
  return fmt::format(
      "| `{}` | {} | {} | {} | {} | {} | {} |\n", spec.name, cell(values),
      cell(spec.default_text.value_or("")), cell(spec.unit), cell(spec.source), restore,
      cell(fmt::format(
          "{}{}", meaning(spec),
          spec.environment.empty() ? "" : fmt::format(" (or `${}`)", spec.environment))));
}

/// What a name becomes, or why it has no effect or is not supported.
std::string meaning(const DialectWord& word) {
  switch (word.fate) {
    case Fate::Means:
      return fmt::format("--{}: {}", word.text, find_option(word.text)->help);
    case Fate::Becomes:
      return std::string(word.text);
    case Fate::Idle:
      return fmt::format("no effect: {}", word.text);
    case Fate::Refused:
      return fmt::format("not supported: {}", word.text);
  }
  return "";
}

std::string word_help(const DialectWord& word) {
  std::string left = fmt::format("  --{}", word.name);
  if (!word.shorthand.empty()) left += fmt::format(", -{}", word.shorthand);
  return help_entry(left, meaning(word));
}

}  // namespace

std::string general_help() {
  std::string text =
      "usage: millrace <command> [options]\n\n"
      "Trains convolutional networks.\n\nCommands:\n";
  for (const CommandSpec& command : command_table()) {
    const std::string left = fmt::format("  {} {}", command.name, command.arguments);
    text += fmt::format("{:<{}}{}\n", left, kHelpColumn + 6, command.summary);
  }
  text +=
      "\nmillrace <command> --help lists the options of a command; millrace --version prints the "
      "version.\n"
      "Exit codes: 0 done, 2 usage or configuration, 3 data, 4 numeric, 5 input or output, 6 "
      "invalid "
      "checkpoint,\n"
      "7 peer failure, 70 internal error, 75 pre-empted, 124 watchdog, 130 interrupted.\n";
  return text;
}

std::string command_help(const CommandSpec& command) {
  std::string text = fmt::format("usage: millrace {}{}{} [options]\n\n{}\n\nExample:\n  {}\n",
                                 command.name, command.arguments.empty() ? "" : " ",
                                 command.arguments, command.summary, command.example);
  const OptionSpec* previous = nullptr;
  for (const OptionSpec& spec : option_table()) {
    if (!spec.taken_by(command.id)) continue;
    if (previous == nullptr || previous->section != spec.section)
      text += fmt::format("\n{}:\n", section_heading(spec.section));
    text += option_help(spec);
    previous = &spec;
  }
  if (command.id == Command::Validate)
    text +=
        "\nThe other options of millrace train are accepted as well, so that the command line of "
        "a\n"
        "training can be reused; they have no effect on validation.\n";
  if (previous != nullptr)
    text +=
        "\nBrackets name the trainers that have the option; IPU 2.0 is the trainer of SDK 2.0.\n"
        "--dialect accepts the option names of the other trainers.\n"
        "Names may be shortened to a unique prefix. Precedence: command line, environment, file, "
        "default.\n";
  return text;
}

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

std::string option_reference() {
  std::string text =
      "# Options\n\n"
      "<!-- Generated by `millrace --write-option-reference configs/README.md`. -->\n\n"
      "A configuration file is a TOML file: `millrace train --config FILE`. A key is the name of "
      "an\noption without its dashes, in the section of its group. Unknown keys are errors. "
      "Precedence: command\nline, environment, file, default. A run directory holds the resolved "
      "configuration in `config.toml`.\nThe column *from* names the trainers that have the option; "
      "*restore* tells whether `millrace restore`\nmay change it.\n";
  const OptionSpec* previous = nullptr;
  for (const OptionSpec& spec : option_table()) {
    if (previous == nullptr || previous->section != spec.section) {
      text += spec.section == Section::Command
                  ? "\n## Only on the command line\n\n"
                  : fmt::format("\n## [{}]: {}\n\n", section_key(spec.section),
                                section_heading(spec.section));
      text +=
          "| key | values | default | unit | from | restore | meaning "
          "|\n|---|---|---|---|---|---|---|\n";
    }
    text += reference_row(spec);
    previous = &spec;
  }
  return text;
}

}  // namespace millrace::cli
