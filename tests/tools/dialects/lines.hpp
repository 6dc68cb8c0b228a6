// SPDX-License-Identifier: Apache-2.0
//
// Command lines as their users type them.
#pragma once

#include <regex>

#include "cli/cluster.hpp"
#include "tables.hpp"
#include "tests/cli/support.hpp"

namespace millrace::cli::testing {

/// A line that was read, and a machine that is large enough for it.
struct Read : CommandLine {
  MachineFacts machine{.cores = 256};
};

/// The words of a shell line: quotes hold a word together.
inline std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> result;
  std::string word;
  bool quote = false;
  for (const char c : line + " ") {
    if (c == '\'') quote = !quote;
    if (c == '\'' || (c == ' ' && !quote)) {
      if (c == ' ' && !word.empty()) result.push_back(std::exchange(word, ""));
      continue;
    }
    word += c;
  }
  return result;
}

/// Takes variables and a launcher out of a line, with millrace behind them.
inline std::map<std::string, std::string> take_variables(std::vector<std::string>& line) {
  std::map<std::string, std::string> variables;
  const auto program = std::ranges::find(line, "millrace");
  for (auto word = line.begin(); word != program; ++word) {
    const std::size_t equals = word->find('=');
    if (equals != std::string::npos) variables[word->substr(0, equals)] = word->substr(equals + 1);
    if (*word != "-np" || word + 1 == program) continue;
    variables["OMPI_COMM_WORLD_RANK"] = "0";
    variables["OMPI_COMM_WORLD_SIZE"] = *(word + 1);
  }
  line.erase(line.begin(), program == line.end() ? program : program + 1);
  return variables;
}

/// Reads a line such as "VARIABLE=a mpirun -np 2 millrace train --epochs 3".
inline Read read_typed(const std::string& text) {
  std::vector<std::string> line = shell_words(text);
  const Environment environment = environment_of(take_variables(line));
  const std::span<const CommandSpec> table = command_table();
  const auto command = std::ranges::find_if(table, [&](const CommandSpec& spec) {
    return (join(line, " ") + ' ').starts_with(std::string(spec.name) + ' ');
  });
  if (command == table.end()) throw std::invalid_argument("no command: " + text);
  const auto behind = std::span(line).subspan(words(command->name).size());
  const std::size_t arguments =
      command->arguments.ends_with("..") ? behind.size() : words(command->arguments).size();
  Read read{read_command_line(command->id, behind, arguments, environment)};
  read.options = for_all_workers(read.options, cluster_of(read.options, environment));
  if (const auto ranks = environment("OMPI_COMM_WORLD_SIZE"))
    read.machine.ranks = read.machine.local_ranks = std::stoi(*ranks);
  return read;
}

/// Puts values in place of what a guide leaves open.
inline std::string filled_in(std::string line) {
  const std::pair<std::string_view, std::string_view> values[] = {
      {"<path to imagenet>", "/data/imagenet"},
      {"<path to results directory>", "/tmp/results"},
      {"<path to results>", "/tmp/results"},
      {"<path to checkpoint>", "/tmp/results"},
      {"<batch size>", "256"},
      {"<num_gpus>", "8"},
      {"$PYTHON", "python"}};
  for (const auto& [open, value] : values)
    for (std::size_t at = 0; (at = line.find(open, at)) != std::string::npos; at += value.size())
      line.replace(at, open.size(), value);
  return line;
}

/// "nvidia: mpirun -np 8 python main.py .." is a line of that guide, and typed as "mpirun -np 8
/// millrace train --dialect nvidia python main.py ..". Instead of a dialect, cifar and imagenet
/// stand for a training on synthetic images; and anything else is typed behind millrace.
inline std::string typed(const std::string& line) {
  const std::size_t colon = line.find(": ");
  const std::string who = line.substr(0, colon);
  const std::string rest = filled_in(line.substr(colon + 2));
  if (who == "cifar") return fmt::format("millrace train {}{}", kCifar, rest);
  if (who == "imagenet") return fmt::format("millrace train {}{}", kImageNet, rest);
  if (who != "ipu" && who != "nvidia" && who != "habana" && who != "surfsara")
    return fmt::format("millrace {} {}", who, rest);
  static const std::regex in_front(R"((\w+=\S* )*(mpi(run|exec) .*? (?=python|\S+\.(py|sh)))?)");
  std::smatch match;
  std::regex_search(rest, match, in_front, std::regex_constants::match_continuous);
  return fmt::format("{}millrace train --dialect {} {}", match.str(), who, match.suffix().str());
}

inline Read read_line(const std::string& line) { return read_typed(typed(line)); }

/// Whether a line says all that a run is, and not where one lies that does.
inline bool resolves(const Read& read) {
  return read.command == Command::Train || read.command == Command::Bench ||
         (read.command == Command::Validate && read.options.find("restore-path") == nullptr);
}

/// For a training set of that many images, or else for the published one.
inline Resolution resolved(const Read& read, std::optional<std::int64_t> images = std::nullopt) {
  DatasetFacts facts = published_facts(read.options);
  facts.train_size = images.value_or(facts.train_size);
  return resolve(read.options, facts, read.machine);
}

inline run::Run config_of(const std::string& line) { return resolved(read_line(line)).config; }

}  // namespace millrace::cli::testing
