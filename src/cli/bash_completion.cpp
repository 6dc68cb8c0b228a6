// SPDX-License-Identifier: Apache-2.0
//
// Completion for bash, from the tables of commands and options.
#include <fmt/format.h>

#include "cli/option_text.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

/// What follows the tables: a function of its own, so that it can be read as a script.
constexpr std::string_view kFunction = R"sh(
_millrace() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command=${COMP_WORDS[1]-} first=2 choices=
  if [[ $command == data ]]; then
    command="data ${COMP_WORDS[2]-}"
    first=3
  fi
  # bash takes an equals sign for a word of its own.
  [[ $previous != = ]] || previous=${COMP_WORDS[COMP_CWORD - 2]}
  [[ $word != = ]] || word=
  if ((COMP_CWORD == 1)); then
    choices=$_millrace_commands
  elif ((COMP_CWORD < first)); then
    choices=$_millrace_data_commands
  elif [[ $previous == --help ]]; then
    choices=${_millrace_topics[$command]-}
  elif [[ $previous == --config ]]; then
    choices="list $("${COMP_WORDS[0]}" train --config list 2>/dev/null | cut -d ' ' -f 1)"
  elif [[ $previous == --* && -n ${_millrace_values[${previous#--}]-} ]]; then
    choices=${_millrace_values[${previous#--}]}
  elif [[ $word == -* ]]; then
    choices=${_millrace_options[$command]-}
  fi
  mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
  # Files, where nothing else fits.
  if ((${#COMPREPLY[@]} == 0)) || [[ $previous == --config ]]; then
    mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o filenames -F _millrace millrace
)sh";

std::string options_of(const CommandSpec& command) {
  std::string words = "--help --help-all";
  for (const Field& spec : field_table()) {
    if (!spec.taken_by(command.id)) continue;
    words += fmt::format(" --{}", spec.name);
    if (!spec.alias.empty()) words += fmt::format(" --{}", spec.alias);
  }
  return words;
}

}  // namespace

std::string bash_completion() {
  std::string commands = "help";
  std::string data;
  std::string options;
  std::string topics;
  for (const CommandSpec& command : command_table()) {
    const std::vector<std::string> name = split_list(command.name, ' ');
    if (name.size() == 1) commands += " " + name.front();
    if (name.size() == 2) data += (data.empty() ? "" : " ") + name.back();
    options += fmt::format("  [\"{}\"]=\"{}\"\n", command.name, options_of(command));
    topics += fmt::format("  [\"{}\"]=\"all {}\"\n", command.name, join(topics_of(command), " "));
  }
  std::string values;
  for (const Field& spec : field_table()) {
    if (spec.type != ValueType::Choice) continue;
    const std::string choices = join(run::choices(spec), " ");
    for (const std::string_view name : {spec.name, spec.alias})
      if (!name.empty()) values += fmt::format("  [{}]=\"{}\"\n", name, choices);
  }
  return fmt::format(
             "# Completion of millrace for bash, made of its tables of commands and options.\n"
             "_millrace_commands=\"{} data\"\n_millrace_data_commands=\"{}\"\n"
             "declare -gA _millrace_options=(\n{})\ndeclare -gA _millrace_topics=(\n{})\n"
             "declare -gA _millrace_values=(\n{})\n",
             commands, data, options, topics, values) +
         std::string(kFunction);
}

}  // namespace millrace::cli
