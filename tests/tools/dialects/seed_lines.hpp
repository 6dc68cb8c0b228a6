// SPDX-License-Identifier: Apache-2.0
//
// Command lines of the seeds, read as their users would type them behind `millrace train`.
#pragma once

#include "cli/cluster.hpp"
#include "tests/cli/support.hpp"

namespace millrace::cli::testing {

struct Read : CommandLine {
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
  std::vector<std::string> rest = {"--dialect", std::string(dialect)};
  rest.insert(rest.end(), line.begin() + static_cast<std::ptrdiff_t>(prefix.script), line.end());
  const Environment environment = environment_of(prefix.variables);
  Read read{read_command_line(Command::Train, rest, 0, environment)};
  read.options = for_all_workers(read.options, cluster_of(read.options, environment));
  if (const auto ranks = environment("OMPI_COMM_WORLD_SIZE"))
    read.machine.ranks = read.machine.local_ranks = std::stoi(*ranks);
  return read;
}

inline run::Run config_of(const Read& read) {
  return resolve(read.options, published_facts(read.options), read.machine).config;
}

}  // namespace millrace::cli::testing
