// SPDX-License-Identifier: Apache-2.0
//
// The table of options as text: help, manual pages, completion, and the page of options.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"

namespace millrace::cli {

/// What an option does, or why it has no effect.
[[nodiscard]] std::string meaning(const Field& spec);
/// Unit, default and variable of an option, e.g. "images; default 1; or $N".
[[nodiscard]] std::string remarks(const Field& spec);
/// The same with the trainers that have the option: " (images; default 1) [IPU]".
[[nodiscard]] std::string remarks_and_source(const Field& spec);

/// An entry of a help: `left`, followed by the text on the same or the next line, broken into
/// lines.
[[nodiscard]] std::string help_entry(const std::string& left, std::string_view text);

/// What a command's help is about.
struct HelpTopic {
  enum class Kind { Short, Section, All } kind = Kind::Short;
  std::string section = {};  ///< its key; that of a Section
  FamilySet families = 0;    ///< Short: also the options of these families of networks
};

/// Whether the command's help on this topic lists the option.
[[nodiscard]] bool lists(const CommandSpec& command, const HelpTopic& topic, const Field& spec);

/// Keys of the sections that a command has options in: "model", "data", ..., "command".
[[nodiscard]] std::vector<std::string> topics_of(const CommandSpec& command);
/// Its key in files; that of options on the command line only is "command".
[[nodiscard]] std::string_view topic_of(const Field& spec);

[[nodiscard]] std::string command_help(const CommandSpec& command, const HelpTopic& topic);

struct ExitCode {
  int code;
  std::string_view meaning;
};
/// What the exit codes of all commands mean.
[[nodiscard]] std::span<const ExitCode> exit_codes();

/// Text of configs/README.md.
[[nodiscard]] std::string option_reference();
/// Manual pages by file name: millrace.1, and millrace-<command>.1 for every command.
[[nodiscard]] std::map<std::string, std::string> manual_pages();
/// A script with which bash completes commands, options and their values.
[[nodiscard]] std::string bash_completion();

}  // namespace millrace::cli
