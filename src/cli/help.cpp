// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/option_text.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

constexpr std::size_t kHelpColumn = 30;  ///< where texts begin
constexpr std::size_t kHelpWidth = 100;

/// A text of the table, which names other fields `like-this`.
std::string spelled(std::string_view text) { return respelled(std::string(text), Patch()); }

/// Breaks `text` between words into lines of kHelpWidth; the first begins at column `begin`, later
/// ones at `indent`.
std::string wrapped(std::string_view text, std::size_t begin, std::size_t indent) {
  std::string out;
  std::size_t column = begin;
  for (const std::string& word : split_list(text, ' ')) {
    const bool breaks = column + 1 + word.size() > kHelpWidth;
    if (breaks) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!out.empty()) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

/// Choices that do not fit on the line of the name are listed before the text.
std::string option_help(const Field& spec) {
  std::string left = fmt::format("  --{}", spec.name);
  if (!spec.alias.empty()) left += fmt::format(", --{}", spec.alias);
  std::string text = meaning(spec) + remarks_and_source(spec);
  if (spec.type != ValueType::Flag && left.size() + 1 + spec.value_name.size() <= kHelpWidth) {
    left += fmt::format(" {}", spec.value_name);
  } else if (spec.type != ValueType::Flag) {
    left += " NAME";
    text = fmt::format("{}: {}", describe_values(spec), text);
  }
  return help_entry(left, text);
}

/// A line or two: the meaning, without what follows a semicolon where it is longer than a line; the
/// choices; the default if it is a word.
std::string brief_help(const Field& spec) {
  constexpr std::size_t kLine = kHelpWidth - kHelpColumn;
  std::string_view value = spec.value_name;
  const std::string name = fmt::format("  --{}", spec.name);
  const bool fits = name.size() + value.size() + 3 <= kHelpColumn;
  const bool chooses = spec.type == ValueType::Choice && !fits;
  value = chooses ? "NAME" : value.substr(0, fits ? value.size() : value.find('['));
  const std::string left = spec.type == ValueType::Flag ? name : fmt::format("{} {}", name, value);
  std::string text(spec.help.size() <= kLine ? spec.help
                                             : spec.help.substr(0, spec.help.find(';')));
  if (const std::string names = join(run::choices(spec), ", ");
      chooses && text.size() + names.size() + 4 <= 2 * kLine)
    text += ": " + names;
  text = spelled(text);
  const std::string otherwise = spelled(spec.default_text.value_or(""));
  std::string entry = help_entry(left, text);
  if (otherwise.empty() || otherwise.find_first_of(" ;") != std::string::npos ||
      spec.type == ValueType::Flag)
    return entry;
  const std::string longer = help_entry(left, fmt::format("{} ({})", text, otherwise));
  return std::ranges::count(longer, '\n') == std::ranges::count(entry, '\n') ? longer : entry;
}

/// The options on a topic, under the headings of their sections.
std::string option_list(const CommandSpec& command, const HelpTopic& topic) {
  std::string text;
  const Field* previous = nullptr;
  for (const Field& spec : field_table()) {
    if (!lists(command, topic, spec)) continue;
    if (previous == nullptr || heading_of(*previous) != heading_of(spec))
      text += fmt::format("{}{}:\n",
                          previous == nullptr || topic.kind != HelpTopic::Kind::Short ? "\n" : "",
                          heading_of(spec));
    text += topic.kind == HelpTopic::Kind::Short ? brief_help(spec) : option_help(spec);
    previous = &spec;
  }
  return text;
}

/// What the short help leaves out, and how to see it.
std::string other_topics(const CommandSpec& command, const HelpTopic& topic) {
  std::size_t all = 0;
  std::size_t listed = 0;
  for (const Field& spec : field_table()) {
    all += lists(command, {.kind = HelpTopic::Kind::All}, spec) ? 1 : 0;
    listed += lists(command, topic, spec) ? 1 : 0;
  }
  if (all == 0) return "";
  if (all == listed)
    return fmt::format("\nmillrace {} --help-all explains the options at length.\n", command.name);
  const std::string rest = fmt::format(
      "millrace {} --help-all explains all {} options, --help TOPIC those of one topic: {}.",
      command.name, all, join(topics_of(command), ", "));
  return fmt::format("\n{}\n", wrapped(rest, 0, 0));
}

}  // namespace

std::string help_entry(const std::string& left, std::string_view text) {
  const std::string gap = left.size() + 2 <= kHelpColumn
                              ? std::string(kHelpColumn - left.size(), ' ')
                              : "\n" + std::string(kHelpColumn, ' ');
  return left + gap + wrapped(text, kHelpColumn, kHelpColumn) + "\n";
}

std::string meaning(const Field& spec) {
  return spelled(spec.idle.empty() ? std::string(spec.help)
                                   : fmt::format("{}; no effect: {}", spec.help, spec.idle));
}

std::string remarks(const Field& spec) {
  std::vector<std::string> parts;
  if (!spec.unit.empty()) parts.emplace_back(spec.unit);
  if (!spec.default_text.value_or("").empty())
    parts.push_back(fmt::format("default {}", *spec.default_text));
  if (!spec.environment.empty()) parts.push_back(fmt::format("or ${}", spec.environment));
  return spelled(join(parts, "; "));
}

std::string remarks_and_source(const Field& spec) {
  const std::string text = remarks(spec);
  return fmt::format("{} [{}]", text.empty() ? "" : fmt::format(" ({})", text), spec.source);
}

bool lists(const CommandSpec& command, const HelpTopic& topic, const Field& spec) {
  if (!spec.taken_by(command.id)) return false;
  const bool continues = command.id == Command::Restore;
  switch (topic.kind) {
    case HelpTopic::Kind::All:
      return true;
    case HelpTopic::Kind::Section:
      return topic.section == topic_of(spec);
    case HelpTopic::Kind::Short:
      if ((spec.families & topic.families) != 0) return true;
      // Of a run that continues the question is what may change.
      return continues ? spec.decides != Decides::Mathematics && spec.idle.empty()
                       : (spec.listed_by & static_cast<CommandSet>(command.id)) != 0;
  }
  return false;
}

std::string_view topic_of(const Field& spec) {
  const std::string_view key = section_key(spec.section);
  return key.empty() ? "command" : key;
}

std::vector<std::string> topics_of(const CommandSpec& command) {
  std::vector<std::string> topics;
  for (const Field& spec : field_table())
    if (spec.taken_by(command.id) && std::ranges::find(topics, topic_of(spec)) == topics.end())
      topics.emplace_back(topic_of(spec));
  return topics;
}

std::span<const ExitCode> exit_codes() {
  static constexpr std::array kCodes = std::to_array<ExitCode>({
      {0, "done"},
      {2, "usage or configuration"},
      {3, "data"},
      {4, "numeric"},
      {5, "input or output"},
      {6, "invalid checkpoint"},
      {7, "peer failure"},
      {70, "internal error"},
      {75, "pre-empted"},
      {124, "watchdog"},
      {130, "interrupted"},
  });
  return kCodes;
}

namespace {

/// A line for each command whose name begins so.
std::string command_list(std::string_view begin) {
  std::string text;
  for (const CommandSpec& command : command_table()) {
    if (!command.name.starts_with(begin)) continue;
    const std::string left = fmt::format("  {} {}", command.name, command.arguments);
    constexpr std::size_t kColumn = kHelpColumn + 6;
    const std::string gap = left.size() + 2 > kColumn ? "\n" + std::string(kColumn, ' ') : "";
    text += fmt::format("{:<{}}{}{}\n", left, gap.empty() ? kColumn : 0, gap, command.summary);
  }
  return text;
}

}  // namespace

std::string group_help(std::string_view word) {
  const std::string list = command_list(fmt::format("{} ", word));
  if (list.empty()) return "";
  return fmt::format(
      "usage: millrace {0} <command> [options]\n\nCommands:\n{1}\n"
      "millrace {0} <command> --help lists the options of a command.\n",
      word, list);
}

std::string general_help() {
  std::string text = fmt::format(
      "usage: millrace <command> [options]\n\n"
      "Trains convolutional networks.\n\nCommands:\n{}",
      command_list(""));
  std::string codes = "Exit codes:";
  for (const auto& [code, what] : exit_codes())
    codes += fmt::format("{} {} {}", code == 0 ? "" : ",", code, what);
  text += fmt::format(
      "\nmillrace <command> --help lists the options of a command; millrace --version prints the "
      "version.\n{}.\n",
      wrapped(codes, 0, 0));
  return text;
}

std::string command_help(const CommandSpec& command, const HelpTopic& topic) {
  std::string text;
  if (topic.kind != HelpTopic::Kind::Section)
    text = fmt::format("usage: millrace {}{}{} [options]\n\n{}\nExample: {}\n", command.name,
                       command.arguments.empty() ? "" : " ", command.arguments, command.summary,
                       command.example);
  if (topic.kind == HelpTopic::Kind::Short && command.id == Command::Restore)
    text +=
        "\nThese options may change. Those that shape the results are fixed, and are refused by "
        "name.\n";
  const std::string options = option_list(command, topic);
  text += options;
  if (topic.kind == HelpTopic::Kind::Short) return text + other_topics(command, topic);
  if (topic.kind == HelpTopic::Kind::All && command.id == Command::Validate)
    text +=
        "\nThe other options of millrace train are accepted as well, so that the command line of "
        "a\n"
        "training can be reused; they have no effect on validation.\n";
  if (!options.empty())
    text +=
        "\nBrackets name the trainers that have the option; IPU 2.0 is the trainer of SDK 2.0.\n"
        "--dialect accepts the option names of the other trainers.\n"
        "Names may be shortened to a unique prefix. Precedence: command line, environment, file, "
        "default.\n";
  return text;
}

}  // namespace millrace::cli
