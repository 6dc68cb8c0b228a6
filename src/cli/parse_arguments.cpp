// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "cli/options.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "run/recipes.hpp"

namespace millrace::cli {
namespace {

[[noreturn]] void fail_unknown(Command command, std::string_view name) {
  std::vector<std::string> known;
  for (const Field& spec : field_table()) {
    if (!spec.understood_by(command)) continue;
    known.emplace_back(spec.name);
    if (!spec.alias.empty()) known.emplace_back(spec.alias);
  }
  const Field* const other = find_field(name);
  if (other != nullptr && command == Command::Restore && other->taken_by(Command::Train))
    fail(ErrorKind::Usage, "--{} is for new runs, and this line continues one: leave it out", name);
  if (other != nullptr)
    fail(ErrorKind::Usage, "--{} is not an option of this command; --help lists its options", name);
  const std::string nearest = nearest_match(name, known);
  fail(ErrorKind::Usage, "unknown option --{}; {}", name,
       nearest.empty() ? "--help lists the options" : fmt::format("did you mean --{}?", nearest));
}

/// The option that `name` spells or uniquely abbreviates. `--epoch` is `--epochs`, because the
/// other match, `--epochs-between-evals`, starts with that whole name.
const Field& complete(Command command, std::string_view name) {
  std::vector<const Field*> matches;
  std::vector<const Field*> passed_over;
  for (const Field& spec : field_table()) {
    if (!spec.understood_by(command)) continue;
    if (spec.name == name || spec.alias == name) return spec;
    if (spec.name.starts_with(name) || spec.alias.starts_with(name))
      (spec.taken_by(command) ? matches : passed_over).push_back(&spec);
  }
  if (matches.empty()) matches = std::move(passed_over);
  if (matches.empty()) fail_unknown(command, name);
  const Field& shortest =
      **std::ranges::min_element(matches, {}, [](const Field* spec) { return spec->name.size(); });
  if (std::ranges::all_of(matches,
                          [&](const Field* spec) { return spec->name.starts_with(shortest.name); }))
    return shortest;
  // --learning-rate most likely stands for --lr, and may stand for --base-learning-rate.
  const std::string ending = fmt::format("-{}", name);
  std::vector<std::string> names;
  for (const Field& spec : field_table()) {
    if (!spec.taken_by(command) || !spec.name.ends_with(ending)) continue;
    if (spec.alias.empty())
      names.push_back(fmt::format("--{}", spec.name));
    else
      names.insert(names.begin(), fmt::format("--{}", spec.alias));
  }
  for (const Field* spec : matches) names.push_back(fmt::format("--{}", spec->name));
  fail(ErrorKind::Usage, "--{} is ambiguous: it could be any of {}; write more of the name", name,
       join(names, ", "));
}

[[noreturn]] void fail_missing_value(const Field& spec) {
  fail(ErrorKind::Usage, "--{} needs a value: {}{}{}", spec.name, spec.value_name,
       spec.value_name.empty() ? "" : ", ", describe_values(spec));
}

/// The two options that have a letter are so common that all programs agree on it.
std::string written_out(const std::string& word) {
  if (word == "-q") return "--quiet";
  return word == "-v" ? "--verbose" : word;
}

/// Whether a word behind a list is part of it: any names, or numbers up to the first other word.
bool continues_list(const Field& spec, const std::string& word) {
  if (written_out(word).starts_with("--")) return false;
  if (spec.type == ValueType::NameList) return true;
  return spec.type == ValueType::RealList && !word.empty() &&
         word.find_first_not_of("0123456789.,eE-") == std::string::npos;
}

/// The value of the option in `word`: after its '=', or in the words behind it, which `next` is
/// advanced past. Words that begin with two dashes are always options.
std::string take_value(const Field& spec, const std::string& word,
                       std::span<const std::string> words, std::size_t& next) {
  const std::size_t equals = word.find('=');
  bool found = equals != std::string::npos;
  std::string text = found ? word.substr(equals + 1) : "";
  if (found && text.empty()) fail_missing_value(spec);
  if (spec.type == ValueType::Flag) return found ? text : "true";
  const char* const separator = spec.type == ValueType::NameList ? " " : ",";
  for (; next < words.size() && continues_list(spec, words[next]); ++next, found = true)
    text += (found ? separator : "") + words[next];
  if (!found) {
    const bool alone = next == words.size() || words[next].starts_with("--");
    if (alone && !spec.bare.empty()) return std::string(spec.bare);
    if (alone || words[next].empty()) fail_missing_value(spec);
    text = words[next++];
  }
  if (spec.type == ValueType::NameList && text.find_first_not_of(" ,\t") == std::string::npos)
    fail_missing_value(spec);
  return text;
}

/// The value of an option as it was typed.
struct TypedValue {
  std::string text;
  std::string name;  ///< the option's, or its other name
};

/// The value of an option, or the values, where the command takes a list of them.
Setting setting_of(const Field& spec, Command command, const TypedValue& typed) {
  const std::string& text = typed.text;
  Setting setting{.value = {}, .where = fmt::format("--{}", typed.name)};
  const bool listed = (spec.lists & static_cast<CommandSet>(command)) != 0;
  std::vector<Value> values;
  for (const std::string& piece : listed ? split_list(text) : std::vector{text}) {
    values.push_back(parse_value(spec, piece, Origin::CommandLine, setting.where));
    if (std::ranges::count(values, values.back()) > 1)
      fail(ErrorKind::Usage, "{}: {} is listed twice", setting.where, piece);
  }
  if (values.empty()) fail_missing_value(spec);
  setting.value = values.front();
  setting.others.assign(values.begin() + 1, values.end());
  return setting;
}

}  // namespace

Patch parse_arguments(Command command, std::span<const std::string> words,
                      std::size_t max_arguments, std::vector<std::string>* arguments) {
  Patch options;
  std::vector<std::string> others;
  std::map<const Field*, TypedValue> given;  // in the order of the table
  for (std::size_t next = 0; next < words.size();) {
    const std::string word = written_out(words[next++]);
    if (!word.starts_with("--") || word.size() == 2) {
      others.push_back(word);
      continue;
    }
    const std::string_view name = std::string_view(word).substr(2, word.find('=') - 2);
    const Field& spec = complete(command, name);
    given[&spec] = {.text = take_value(spec, word, words, next),
                    .name = std::string(spec.name.starts_with(name) ? spec.name : spec.alias)};
  }
  for (const auto& [spec, typed] : given) options.set(*spec, setting_of(*spec, command, typed));
  for (std::size_t i = 0; i < others.size(); ++i) {
    const std::string& word = others[i];
    if (word.size() > 1 && word.starts_with('-'))
      fail(ErrorKind::Usage, "unknown option {}; options begin with two dashes", word);
    if (i >= max_arguments)
      fail(ErrorKind::Usage, "unexpected argument '{}'; --help shows the usage", word);
  }
  if (arguments != nullptr) *arguments = std::move(others);
  return options;
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Patch read_environment(Command command, const Environment& environment) {
  Patch options;
  for (const Field& spec : field_table()) {
    if (spec.environment.empty() || !spec.taken_by(command)) continue;
    const std::string variable(spec.environment);
    if (const std::optional<std::string> text = environment(variable)) {
      const std::string where = "environment variable " + variable;
      options.set(spec, {.value = parse_value(spec, *text, Origin::Environment, where),
                         .origin = Origin::Environment,
                         .where = where});
    }
  }
  return options;
}

Patch load_options(Command command, std::span<const std::string> words, std::size_t max_arguments,
                   const Environment& environment, std::vector<std::string>* arguments) {
  // A restore takes its run as an argument, whatever command was typed.
  if (command == Command::Restore) max_arguments = std::max<std::size_t>(max_arguments, 1);
  Patch options = parse_arguments(command, words, max_arguments, arguments);
  check_conflicts(options);
  options = merge(std::move(options), read_environment(command, environment));
  const Field& config = *find_field("config");
  if (!config.taken_by(command)) return options;
  if (const std::optional<std::string> path = options.text(config.name)) {
    const Patch file = read_config_file(run::find_config(*path));
    check_conflicts(file);
    options = merge(std::move(options), file);
  }
  return options;
}

}  // namespace millrace::cli
