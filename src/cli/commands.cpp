// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cli/launch.hpp"
#include "cli/open_run.hpp"
#include "cli/option_text.hpp"
#include "cli/recorded_runs.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "millrace_version.hpp"
#include "run/recipes.hpp"
#include "train/summaries.hpp"

namespace millrace::cli {
namespace {

constexpr std::array kCommands = std::to_array<CommandSpec>({
    {Command::Train, "train", "", command_train,
     "Trains a network, with logs, checkpoints and validation in a run directory.",
     "millrace train --dataset cifar-10 --data-dir data --model-size 20 --epochs 10"},
    {Command::Restore, "restore", "[RUN_DIR|CHECKPOINT]", command_restore,
     "Continues a run from its newest checkpoint, bit for bit.",
     "millrace restore logs/RN20_bs32_BN_16.32_v0.2.0_3S9"},
    {Command::Validate, "validate", "[RUN_DIR|CHECKPOINT]", command_validate,
     "Validates one checkpoint, or all checkpoints of a run directory.",
     "millrace validate logs/RN20_bs32_BN_16.32_v0.2.0_3S9 --json"},
    {Command::Plan, "plan", "", command_plan,
     "Shows how a network would run as a pipeline; needs no data or devices.",
     "millrace plan --dataset imagenet --model-size 50 --shards 4 --pipeline-depth 64"},
    {Command::Doctor, "doctor", "", command_doctor,
     "Shows the features of this machine and build, and where ranks would run.",
     "mpirun -n 4 millrace doctor --threads-per-device 2"},
    {Command::Inspect, "inspect", "CHECKPOINT|RUN_DIR", command_inspect,
     "Shows the contents of a checkpoint, or of the newest one in a run directory.",
     "millrace inspect logs/RN20_bs32_BN_16.32_v0.2.0_3S9 --verify --digest"},
    {Command::Average, "average", "RUN_DIR", command_average,
     "Averages checkpoints into RUN_DIR/averages, which can be validated like a run.",
     "millrace average logs/RN20_bs32_BN_16.32_v0.2.0_3S9 --count 5"},
});

struct Matched {
  const CommandSpec* command;
  std::size_t words;  ///< number of words in the name
};

Matched match_command(std::span<const std::string> words) {
  for (const CommandSpec& command : command_table()) {
    const std::vector<std::string> name = split_list(command.name, ' ');
    if (words.size() >= name.size() && std::ranges::equal(name, words.first(name.size())))
      return {&command, name.size()};
  }
  const auto left_out = commands_left_out();
  if (const auto tool = left_out.find(words[0]); tool != left_out.end())
    io::lacks_tool(words[0], tool->second);
  if (const OtherTrainers* const dialects = other_trainers()) dialects->refuse_program(words[0]);
  // The second word belongs to the name if the first starts a name of two words.
  std::vector<std::string> names;
  std::string typed = words[0];
  for (const CommandSpec& command : command_table()) {
    names.emplace_back(command.name);
    if (command.name.starts_with(words[0] + " ") && words.size() > 1 && !words[1].starts_with('-'))
      typed = words[0] + " " + words[1];
  }
  const std::string nearest = nearest_match(typed, names);
  fail(ErrorKind::Usage, "unknown command '{}'; {}", typed,
       nearest.empty() ? fmt::format("commands: {}", join(names, ", "))
                       : fmt::format("did you mean '{}'?", nearest));
}

/// The word after `word`, or after an equals sign in it.
std::string value_after(std::string_view word, std::span<const std::string> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == word) return i + 1 < words.size() ? words[i + 1] : "";
    if (words[i].starts_with(std::string(word) + "=")) return words[i].substr(word.size() + 1);
  }
  return "";
}

/// The topic of `--help TOPIC`. Errors: Usage for an unknown one.
HelpTopic help_topic(const CommandSpec& command, std::span<const std::string> words) {
  const std::string topic = value_after("--help", words);
  const std::vector<std::string> known = topics_of(command);
  if (std::ranges::find(known, topic) != known.end())
    return {.kind = HelpTopic::Kind::Section, .section = topic};
  const bool free = topic.empty() || topic.starts_with('-') || !command.arguments.empty();
  if (!free && topic != "all") {
    const std::string nearest = nearest_match(topic, known);
    fail(ErrorKind::Usage, "--help: '{}' is not a topic of millrace {}; {}", topic, command.name,
         nearest.empty() ? fmt::format("topics: {}, all", join(known, ", "))
                         : fmt::format("did you mean {}?", nearest));
  }
  if (topic == "all") return {.kind = HelpTopic::Kind::All};
  return {.families = family_named(value_after("--model", words))};
}

/// The help that `words` ask for; a dialect has its own. Empty when they ask for none.
std::string wanted_help(const CommandSpec& command, std::span<const std::string> words) {
  const auto asks = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::any_of(words, [&](const std::string& word) {
      return std::ranges::find(names, word.substr(0, word.find('='))) != names.end();
    });
  };
  if (asks({"--help-all"})) return command_help(command, {.kind = HelpTopic::Kind::All});
  if (!asks({"--help", "-h", "--helpfull", "--helpshort"})) return "";
  const OtherTrainers* const dialects = other_trainers(words);
  const std::string text = dialects != nullptr ? dialects->help(words) : "";
  if (!text.empty() || !asks({"--help", "-h"})) return text;
  const CommandSpec& meant =
      dialects != nullptr ? spec_of(dialects->meant(command.id, words)) : command;
  return command_help(meant, help_topic(meant, words));
}

std::string typed_line(std::span<const std::string> words) {
  std::string line = "millrace";
  for (const std::string& word : words) line += " " + shell_word(word);
  return line;
}

/// A restore and a validation take their run as an argument, too.
void name_restored(CommandLine& line) {
  if (line.arguments.empty()) return;
  const std::string run = line.arguments.front();
  if (const Setting* const given = line.options.find("restore-path"))
    fail(ErrorKind::Usage, "{} and '{}' both name a run: give one of them", given->where, run);
  line.options.set(*find_field("restore-path"), {.value = run, .where = "--restore-path"});
  line.arguments.clear();
}

/// A prediction takes its run as an argument; the options of a dialect name it as a validation
/// does.
void name_run_first(CommandLine& line) {
  const std::optional<std::string> run = line.options.text("restore-path");
  if (!run) return;
  line.arguments.insert(line.arguments.begin(), *run);
  line.options.erase("restore-path");
}

/// The run whose config.toml names a network of which the file is no longer there; "" of others.
std::filesystem::path run_with_network(const Patch& options) {
  const Setting& model = *options.find("model");
  std::error_code ignored;
  if (model.origin != Origin::File ||
      std::filesystem::exists(std::get<std::string>(model.value), ignored))
    return "";
  const std::filesystem::path config = options.text("config").value_or("");
  const std::filesystem::path run = std::filesystem::absolute(config).parent_path();
  return io::list_checkpoints(run).empty() ? "" : run;
}

/// Reads the network of the file that --model names, or without it --init-path. What continues a
/// run has recorded it.
void read_network(Patch& options, std::vector<std::string>& notices) {
  if (const Setting* const init = options.find("init-path");
      init != nullptr && options.find("model") == nullptr &&
      io::is_network_file(std::get<std::string>(init->value)))
    options.set(*find_field("model"), Setting(*init));
  const std::string file = options.text("model").value_or("");
  if (!io::is_network_file(file) || options.text("restore-path")) return;
  if (const std::filesystem::path run = run_with_network(options); !run.empty())
    return training::add_recorded_network(options, run);
  io::NetworkFile read = training::built_guests().files.open_network(file);
  options.network = std::make_shared<const models::Graph>(std::move(read.graph));
  std::ranges::move(read.notices, std::back_inserter(notices));
}

int run_command(std::span<const std::string> words, const Environment& environment) {
  const Matched matched = match_command(words);
  const std::span<const std::string> rest = words.subspan(matched.words);
  if (const std::string help = wanted_help(*matched.command, rest); !help.empty()) {
    fmt::print("{}", help);
    return 0;
  }
  if (value_after("--config", rest) == "list") {
    fmt::print("{}", run::recipe_list());
    return 0;
  }
  const std::size_t arguments = matched.command->arguments.ends_with("..")
                                    ? rest.size()
                                    : split_list(matched.command->arguments, ' ').size();
  CommandLine line = read_command_line(matched.command->id, rest, arguments, environment);
  if (line.command == Command::Restore || line.command == Command::Validate) name_restored(line);
  const std::vector<std::string> found = find_recorded_runs(line);
  if (line.command == Command::Predict) name_run_first(line);
  std::vector<std::string>& notices = line.notices;
  notices.insert(notices.begin(), found.begin(), found.end());
  const CommandSpec& command = spec_of(line.command);
  read_network(line.options, line.notices);
  const Invocation invocation{.command = command.name,
                              .options = std::move(line.options),
                              .arguments = std::move(line.arguments),
                              .spellings = std::move(line.spellings),
                              .environment = environment,
                              .command_line = typed_line(words),
                              .words = {words.begin(), words.end()},
                              .notices = std::move(line.notices),
                              .for_images = std::move(line.for_images)};
  const auto needed = std::ranges::count_if(
      split_list(command.arguments, ' '), [](const std::string& a) { return !a.starts_with('['); });
  if (std::ssize(invocation.arguments) < needed)
    fail(ErrorKind::Usage, "millrace {} needs {}; millrace {} --help shows the usage", command.name,
         command.arguments, command.name);
  // Commands that may run on several ranks print what they were told on one of them.
  if (!find_field("restore-path")->taken_by(command.id)) print_lines(stderr, found);
  try {
    return command.run(invocation);
  } catch (const Error& error) {
    throw respelled(error, invocation.options, invocation.spellings);
  }
}

bool is_help(std::string_view word) { return word == "--help" || word == "-h" || word == "help"; }

/// Lists the commands that begin with one word, for "data" alone, "data --help" and "help data",
/// and returns the exit code. Empty for other lines.
std::optional<int> list_group(std::span<const std::string> words) {
  const bool asks = words.size() == 2 && (words[0] == "help" || is_help(words[1]));
  if (words.size() != 1 && !asks) return {};
  const std::string list = group_help(words[0] == "help" ? words.back() : words[0]);
  if (list.empty()) return {};
  fmt::print(asks ? stdout : stderr, "{}", list);
  return asks ? 0 : exit_code(ErrorKind::Usage);
}

/// `help COMMAND [TOPIC]` is `COMMAND --help [TOPIC]`.
int run_help(std::span<const std::string> words) {
  const Matched matched = match_command(words);
  std::vector<std::string> line = {"--help"};
  line.insert(line.end(), words.begin() + static_cast<std::ptrdiff_t>(matched.words), words.end());
  fmt::print("{}", wanted_help(*matched.command, line));
  return 0;
}

/// Writes what the build and the maintainers make of the tables; false for another word.
bool write_generated(std::string_view what, const std::filesystem::path& where) {
  if (what == "--write-option-reference")
    io::write_file_atomically(where, option_reference());
  else if (what == "--write-completion")
    io::write_file_atomically(where, bash_completion());
  else if (what == "--write-manuals")
    for (const auto& [name, text] : manual_pages()) io::write_file_atomically(where / name, text);
  else
    return false;
  return true;
}

int dispatch(std::span<const std::string> words, const Environment& environment) {
  if (words.empty()) {
    fmt::print(stderr, "{}", general_help());
    return exit_code(ErrorKind::Usage);
  }
  if (const std::optional<int> code = list_group(words)) return *code;
  if (is_help(words[0])) {
    if (words.size() == 1 || words[0] != "help") {
      fmt::print("{}", general_help());
      return 0;
    }
    return run_help(words.subspan(1));
  }
  if (words[0] == "--version") {
    fmt::print("millrace {} ({})\n", kVersion, kCommit);
    return 0;
  }
  if (words.size() == 2 && write_generated(words[0], words[1])) return 0;
  return run_command(words, environment);
}

}  // namespace

std::span<const CommandSpec> command_table() {
  static const std::vector<CommandSpec> all = [] {
    std::vector<CommandSpec> commands(kCommands.begin(), kCommands.end());
    for (const Tool& tool : built_tools())
      commands.insert(commands.end(), tool.commands.begin(), tool.commands.end());
    return commands;
  }();
  return all;
}

const CommandSpec& spec_of(Command id) {
  const auto found = std::ranges::find(command_table(), id, &CommandSpec::id);
  if (found == command_table().end())
    fail(ErrorKind::Usage,
         "this program was built without the tool that does this: see MILLRACE_TOOLS");
  return *found;
}

int run(std::span<const std::string> words, const Environment& environment) {
  try {
    const int code = dispatch(words, environment);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      fail(ErrorKind::Io, "cannot write to standard output");
    return code;
  } catch (...) {
    const Error error = current_error();
    report_error(error);
    return exit_code(error.kind());
  }
}

}  // namespace millrace::cli
