// SPDX-License-Identifier: Apache-2.0
#include "cli/dialect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <utility>

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
  std::optional<std::string> text;  ///< behind '=', or that of a flag with "no" before its name
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

/// Gives the words of the dialect to `read`; what is left is millrace's own.
std::vector<std::string> read_words(const DialectSpec& dialect, std::span<const std::string> words,
                                    DialectReader& read) {
  std::vector<std::string> own;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& typed = words[i];
    const Matched matched = typed.starts_with('-') ? match(dialect, typed) : Matched{};
    if (matched.word == nullptr) {
      if (typed.ends_with(".py") && !typed.starts_with('-'))
        read.script = std::filesystem::path(typed).filename().string();
      else
        own.push_back(typed);
      continue;
    }
    const DialectWord& word = *matched.word;
    if (!word.refused.empty())
      fail(ErrorKind::Usage, "{} cannot be had: {}", matched.spelled, word.refused);
    std::string text = "true";
    if (matched.text) {
      text = *matched.text;
    } else if (word.kind == WordKind::WithValue) {
      if (i + 1 == words.size() || words[i + 1].starts_with("--"))
        fail(ErrorKind::Usage, "{} has no value", matched.spelled);
      text = words[++i];
    }
    if (word.kind == WordKind::Flag) text = truth(text, matched.spelled);
    if (!word.idle.empty() && text != "false")
      read.note(fmt::format("{} has no effect here: {}", matched.spelled, word.idle));
    if (!word.option.empty()) read.set(word.option, text, matched.spelled);
    read.give(word.name, std::move(text));
  }
  return own;
}

std::int64_t launched(const Environment& environment) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const auto size = environment(name)) return std::max(1, std::atoi(size->c_str()));
  return 0;
}

/// The number behind the first of these options, or 1.
std::int64_t number_behind(std::span<const std::string> words,
                           std::initializer_list<std::string_view> names) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string name = underscored(words[i].substr(0, equals));
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const bool behind = equals != std::string::npos;
    if (!behind && i + 1 == words.size()) return 1;
    return std::max(1, std::atoi((behind ? words[i].substr(equals + 1) : words[i + 1]).c_str()));
  }
  return 1;
}

/// Processes that a launcher started, a replica having one for every shard; or else the workers of
/// each host of MULTI_HLS_IPS.
std::int64_t workers_of(std::span<const std::string> words, const Environment& environment) {
  if (const std::int64_t started = launched(environment); started > 0)
    return std::max<std::int64_t>(started / number_behind(words, {"__shards"}), 1);
  const std::int64_t each = number_behind(words, {"__num_workers_per_hls", "__replicas"});
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
    if (spelled && i + 1 == words.size()) return "";  // the table's parser complains
    name = spelled ? words[i + 1] : words[i].substr(kName.size() + 1);
    const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
    words.erase(at, at + (spelled ? 2 : 1));
  }
  return name;
}

/// Habana's two trainers share a dialect: the script's name tells which is meant, or else words
/// that only the Keras one has.
DialectSpec habana_dialect(std::span<const std::string> words) {
  const DialectSpec keras = habana_keras_dialect();
  const DialectSpec resnext = habana_resnext_dialect();
  for (const std::string& word : words) {
    if (word.ends_with("imagenet_main.py") && !word.ends_with("ctl_imagenet_main.py"))
      return resnext;
    if (word.ends_with("keras.py") || word.ends_with("ctl_imagenet_main.py")) return keras;
  }
  const bool only_keras = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return word.starts_with('-') && match(keras, word).word != nullptr &&
           match(resnext, word).word == nullptr;
  });
  return only_keras ? keras : resnext;
}

DialectSpec find_dialect(const std::string& name, std::span<const std::string> words) {
  if (name == "nvidia") return nvidia_dialect();
  if (name == "surfsara") return surfsara_dialect();
  return habana_dialect(words);
}

/// What the IPU trainer takes for granted and millrace does not.
void speak_ipu(Translation& translation) {
  if (translation.options.find("precision") != nullptr) return;
  translation.options.set(
      *find_option("precision"),
      {.value = std::string("16.16"), .origin = Origin::File, .where = "--dialect ipu"});
}

/// Habits of a trainer that say nothing to another command have no place there.
void keep_what_the_command_takes(Translation& translation) {
  std::vector<std::string> gone;
  for (const auto& [name, setting] : translation.options.settings())
    if (!find_option(name)->taken_by(translation.command)) gone.push_back(name);
  for (const std::string& name : gone) translation.options.erase(name);
}

/// A variable or a file gives way to what the dialect's own words said on the command line.
void yield_to_command_line(Options& native, const Options& translated) {
  for (const auto& [name, setting] : translated.settings()) {
    const Setting* other = native.find(name);
    if (setting.origin == Origin::CommandLine && other != nullptr &&
        other->origin != Origin::CommandLine)
      native.erase(name);
  }
}

}  // namespace

bool DialectReader::flag(std::string_view name, bool otherwise) const {
  const auto found = given_.find(name);
  return found == given_.end() ? otherwise : found->second == "true";
}

std::string DialectReader::text(std::string_view name, std::string_view otherwise) const {
  const auto found = given_.find(name);
  return found == given_.end() ? std::string(otherwise) : found->second;
}

double DialectReader::real(std::string_view name, double otherwise) const {
  const auto found = given_.find(name);
  if (found == given_.end()) return otherwise;
  const std::optional<double> value = parse_number<double>(found->second);
  if (!value) fail(ErrorKind::Usage, "--{}: '{}' is not a number", name, found->second);
  return *value;
}

std::int64_t DialectReader::integer(std::string_view name, std::int64_t otherwise) const {
  const double value = real(name, static_cast<double>(otherwise));
  constexpr double kMost = 1e15;
  if (!(value >= 0.0) || value > kMost ||
      value != static_cast<double>(static_cast<std::int64_t>(value)))
    fail(ErrorKind::Usage, "--{}: '{}' is not a whole number from 0", name, text(name, ""));
  return static_cast<std::int64_t>(value);
}

void DialectReader::set(std::string_view option, std::string_view text, std::string_view from) {
  const OptionSpec& spec = *find_option(option);
  const bool habit = from.empty();
  const std::string where = habit ? fmt::format("--dialect {} (its --{})", dialect_, option)
                                  : fmt::format("{} (--{})", from, option);
  const Origin origin = habit ? Origin::File : Origin::CommandLine;
  if (habit && translation_.options.find(option) != nullptr) return;
  translation_.options.set(
      spec, {.value = parse_value(spec, text, origin, where), .origin = origin, .where = where});
}

void DialectReader::set(std::string_view option, double value, std::string_view from) {
  set(option, fmt::format("{}", value), from);
}

void DialectReader::set(std::string_view option, std::int64_t value, std::string_view from) {
  set(option, fmt::format("{}", value), from);
}

void set_imagenet_habits(DialectReader& read, const ImageNetHabits& habits) {
  read.set("dataset", "imagenet", "");
  read.set("model", habits.model, "");
  read.set("model-size", habits.size, "");
  read.set("classes", std::int64_t{1001}, "");
  read.set("initialisers", habits.initialisers, "");
  read.set("batch-norm", "true", "");
  read.set("BN-decay", habits.norm_decay, "");
}

void set_image_type(DialectReader& read) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTypes = {
      {{"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}, {"uint8", "uint8"}}};
  if (!read.given("data_loader_image_type")) return;
  const std::string given = read.text("data_loader_image_type", "");
  for (const auto& type : kTypes) {
    if (given != type.first) continue;
    read.set("data-loader-image-type", type.second, "--data_loader_image_type");
    return;
  }
  fail(ErrorKind::Usage, "--data_loader_image_type: '{}' is none of fp32, bf16, fp16, uint8",
       given);
}

Translation read_command_line(Command command, std::span<const std::string> words,
                              std::size_t max_arguments, const Environment& environment) {
  std::vector<std::string> rest(words.begin(), words.end());
  const std::string typed = take_dialect(rest);
  if (typed.empty())
    return {.command = command,
            .options = load_options(command, words, max_arguments, environment),
            .notices = {}};
  const OptionSpec& option = *find_option("dialect");
  const std::string name =
      std::get<std::string>(parse_value(option, typed, Origin::CommandLine, "--dialect"));
  if (!option.taken_by(command))
    fail(ErrorKind::Usage, "--dialect is no option of this command; --help lists them");
  Translation translation;
  translation.command = command;
  if (name == "ipu") {
    translation.options = load_options(command, rest, max_arguments, environment);
    speak_ipu(translation);
    return translation;
  }
  const DialectSpec dialect = find_dialect(name, rest);
  DialectReader read(dialect.name, translation, workers_of(rest, environment));
  const std::vector<std::string> own = read_words(dialect, rest, read);
  dialect.translate(read);
  Options native = load_options(translation.command, own, max_arguments, environment);
  yield_to_command_line(native, translation.options);
  keep_what_the_command_takes(translation);
  translation.options = merge(native, translation.options);
  translation.options.arguments = native.arguments;
  check_rivals(translation.options);
  return translation;
}

}  // namespace millrace::cli
