// SPDX-License-Identifier: Apache-2.0
//
// What a command line asks for. A line in the words of another trainer (`--dialect nvidia`) is read
// by a tool that registers `OtherTrainers`; messages about it then use its words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "core/error.hpp"

namespace millrace::cli {

/// How the line of another trainer spells an option of millrace, for messages.
struct Spelling {
  std::string word;         ///< with its dashes
  bool same_value = false;  ///< whether its value is that of the option of millrace
};
using Spellings = std::map<std::string, Spelling, std::less<>>;  ///< by option

/// A command line that was read.
struct CommandLine {
  Command command = Command::Train;
  Patch options = {};
  std::vector<std::string> arguments = {};  ///< words that are not options, in order
  Spellings spellings = {};                 ///< none: the line has the words of millrace
  std::vector<std::string> notices = {};
  /// The options of the same line for a training set of this number of images, on which lengths
  /// and warm-ups of other trainers depend; nullptr where they do not.
  std::function<Patch(std::int64_t images)> for_images = nullptr;
};

/// What was typed behind the name of a command.
struct TypedLine {
  Command command;
  std::span<const std::string> words;
  std::size_t max_arguments = 0;
  Environment environment;
};

/// Reads the lines of other trainers. A tool registers it (commands.hpp).
struct OtherTrainers {
  /// A line with --dialect. The command is the one that the line stands for. Errors: Usage.
  CommandLine (*read)(const TypedLine& line);
  /// Help on every name of the dialect in a line; empty when its names are millrace's own.
  std::string (*help)(std::span<const std::string> words);
  /// The command that the program in a line stands for: validate for validation.py.
  Command (*meant)(Command typed, std::span<const std::string> words);
  /// Errors: Usage for a program of another trainer's guide in place of a command, naming the
  /// command that does the same.
  void (*refuse_program)(const std::string& word);
};
/// The one that is built in; nullptr: none.
[[nodiscard]] const OtherTrainers* other_trainers();
/// The same for the --dialect of a line; nullptr if it has none. Errors: Usage if none is built in.
[[nodiscard]] const OtherTrainers* other_trainers(std::span<const std::string> words);

/// Options of a whole command line, including --dialect and --config. `command` is the one that was
/// typed; `train --restore-path` means `restore`. Errors: Usage, naming the word.
[[nodiscard]] CommandLine read_command_line(Command command, std::span<const std::string> words,
                                            std::size_t max_arguments,
                                            const Environment& environment);
/// The same for a line in millrace's own words.
[[nodiscard]] CommandLine read_own_line(const TypedLine& line);
/// Whether a line continues a run.
[[nodiscard]] bool continues_run(std::span<const std::string> words);
/// Removes the options that the command ignores, with one notice for those from the command line.
/// `unread` are other words that were given and not used.
void pass_over_idle(CommandLine& line, std::vector<std::string> unread = {});

/// `text` with the fields of a run named as a line spells them: --lr_init for `abs-learning-rate`.
/// `options` are those of the line, or of what it continues.
[[nodiscard]] std::string respelled(std::string text, const Patch& options,
                                    const Spellings& spellings = {});
[[nodiscard]] std::vector<std::string> respelled(std::vector<std::string> lines,
                                                 const Patch& options,
                                                 const Spellings& spellings = {});
[[nodiscard]] Error respelled(const Error& error, const Patch& options, const Spellings& spellings);

}  // namespace millrace::cli
