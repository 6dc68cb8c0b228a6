// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "cli/options.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

[[noreturn]] void fail_unknown(Command command, std::string_view name) {
  std::vector<std::string> known;
  for (const OptionSpec& spec : option_table()) {
    if (!spec.understood_by(command)) continue;
    known.emplace_back(spec.name);
    if (!spec.alias.empty()) known.emplace_back(spec.alias);
  }
  if (find_option(name) != nullptr)
    fail(ErrorKind::Usage, "--{} is not an option of this command; --help lists its options", name);
  const std::string nearest = nearest_match(name, known);
  fail(ErrorKind::Usage, "unknown option --{}; {}", name,
       nearest.empty() ? "--help lists the options" : fmt::format("did you mean --{}?", nearest));
}

/// The option that `name` spells or uniquely abbreviates. `--epoch` is `--epochs`, because the
/// other match, `--epochs-between-evals`, starts with that whole name.
const OptionSpec& complete(Command command, std::string_view name) {
  std::vector<const OptionSpec*> matches;
  std::vector<const OptionSpec*> passed_over;
  for (const OptionSpec& spec : option_table()) {
    if (!spec.understood_by(command)) continue;
    if (spec.name == name || spec.alias == name) return spec;
    if (spec.name.starts_with(name) || spec.alias.starts_with(name))
      (spec.taken_by(command) ? matches : passed_over).push_back(&spec);
  }
  if (matches.empty()) matches = std::move(passed_over);
  if (matches.empty()) fail_unknown(command, name);
  const OptionSpec& shortest = **std::ranges::min_element(
      matches, {}, [](const OptionSpec* spec) { return spec->name.size(); });
  if (std::ranges::all_of(
          matches, [&](const OptionSpec* spec) { return spec->name.starts_with(shortest.name); }))
    return shortest;
  std::vector<std::string> names;
  names.reserve(matches.size());
  for (const OptionSpec* spec : matches) names.push_back(fmt::format("--{}", spec->name));
  fail(ErrorKind::Usage, "--{} is ambiguous: it could be any of {}; write more of the name", name,
       join(names, ", "));
}

/// Appends the words after a list option to its value, up to the next option, because names in a
/// list may be separated by spaces.
std::size_t append_list(std::span<const std::string> words, std::size_t next, std::string& option) {
  const char* separator = option.find('=') == std::string::npos ? "=" : " ";
  for (; next < words.size() && !words[next].starts_with("--"); ++next) {
    option += separator + words[next];
    separator = " ";
  }
  return next;
}

/// The same for lists of numbers, which may be separated by commas, spaces or both. The list ends
/// at the first word that is not a number.
std::size_t append_numbers(std::span<const std::string> words, std::size_t next,
                           std::string& option) {
  const bool number_first = option.find('=') != std::string::npos;
  const char* separator = number_first ? "," : "=";
  const auto is_number = [](const std::string& word) {
    return !word.empty() && word.find_first_not_of("0123456789.,eE-") == std::string::npos &&
           !word.starts_with("--");
  };
  for (; next < words.size() && is_number(words[next]); ++next) {
    option += separator + words[next];
    separator = ",";
  }
  return next;
}

[[noreturn]] void fail_missing_value(const OptionSpec& spec) {
  fail(ErrorKind::Usage, "--{} needs a value: {}{}{}", spec.name, spec.value_name,
       spec.value_name.empty() ? "" : ", ", describe_values(spec));
}

/// Whether an option has no value or an empty one.
bool lacks_value(const OptionSpec& spec, const std::string& spelled,
                 std::span<const std::string> behind) {
  if (spec.type == ValueType::Flag) return false;
  if (const std::size_t equals = spelled.find('='); equals != std::string::npos)
    return spelled.find_first_not_of(spec.type == ValueType::NameList ? " ,\t" : "", equals + 1) ==
           std::string::npos;
  return behind.empty() || behind.front().empty() || behind.front().starts_with("--");
}

/// Spells out options as CLI11 expects them. Words that begin with two dashes are always options,
/// because no value begins like this.
std::vector<std::string> spell_out(Command command, std::span<const std::string> words) {
  std::vector<std::string> spelled;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with("--") || word.size() == 2) {
      spelled.push_back(word);
      continue;
    }
    const std::size_t equals = word.find('=');
    const OptionSpec& spec = complete(command, std::string_view(word).substr(2, equals - 2));
    // CLI11 would use the next word as the value.
    if (equals + 1 == word.size()) fail_missing_value(spec);
    spelled.push_back(
        fmt::format("--{}{}", spec.name, equals == std::string::npos ? "" : word.substr(equals)));
    if (spec.type == ValueType::NameList) i = append_list(words, i + 1, spelled.back()) - 1;
    if (spec.type == ValueType::RealList) i = append_numbers(words, i + 1, spelled.back()) - 1;
    const bool alone = i + 1 == words.size() || words[i + 1].starts_with("--");
    if (!spec.bare.empty() && equals == std::string::npos && alone)
      spelled.back() += fmt::format("={}", spec.bare);
    if (lacks_value(spec, spelled.back(), words.subspan(i + 1))) fail_missing_value(spec);
  }
  return spelled;
}

}  // namespace

Options parse_arguments(Command command, std::span<const std::string> words,
                        std::size_t max_arguments) {
  CLI::App parser;
  parser.set_help_flag();
  parser.allow_extras();
  std::vector<std::pair<const OptionSpec*, CLI::Option*>> declared;
  for (const OptionSpec& spec : option_table()) {
    if (!spec.understood_by(command)) continue;
    const std::string name = fmt::format("--{}", spec.name);
    CLI::Option* option = spec.type == ValueType::Flag
                              ? parser.add_flag(name)
                              : parser.add_option(name)->expected(1)->type_size(1);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    declared.emplace_back(&spec, option);
  }
  std::vector<std::string> spelled = spell_out(command, words);
  std::reverse(spelled.begin(), spelled.end());  // CLI11 reads them in reverse
  try {
    parser.parse(std::move(spelled));
  } catch (const CLI::ParseError& error) {
    fail(ErrorKind::Usage, "{}", error.what());
  }

  Options options;
  for (const auto& [spec, option] : declared) {
    if (option->count() == 0) continue;
    const std::string text = option->results().back();
    const std::string where = fmt::format("--{}", spec->name);
    options.set(*spec, {.value = parse_value(*spec, text, Origin::CommandLine, where),
                        .origin = Origin::CommandLine,
                        .where = where});
  }
  options.arguments = parser.remaining();
  for (std::size_t i = 0; i < options.arguments.size(); ++i) {
    const std::string& word = options.arguments[i];
    if (word.size() > 1 && word.starts_with('-'))
      fail(ErrorKind::Usage, "unknown option {}; options begin with two dashes", word);
    if (i >= max_arguments)
      fail(ErrorKind::Usage, "unexpected argument '{}'; --help shows the usage", word);
  }
  return options;
}

}  // namespace millrace::cli
