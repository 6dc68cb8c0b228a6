// SPDX-License-Identifier: Apache-2.0
#include "io/data/class_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostWordsBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMostNameBytes = 1024;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

[[noreturn]] void fail_unknown(const ClassTexts& classes, std::size_t text,
                               const KnownClasses& known) {
  const std::string& name = classes.texts[text];
  const std::string nearest = known.names.size() > 10'000 ? "" : nearest_match(name, known.names);
  if (known.names.empty())
    fail(ErrorKind::Data,
         "{}: class '{}' is a name, but the training images have numbers from 0 to {}",
         classes.place_of(text), printable(name), known.count - 1);
  fail(ErrorKind::Data, "{}: class '{}' is not one of the {} classes of the training images{}",
       classes.place_of(text), printable(name), known.names.size(),
       nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", printable(nearest)));
}

/// Texts that all are whole numbers.
NumberedClasses take_numbers(const ClassTexts& classes, std::span<const std::int64_t> numbers,
                             KnownClasses known) {
  NumberedClasses result;
  const std::int64_t limit = known.count > 0 ? known.count : kMostClasses;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= limit)
      fail(ErrorKind::Data, "{}: class {} is not one of 0 to {}{}", classes.place_of(i), numbers[i],
           limit - 1,
           known.count == 0 ? ""
           : known.complete ? ", the classes of the set"
                            : " (`classes`)");
    result.numbers.push_back(static_cast<std::int32_t>(numbers[i]));
  }
  if (known.count == 0) known.count = std::ranges::max(numbers) + 1;
  known.complete = true;
  result.known = std::move(known);
  return result;
}

NumberedClasses sort_names(const ClassTexts& classes) {
  NumberedClasses result;
  KnownClasses& known = result.known;
  known.names.assign(classes.texts.begin(), classes.texts.end());
  std::ranges::sort(known.names);
  known.count = std::ssize(known.names);
  known.complete = true;
  for (const std::string& text : classes.texts)
    result.numbers.push_back(static_cast<std::int32_t>(std::ranges::lower_bound(known.names, text) -
                                                       known.names.begin()));
  return result;
}

}  // namespace

NumberedClasses number_classes(const ClassTexts& classes, KnownClasses known) {
  MILLRACE_ASSERT(!classes.texts.empty());
  std::map<std::string_view, std::int32_t> known_numbers;
  for (const std::string& name : known.names)
    known_numbers.emplace(name, static_cast<std::int32_t>(known_numbers.size()));
  NumberedClasses named;
  std::vector<std::int64_t> numbers;
  std::optional<std::size_t> unknown;
  for (std::size_t i = 0; i < classes.texts.size(); ++i) {
    const auto number = known_numbers.find(classes.texts[i]);
    if (number == known_numbers.end() && !unknown) unknown = i;
    named.numbers.push_back(number == known_numbers.end() ? 0 : number->second);
    if (const auto value = parse_number<std::int64_t>(classes.texts[i]); value && *value >= 0)
      numbers.push_back(*value);
  }
  if (!known.names.empty() && !unknown) {
    named.known = std::move(known);
    return named;
  }
  if (numbers.size() == classes.texts.size())
    return take_numbers(classes, numbers, std::move(known));
  if (!known.complete) return sort_names(classes);
  // The first name, if the set has numbers.
  if (known.names.empty())
    unknown = static_cast<std::size_t>(
        std::ranges::find_if(classes.texts,
                             [](const std::string& text) {
                               return parse_number<std::int64_t>(text).value_or(-1) < 0;
                             }) -
        classes.texts.begin());
  fail_unknown(classes, *unknown, known);
}

ClassWords parse_class_words(std::string_view text, std::string_view label) {
  ClassWords words;
  std::map<std::string_view, std::size_t> lines;
  std::size_t line_number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++line_number;
    const std::size_t tab = std::min(line.find('\t'), line.size());
    const std::string_view name = trimmed(line.substr(0, tab));
    const bool is_last = text.find_first_not_of(" \t\r\n") == std::string_view::npos;
    if (is_last && trimmed(line).empty()) break;  // empty lines at the end
    if (name.empty() || name.size() > kMostNameBytes)
      fail(ErrorKind::Data, "{}: line {} has {}: expected one class name per line", label,
           line_number, name.empty() ? "no name" : fmt::format("a name of {} bytes", name.size()));
    if (const auto [known, is_new] = lines.emplace(name, line_number); !is_new)
      fail(ErrorKind::Data, "{}: lines {} and {} have the same name '{}'", label, known->second,
           line_number, printable(name));
    if (std::ssize(words) == kMostClasses)
      fail(ErrorKind::Data, "{}: more than {} lines: is it the file of class names?", label,
           kMostClasses);
    words.emplace(name, trimmed(line.substr(tab)));
  }
  if (words.empty())
    fail(ErrorKind::Data, "{}: holds no class names: expected one per line", label);
  return words;
}

std::vector<std::string> with_words(std::span<const std::string> names, const fs::path& words) {
  std::vector<std::string> result(names.begin(), names.end());
  std::error_code ignored;
  if (names.empty() || !fs::is_regular_file(words, ignored)) return result;
  const ClassWords known = parse_class_words(read_text(words, kMostWordsBytes), words.string());
  for (std::string& name : result)
    if (const auto found = known.find(name); found != known.end() && !found->second.empty())
      name = fmt::format("{} ({})", name, found->second);
  return result;
}

std::vector<std::string> read_class_names(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{8} << 20;
  return split_list(read_text(path, kMaxBytes), '\n');
}

ClassNames read_class_names(const std::filesystem::path& path, std::int64_t classes) {
  constexpr std::int64_t kImageNet = 1000;
  ClassNames found{.names = read_class_names(path), .notice = {}};
  for (std::string& name : found.names)
    if (const std::size_t tab = name.find('\t'); tab != std::string::npos)
      name = fmt::format("{} ({})", name.substr(0, tab), name.substr(tab + 1));
  const std::int64_t names = std::ssize(found.names);
  if (names == kImageNet && classes == kImageNet + 1) {
    found.names.insert(found.names.begin(), "background");
    found.notice = fmt::format(
        "{}: {} names for {} classes: class 0 is called background, and the "
        "names are those of classes 1 to {}",
        path.string(), names, classes, names);
  } else if (names != classes) {
    fail(ErrorKind::Data,
         "{}: {} names of classes, but there are {} classes: give a line for each, in the order of "
         "their numbers",
         path.string(), names, classes);
  }
  return found;
}

}  // namespace millrace::io
