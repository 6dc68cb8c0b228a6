// SPDX-License-Identifier: Apache-2.0
//
// Messages in the words of the line that was typed. They are written with the names of millrace,
// wherever they come from, and pass through here before anybody reads them.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "cli/command_line.hpp"

namespace millrace::cli {

namespace {

/// An option as it was typed, or would be.
std::string word_of(std::string_view name, const Patch& options, const Spellings& spellings) {
  if (const Setting* const given = options.typed(name))
    return given->where.substr(0, given->where.find(' '));
  const auto theirs = spellings.find(name);
  return theirs != spellings.end() ? theirs->second.word : fmt::format("--{}", name);
}

/// A field of a run as it was said: "--batch-size", "--batch_size"; or, where a message begins with
/// it, the line of a file that has it. A number behind it is that of millrace's option.
std::string said(std::string_view field, bool begins, bool has_number, const Patch& options,
                 const Spellings& spellings) {
  const std::string_view name = find_field(field)->name;
  const Setting* const given = options.find(name);
  const bool of_file = given != nullptr && given->where.find_first_of("-`") != 0;
  if (begins && of_file && given->origin != Origin::Dialect) return given->where;
  const auto theirs = spellings.find(name);
  const bool other = theirs != spellings.end() && !theirs->second.same_value;
  const bool spelled = options.typed(name) != nullptr && !(has_number && other);
  return spelled ? word_of(name, options, spellings) : fmt::format("--{}", name);
}

/// Whether a number follows a word that ends at `end`.
bool has_number(std::string_view text, std::size_t end) {
  return end + 1 < text.size() && text[end] == ' ' && text[end + 1] >= '0' && text[end + 1] <= '9';
}

/// The fields of a run, which messages name `like-this`.
std::string with_fields(std::string text, const Patch& options, const Spellings& spellings) {
  for (std::size_t at = text.find('`'); at != std::string::npos; at = text.find('`', at)) {
    const std::size_t end = text.find('`', at + 1);
    if (end == std::string::npos) return text;
    const std::string field = text.substr(at + 1, end - at - 1);
    if (find_field(field) == nullptr) {
      at = end;
      continue;
    }
    const std::string word = said(field, at == 0, has_number(text, end + 1), options, spellings);
    text.replace(at, end + 1 - at, word);
    at += word.size();
  }
  return text;
}

/// The options of millrace in the words of the dialect that was spoken.
std::string with_dialect(std::string text, const Patch& options, const Spellings& spellings) {
  const auto end_of_word = [&](std::size_t at) {
    const auto in_word = [](char c) {
      return c == '-' || c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
    };
    return static_cast<std::size_t>(
        std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), in_word) -
        text.begin());
  };
  for (std::size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at)) {
    std::size_t end = end_of_word(at);
    auto theirs = spellings.find(text.substr(at + 2, end - at - 2));
    const bool explains = at > 0 && text[at - 1] == '(';  // the name that was typed, before it
    const bool has_value = end + 1 < text.size() && text[end] == ' ';
    const bool numbered = has_number(text, end);
    const bool with_value = has_value && theirs == spellings.end();
    if (with_value) {
      const std::size_t value_end = end_of_word(end + 1);
      theirs = spellings.find(text.substr(at + 2, value_end - at - 2));
      if (theirs != spellings.end()) end = value_end;
    }
    if (theirs == spellings.end() || explains || (numbered && !theirs->second.same_value)) {
      at = end;
      continue;
    }
    const std::string word =
        with_value ? theirs->second.word : word_of(theirs->first, options, spellings);
    text.replace(at, end - at, word);
    at += word.size();
  }
  return text;
}

}  // namespace

std::string respelled(std::string text, const Patch& options, const Spellings& spellings) {
  return with_dialect(with_fields(std::move(text), options, spellings), options, spellings);
}

std::vector<std::string> respelled(std::vector<std::string> lines, const Patch& options,
                                   const Spellings& spellings) {
  for (std::string& line : lines) line = respelled(std::move(line), options, spellings);
  return lines;
}

Error respelled(const Error& error, const Patch& options, const Spellings& spellings) {
  return {error.kind(), respelled(std::string(error.what()), options, spellings),
          respelled(error.table(), options, spellings)};
}

}  // namespace millrace::cli
