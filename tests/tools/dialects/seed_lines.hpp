// SPDX-License-Identifier: Apache-2.0
//
// Command lines of the seeds, read as their users would type them behind `millrace train`.
#pragma once

#include "cli/cluster.hpp"
#include "tests/cli/support.hpp"

namespace millrace::cli::testing {

struct Read {
  Command command = Command::Train;
  Patch options;
  std::vector<std::string> notices;
  std::function<Patch(std::int64_t images)> for_images = nullptr;
  MachineFacts machine{.cores = 2};
};

inline void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
}

/// Puts values in place of what a guide leaves open.
inline std::string filled_in(std::string line) {
  replace_all(line, "\\\n", " ");
  replace_all(line, "\n", " ");
  replace_all(line, "<path to imagenet>", "/data/imagenet");
  replace_all(line, "<path to results directory>", "/tmp/results");
  replace_all(line, "<path to results>", "/tmp/results");
  replace_all(line, "<path to checkpoint>", "/tmp/results");
  replace_all(line, "<batch size>", "256");
  replace_all(line, "<num_gpus>", "8");
  return line;
}

/// Words in front of the script's name: variables, and mpirun with its number of processes.
struct Prefix {
  std::map<std::string, std::string> variables;
  std::size_t script = 0;
};
inline Prefix read_prefix(const std::vector<std::string>& line) {
  Prefix prefix;
  while (prefix.script < line.size() && !line[prefix.script].ends_with(".py") &&
         !line[prefix.script].ends_with(".sh")) {
    const std::string& word = line[prefix.script];
    if (word == "-np") prefix.variables["OMPI_COMM_WORLD_SIZE"] = line.at(prefix.script + 1);
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos && !word.starts_with('-'))
      prefix.variables[word.substr(0, equals)] = word.substr(equals + 1);
    ++prefix.script;
  }
  return prefix;
}

/// The line in the dialect, with its script.
inline Read read_seed(std::string_view dialect, const std::string& text) {
  const std::vector<std::string> line = words(filled_in(text));
  const Prefix prefix = read_prefix(line);
  Read read;
  std::vector<std::string> rest = {"--dialect", std::string(dialect)};
  rest.insert(rest.end(), line.begin() + static_cast<std::ptrdiff_t>(prefix.script), line.end());
  const Environment environment = environment_of(prefix.variables);
  CommandLine translation = read_command_line(read.command, rest, 0, environment);
  read.command = translation.command;
  read.options = for_all_workers(translation.options, cluster_of(translation.options, environment));
  read.notices = std::move(translation.notices);
  read.for_images = std::move(translation.for_images);
  if (const auto ranks = environment("OMPI_COMM_WORLD_SIZE"))
    read.machine.ranks = read.machine.local_ranks = std::stoi(*ranks);
  return read;
}

inline run::Run config_of(const Read& read) {
  return resolve(read.options, published_facts(read.options), read.machine).config;
}

}  // namespace millrace::cli::testing
