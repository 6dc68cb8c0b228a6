// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.hpp"

namespace millrace::cli {

/// Input of a command.
struct Invocation {
  std::string_view command = {};  ///< its name in the table
  Patch options;
  std::vector<std::string> arguments = {};  ///< those that the row of the command names
  Spellings spellings = {};                 ///< of its dialect, for messages
  Environment environment;
  std::string command_line;               ///< as typed, for logs
  std::vector<std::string> words;         ///< the same, word by word
  std::vector<std::string> notices = {};  ///< of its dialect, to print
  /// The options for a training set of this number of images, if they depend on it.
  std::function<Patch(std::int64_t images)> for_images = nullptr;
};

/// One row of the table of commands.
struct CommandSpec {
  Command id;
  std::string_view name;  ///< "inspect", or two words: "data generate"
  /// e.g. "FILE RUN_DIR"; all are needed but those in brackets, "RUN.." once or more
  std::string_view arguments;
  int (*run)(const Invocation&);  ///< returns the exit code
  std::string_view summary;
  std::string_view example;
};

/// The commands of the engine, then those of the tools.
[[nodiscard]] std::span<const CommandSpec> command_table();
/// The row of a command. Errors: Usage if it belongs to a tool that this program lacks.
[[nodiscard]] const CommandSpec& spec_of(Command id);

/// What a tool adds to the program: a folder of src/tools that does defines `Tool <folder>_tool()`.
struct Tool {
  std::span<const CommandSpec> commands = {};
  const OtherTrainers* dialects = nullptr;
};
/// The tools that this program is built with. The build defines it, from MILLRACE_TOOLS:
/// src/tools/CMakeLists.txt.
[[nodiscard]] std::vector<Tool> built_tools();
/// The tools of src/tools that it is built without, by the first words of their commands. The build
/// defines it, too.
[[nodiscard]] std::map<std::string_view, std::string_view> commands_left_out();

int command_train(const Invocation& invocation);
int command_restore(const Invocation& invocation);
int command_validate(const Invocation& invocation);
int command_plan(const Invocation& invocation);
int command_doctor(const Invocation& invocation);
int command_inspect(const Invocation& invocation);
int command_average(const Invocation& invocation);

/// Text of `millrace --help`.
[[nodiscard]] std::string general_help();
/// The commands of two words that begin with this one, as `millrace data --help` lists them; "" if
/// there are none.
[[nodiscard]] std::string group_help(std::string_view word);

/// Runs a command line and returns its exit code. Errors are printed to standard error, one line
/// each.
[[nodiscard]] int run(std::span<const std::string> words, const Environment& environment);

}  // namespace millrace::cli
