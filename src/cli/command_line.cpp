// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "cli/commands.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

std::string_view purpose(Command command) {
  if (command == Command::Validate)
    return "validation, which reads every image once and changes no weights";
  if (command == Command::Restore) return "a run that is continued";
  if (command == Command::Predict) return "a prediction";
  if (command == Command::Bench) return "a benchmark, which runs some steps and saves nothing";
  return command == Command::Plan ? "a plan" : "this training";
}

/// Whether a line has this option, with its value in the same word or the next one.
bool has_option(std::span<const std::string> words, const std::string& option) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    return word == option || word.starts_with(option + "=");
  });
}

}  // namespace

const OtherTrainers* other_trainers() {
  for (const Tool& tool : built_tools())
    if (tool.dialects != nullptr) return tool.dialects;
  return nullptr;
}

const OtherTrainers* other_trainers(std::span<const std::string> words) {
  if (!has_option(words, "--dialect")) return nullptr;
  const OtherTrainers* const reading = other_trainers();
  if (reading == nullptr)
    fail(ErrorKind::Usage,
         "--dialect: this program was built without the tool that reads the options of other "
         "trainers: see MILLRACE_TOOLS");
  return reading;
}

CommandLine read_command_line(Command command, std::span<const std::string> words,
                              std::size_t max_arguments, const Environment& environment) {
  const TypedLine line{command, words, max_arguments, environment};
  const OtherTrainers* const dialects = other_trainers(words);
  return dialects != nullptr ? dialects->read(line) : read_own_line(line);
}

CommandLine read_own_line(const TypedLine& line) {
  CommandLine read{.command = line.command};
  if (read.command == Command::Train && continues_run(line.words)) read.command = Command::Restore;
  read.options =
      load_options(read.command, line.words, line.max_arguments, line.environment, &read.arguments);
  pass_over_idle(read);
  return read;
}

bool continues_run(std::span<const std::string> words) {
  return has_option(words, "--restore-path");
}

void pass_over_idle(CommandLine& line, std::vector<std::string> unread) {
  std::vector<std::string> gone;
  for (const auto& [name, setting] : line.options.settings()) {
    if (find_field(name)->taken_by(line.command)) continue;
    if (setting.origin == Origin::File) continue;  // a file may serve several commands
    if (setting.origin == Origin::CommandLine) unread.push_back(setting.where);
    gone.push_back(name);
  }
  for (const std::string& name : gone) line.options.erase(name);
  if (!unread.empty())
    line.notices.push_back(
        fmt::format("{}: no effect on {}", join(unread, ", "), purpose(line.command)));
}

}  // namespace millrace::cli
