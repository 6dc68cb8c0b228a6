// SPDX-License-Identifier: Apache-2.0
#include "tools/dialects/dialect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <utility>

#include "cli/commands.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

std::string underscored(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

const DialectWord* find_word(const DialectSpec& dialect, std::string_view name) {
  for (const DialectWord& word : dialect.words)
    if (word.name == name) return &word;
  return nullptr;
}

struct Matched {
  const DialectWord* word = nullptr;
  std::string spelled;              ///< "--batch_size" or "-bs"
  std::optional<std::string> text;  ///< after '=', or "false" for a flag with a leading "no"
};

Matched match(const DialectSpec& dialect, const std::string& typed) {
  const std::size_t equals = typed.find('=');
  Matched matched;
  matched.spelled = typed.substr(0, equals);
  if (equals != std::string::npos) matched.text = typed.substr(equals + 1);
  if (!typed.starts_with("--")) {
    for (const DialectWord& word : dialect.words)
      if (!word.shorthand.empty() && matched.spelled.substr(1) == word.shorthand)
        matched.word = &word;
    return matched;
  }
  const std::string name = underscored(matched.spelled.substr(2));
  matched.word = find_word(dialect, name);
  if (matched.word != nullptr || !name.starts_with("no")) return matched;
  const DialectWord* positive = find_word(dialect, name.substr(name.starts_with("no_") ? 3 : 2));
  if (positive == nullptr || positive->kind != WordKind::Flag) return matched;
  matched.word = positive;
  matched.text = "false";
  return matched;
}

std::string truth(const std::string& text, const std::string& spelled) {
  const std::string lower = to_lower(text);
  if (lower == "true" || lower == "1") return "true";
  if (lower == "false" || lower == "0") return "false";
  fail(ErrorKind::Usage, "{}: '{}' is not true or false", spelled, text);
}

/// A name of the dialect as it was typed.
struct Typed {
  std::string_view word;
  std::string spelled;
  std::string text;
};

/// Refuses two names for one option with different values.
void check_agrees(std::map<std::string_view, Typed>& names, const Typed& typed,
                  std::string_view option) {
  const auto [found, fresh] = names.try_emplace(option, typed);
  const Typed& before = found->second;
  if (!fresh && before.word != typed.word && before.text != typed.text)
    fail(ErrorKind::Usage, "{} {} and {} {} contradict each other: give one of them",
         before.spelled, before.text, typed.spelled, typed.text);
  found->second = typed;
}

/// The value of a name of the dialect; advances `next` past it.
std::string take_value(const Matched& matched, std::span<const std::string> words,
                       std::size_t& next) {
  std::string text = matched.text.value_or("true");
  if (!matched.text && matched.word->kind == WordKind::WithValue) {
    if (next == words.size() || words[next].starts_with("--"))
      fail(ErrorKind::Usage, "{} needs a value", matched.spelled);
    text = words[next++];
  }
  return matched.word->kind == WordKind::Flag ? truth(text, matched.spelled) : text;
}

/// Gives the names of the dialect to `read` and returns the other words, which are millrace's own.
std::vector<std::string> read_words(const DialectSpec& dialect, std::span<const std::string> words,
                                    DialectReader& read) {
  std::vector<std::string> own;
  std::map<std::string_view, Typed> names;
  for (std::size_t next = 0; next < words.size();) {
    const std::string& typed = words[next++];
    const Matched matched = typed.starts_with('-') ? match(dialect, typed) : Matched{};
    if (matched.word == nullptr) {
      own.push_back(typed);
      continue;
    }
    const DialectWord& word = *matched.word;
    if (word.is(WordUse::Refused))
      fail(ErrorKind::Usage, "{} is not supported: {}", matched.spelled, word.text);
    const std::string text = take_value(matched, words, next);
    if (word.is(WordUse::Idle) && text != "false")
      read.note(fmt::format("{} has no effect here: {}", matched.spelled, word.text));
    if (word.is(WordUse::Same)) {
      check_agrees(names, {word.name, matched.spelled, text}, word.text);
      read.set(word.text, text, matched.spelled);
    }
    read.give(word.name, matched.spelled, text, !word.is(WordUse::Translated));
  }
  return own;
}

/// Gives the names that a script passes to its program, where the line says nothing else.
void read_passed(const DialectSpec& dialect, std::span<const std::string> passed,
                 DialectReader& read) {
  for (const std::string& word : passed) {
    const Matched matched = match(dialect, word);
    if (matched.word == nullptr || read.given(matched.word->name)) continue;
    const std::string text = matched.text.value_or("true");
    if (matched.word->is(WordUse::Same)) read.set(matched.word->text, text, "");
    read.give(matched.word->name, "", text, true);
  }
}

/// Requires whole names, because a name unknown to the dialect could be a prefix of millrace's.
void check_whole_names(const DialectSpec& dialect, std::span<const std::string> own) {
  for (const std::string& word : own) {
    if (!word.starts_with("--") || word.size() == 2) continue;
    const std::string name = word.substr(2, word.find('=') - 2);
    if (find_field(name) != nullptr) continue;
    std::vector<std::string> known;
    for (const DialectWord& other : dialect.words) known.emplace_back(other.name);
    for (const Field& spec : field_table()) known.emplace_back(spec.name);
    const std::string nearest = nearest_match(name, known);
    fail(ErrorKind::Usage, "unknown option --{}; {}", name,
         nearest.empty() ? "--help lists the names of this dialect"
                         : fmt::format("did you mean --{}?", nearest));
  }
}

std::int64_t launched(const Environment& environment) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const auto size = environment(name)) return std::max(1, std::atoi(size->c_str()));
  return 0;
}

/// The number given to these options, or 1. Errors: Usage, also for different numbers.
std::int64_t number_behind(std::span<const std::string> words,
                           std::initializer_list<std::string_view> names) {
  constexpr std::int64_t kMost = 65536;
  std::int64_t number = 1;
  std::map<std::string_view, Typed> typed;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string spelled = words[i].substr(0, equals);
    if (std::ranges::find(names, underscored(spelled)) == names.end()) continue;
    const bool behind = equals != std::string::npos;
    if (!behind && i + 1 == words.size()) break;  // reported when the words are read
    const std::string text = behind ? words[i].substr(equals + 1) : words[i + 1];
    const std::optional<std::int64_t> value = parse_number<std::int64_t>(text);
    if (!value || *value < 1 || *value > kMost)
      fail(ErrorKind::Usage, "{}: '{}' is not a whole number from 1 to {}", spelled, text, kMost);
    number = *value;
    check_agrees(typed, {*std::ranges::find(names, underscored(spelled)), spelled, text}, "");
  }
  return number;
}

/// Number of replicas: that of a script's GPUs, or the processes that a launcher started divided by
/// --shards, or else the workers per host times the hosts in MULTI_HLS_IPS.
std::int64_t workers_of(std::vector<std::string> passed, std::span<const std::string> words,
                        const Environment& environment) {
  const bool by_script = !passed.empty();
  passed.insert(passed.end(), words.begin(), words.end());
  const std::int64_t each = number_behind(passed, {"__num_workers_per_hls", "__replicas"});
  if (by_script) return each;
  if (const std::int64_t started = launched(environment); started > 0)
    return std::max<std::int64_t>(started / number_behind(words, {"__shards"}), 1);
  const auto hosts = environment("MULTI_HLS_IPS");
  return each * (hosts ? std::max<std::int64_t>(std::ssize(split_list(*hosts)), 1) : 1);
}

/// The value of --dialect, taken out of `words`.
std::string take_dialect(std::vector<std::string>& words) {
  constexpr std::string_view kName = "--dialect";
  std::string name;
  for (std::size_t i = 0; i < words.size();) {
    const bool spelled = words[i] == kName;
    if (!spelled && !words[i].starts_with("--dialect=")) {
      ++i;
      continue;
    }
    if (spelled && i + 1 == words.size()) return "";  // reported by the table's parser
    name = spelled ? words[i + 1] : words[i].substr(kName.size() + 1);
    const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
    words.erase(at, at + (spelled ? 2 : 1));
  }
  return name;
}

/// Habana's two trainers share a dialect. The script's name selects one of them, or else a name
/// that only one of them has.
std::vector<DialectSpec> habana_dialects(std::string_view script,
                                         std::span<const std::string> words) {
  const DialectSpec keras = habana_keras_dialect();
  const DialectSpec resnext = habana_resnext_dialect();
  const auto knows = [](const DialectSpec& dialect, const std::string& word) {
    return word.starts_with('-') && match(dialect, word).word != nullptr;
  };
  if (script.ends_with("keras.py") || script.ends_with("ctl_imagenet_main.py")) return {keras};
  if (script.ends_with("imagenet_main.py")) return {resnext};
  for (const std::string& word : words) {
    if (knows(keras, word) && !knows(resnext, word)) return {keras};
    if (knows(resnext, word) && !knows(keras, word)) return {resnext};
  }
  return {resnext, keras};
}

/// Marks what was read as a line of this dialect.
void mark(CommandLine& line, const std::string& dialect) {
  line.options.set(*find_field("dialect"), {.value = dialect, .where = "--dialect"});
  for (const auto& [name, spelling] : line.spellings) {
    if (spelling.same_value) continue;
    const Setting* const given = line.options.find(name);
    if (given == nullptr) continue;
    Setting marked = *given;
    marked.translated = true;
    line.options.set(*find_field(name), std::move(marked));
  }
}

/// Words and defaults of the IPU trainer that differ from millrace's. A restored run has the
/// defaults recorded.
void speak_ipu(CommandLine& line) {
  Patch& options = line.options;
  line.spellings["recompute segments"] = {.word = "--xla-recompute", .same_value = true};
  const Field& precision = *find_field("precision");
  const bool recorded = line.command == Command::Restore || options.find("restore-path") != nullptr;
  if (recorded || options.find("precision") != nullptr || !precision.taken_by(line.command)) return;
  options.set(precision,
              {.value = std::string("16.16"), .origin = Origin::Dialect, .where = "--dialect ipu"});
}

/// The scripts of the IPU trainer are commands here.
Command command_of(const DialectLine& asked, Command typed) {
  const Command meant = asked.script == "validation.py" ? Command::Validate
                        : asked.script == "restore.py"  ? Command::Restore
                                                        : Command::Train;
  return agreed_command(typed, meant, asked.script);
}

/// The names of a dialect that mean exactly an option of millrace.
Spellings own_spellings(const DialectSpec& dialect) {
  Spellings own;
  for (const DialectWord& word : dialect.words)
    if (word.is(WordUse::Same))
      own.try_emplace(std::string(word.text),
                      Spelling{.word = fmt::format("--{}", word.name), .same_value = true});
  return own;
}

/// Refuses different values for one option under a name of the dialect and under millrace's.
void check_said_once(const Patch& native, const Patch& translated) {
  Patch typed;
  for (const auto& [name, setting] : native.settings())
    if (setting.origin == Origin::CommandLine) typed.set(*find_field(name), setting);
  for (const auto& [name, setting] : translated.settings()) {
    if (setting.origin != Origin::CommandLine) continue;
    const Setting* other = typed.find(name);
    if (other == nullptr)
      typed.set(*find_field(name), setting);
    else if (other->value != setting.value)
      fail(ErrorKind::Usage, "{} {} and {} {} contradict each other: give one of them",
           other->where, to_string(other->value), setting.where, to_string(setting.value));
  }
  check_conflicts(typed);
}

/// Names of the dialect on the command line override the environment and files.
void yield_to_command_line(Patch& native, const Patch& translated) {
  for (const auto& [name, setting] : translated.settings()) {
    const Setting* other = native.find(name);
    if (setting.origin == Origin::CommandLine && other != nullptr &&
        other->origin != Origin::CommandLine)
      native.erase(name);
  }
}

}  // namespace

DialectLine take_dialects(std::vector<std::string>& words) {
  const std::string typed = take_dialect(words);
  if (typed.empty()) return {};
  const Value value = parse_value(*find_field("dialect"), typed, Origin::CommandLine, "--dialect");
  DialectLine asked;
  asked.name = std::get<std::string>(value);
  const std::string& name = asked.name;
  if (!words.empty()) refuse_device_list(words[0]);
  take_profiler(words);
  asked.script = take_program(name, words);
  if (name == "nvidia")
    asked.dialects = {nvidia_dialect()};
  else if (name == "surfsara")
    asked.dialects = {surfsara_dialect()};
  else if (name == "habana")
    asked.dialects = habana_dialects(asked.script, words);
  else
    asked.dialects = {{.name = "ipu", .title = {}, .words = {}, .translate = nullptr}};
  return asked;
}

namespace {

/// The IPU trainer has the names of millrace, which took them over.
bool has_own_names(const DialectLine& asked) { return asked.dialects.front().translate == nullptr; }

CommandLine read_ipu_line(const DialectLine& asked, TypedLine line) {
  line.command = command_of(asked, line.command);
  CommandLine read = read_own_line(line);
  const std::vector<std::string> notes =
      notes_on_variables(asked.name, line.words, line.environment);
  read.notices.insert(read.notices.begin(), notes.begin(), notes.end());
  speak_ipu(read);
  mark(read, asked.name);
  return read;
}

/// `words` are those of the line, without --dialect and the program.
CommandLine translate(const DialectLine& asked, std::vector<std::string> words,
                      const TypedLine& line, std::int64_t images) {
  const DialectSpec& dialect = asked.dialects.front();
  CommandLine read{.command = line.command,
                   .spellings = own_spellings(dialect),
                   .notices = notes_on_variables(asked.name, words, line.environment)};
  const bool restores = continues_run(words);
  const std::vector<std::string> passed = take_nvidia_script(asked.script, words);
  DialectReader reader(passed.empty() ? fmt::format("--dialect {}", dialect.name) : asked.script,
                       read, workers_of(passed, words, line.environment));
  reader.images = images;
  reader.script = asked.script;
  reader.restores = restores;
  const std::vector<std::string> own = read_words(dialect, words, reader);
  check_whole_names(dialect, own);
  read_passed(dialect, passed, reader);
  dialect.translate(reader);
  std::vector<std::string> arguments;
  Patch native = load_options(read.command, own, line.max_arguments, line.environment, &arguments);
  check_said_once(native, read.options);
  reader.note_overruled(native);
  yield_to_command_line(native, read.options);
  read.arguments.insert(read.arguments.begin(), arguments.begin(), arguments.end());
  read.options = merge(native, read.options);
  pass_over_idle(read, reader.unread());
  check_conflicts(read.options);
  mark(read, asked.name);
  return read;
}

CommandLine read_dialect(const TypedLine& line) {
  std::vector<std::string> words(line.words.begin(), line.words.end());
  const DialectLine asked = take_dialects(words);
  if (!asked.name.empty() && !find_field("dialect")->taken_by(line.command))
    fail(ErrorKind::Usage, "--dialect is not an option of this command; --help lists its options");
  const TypedLine rest{line.command, words, line.max_arguments, line.environment};
  if (asked.name.empty()) return read_own_line(rest);
  if (has_own_names(asked)) return read_ipu_line(asked, rest);
  CommandLine read = translate(asked, words, rest, kImageNetImages);
  read.for_images = [asked, words, typed = line.command, most = line.max_arguments,
                     environment = line.environment](std::int64_t images) {
    return translate(asked, words, {typed, words, most, environment}, images).options;
  };
  return read;
}

Command meant_command(Command typed, std::span<const std::string> words) {
  std::vector<std::string> rest(words.begin(), words.end());
  const DialectLine asked = take_dialects(rest);
  return asked.name.empty() || has_own_names(asked) ? command_of(asked, typed) : typed;
}

}  // namespace
}  // namespace millrace::cli

namespace millrace::tools {

cli::Tool dialects_tool() {
  static constexpr cli::OtherTrainers kTrainers{.read = cli::read_dialect,
                                                .help = cli::dialect_help,
                                                .meant = cli::meant_command,
                                                .refuse_program = cli::refuse_device_list};
  return {.dialects = &kTrainers};
}

}  // namespace millrace::tools
