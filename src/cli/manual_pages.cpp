// SPDX-License-Identifier: Apache-2.0
//
// Manual pages in the format of man(7), from the tables of commands and options.
#include <fmt/format.h>

#include "cli/command_line.hpp"
#include "cli/option_text.hpp"
#include "core/text.hpp"
#include "millrace_version.hpp"

namespace millrace::cli {
namespace {

/// `text` with what troff would read as a command escaped.
std::string troff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '|')
      out += "|\\:";  // a line may break here
    else if (c == '\'' || c == '.')
      out += fmt::format("\\&{}", c);
    else
      out += c;
  }
  return out;
}

/// "millrace-data-generate"
std::string page_name(std::string_view command) {
  std::string name = "millrace-" + std::string(command);
  for (char& c : name)
    if (c == ' ') c = '-';
  return name;
}

std::string header(std::string_view name, std::string_view summary) {
  return fmt::format(
      ".TH {} 1 \"\" \"millrace {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
      troff(to_lower(name)), kVersion, troff(name), troff(summary));
}

std::string option_entry(const Field& spec) {
  std::string text = fmt::format(".TP\n\\fB\\-\\-{}\\fR", troff(spec.name));
  if (!spec.alias.empty()) text += fmt::format(", \\fB\\-\\-{}\\fR", troff(spec.alias));
  if (spec.type != ValueType::Flag) text += fmt::format(" \\fI{}\\fR", troff(spec.value_name));
  text += fmt::format("\n{}", troff(meaning(spec)));
  if (const std::string more = remarks(spec); !more.empty())
    text += fmt::format(" ({})", troff(more));
  if (!spec.needs.empty())
    text += fmt::format("; needs {}", troff(respelled(std::string(spec.needs), Patch())));
  return text + "\n";
}

std::string options(const CommandSpec& command) {
  std::string text;
  const Field* previous = nullptr;
  const bool continues = command.id == Command::Restore;
  const HelpTopic topic = {continues ? HelpTopic::Kind::Short : HelpTopic::Kind::All};
  for (const Field& spec : field_table()) {
    if (!lists(command, topic, spec)) continue;
    if (previous == nullptr) text += ".SH OPTIONS\n";
    if (previous == nullptr && continues)
      text += "Options that shape the results are fixed, and are refused by name\\&.\n";
    if (previous == nullptr || heading_of(*previous) != heading_of(spec))
      text += fmt::format(".SS {}\n", troff(heading_of(spec)));
    text += option_entry(spec);
    previous = &spec;
  }
  return text;
}

std::string command_page(const CommandSpec& command) {
  std::string text = header(page_name(command.name), command.summary);
  text +=
      fmt::format(".B millrace {}\n{}[options]\n", command.name,
                  command.arguments.empty() ? "" : fmt::format("{} ", troff(command.arguments)));
  text += options(command);
  return text + fmt::format(".SH EXAMPLE\n.EX\n{}\n.EE\n.SH SEE ALSO\n.BR millrace (1)\n",
                            troff(command.example));
}

std::string general_page() {
  std::string text = header("millrace", "trains convolutional networks as pipelines");
  text += ".B millrace\n.I command\n[options]\n.SH COMMANDS\n";
  for (const CommandSpec& command : command_table())
    text += fmt::format(".TP\n\\fB{}\\fR {}\n{}\n", troff(command.name), troff(command.arguments),
                        troff(command.summary));
  text +=
      ".SH CONFIGURATION FILES\nAn option may also be given in a TOML file, \\fB\\-\\-config\\fR "
      "\\fIFILE\\fR. A key is the name of the option without its dashes, in the section of its "
      "group. \\fB\\-\\-config list\\fR lists the recipes that come with millrace. Precedence: "
      "command line, environment, file, default\\&.\n.SH EXIT STATUS\n";
  for (const auto& [code, what] : exit_codes())
    text += fmt::format(".TP\n.B {}\n{}\n", code, troff(what));
  text += ".SH SEE ALSO\n";
  for (const CommandSpec& command : command_table())
    text += fmt::format(".BR {} (1){}\n", troff(page_name(command.name)),
                        &command == &command_table().back() ? "" : ",");
  return text;
}

}  // namespace

std::map<std::string, std::string> manual_pages() {
  std::map<std::string, std::string> pages = {{"millrace.1", general_page()}};
  for (const CommandSpec& command : command_table())
    pages[page_name(command.name) + ".1"] = command_page(command);
  return pages;
}

}  // namespace millrace::cli
