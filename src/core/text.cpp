// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

namespace millrace {
namespace {

void append(std::string& text, std::string_view part) { text += part; }
template <class Number>
requires std::is_arithmetic_v<Number>
void append(std::string& text, Number number) { text += fmt::format("{}", number); }

template <class Part>
std::string join_parts(std::span<const Part> parts, std::string_view separator) {
  std::string text;
  for (const Part& part : parts) {
    if (&part != parts.data()) text += separator;
    append(text, part);
  }
  return text;
}

/// Last row of the table of edit distances, from `a` to every prefix of `b`. `row` is the first
/// row: the distances from an empty `a`.
std::vector<std::size_t> edit_distances(std::string_view a, std::string_view b,
                                        std::vector<std::size_t> row) {
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  return edit_distances(a, b, std::move(row)).back();
}

/// Edit distance from `a` to the nearest substring of `b`.
std::size_t edit_distance_to_part(std::string_view a, std::string_view b) {
  const std::vector<std::size_t> row =
      edit_distances(a, b, std::vector<std::size_t>(b.size() + 1, 0));
  return *std::min_element(row.begin(), row.end());
}

/// Length in bytes of the UTF-8 character at the start of `text`; 0 if there is no valid one.
std::size_t utf8_character(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return 1;
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // Overlong, a surrogate half, or beyond the last code point.
  if ((byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) > 0x9f) ||
      (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) > 0x8f))
    return 0;
  return length;
}

/// Whether a UTF-8 character is a control character.
bool is_control(std::string_view character) noexcept {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::string nearest_match(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kMaxLetters = 1000;
  std::size_t best = word.size() / 2 + 1;
  std::string match;
  if (word.size() > kMaxLetters) return match;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      match = candidate;
    }
  }
  return match;
}

std::vector<std::string> nearest_containing(std::string_view word,
                                            std::span<const std::string> candidates,
                                            std::size_t count) {
  std::vector<std::pair<std::size_t, const std::string*>> ranked;
  ranked.reserve(candidates.size());
  for (const std::string& candidate : candidates)
    ranked.emplace_back(edit_distance_to_part(word, candidate), &candidate);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> nearest;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i)
    nearest.push_back(*ranked[i].second);
  return nearest;
}

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : (value < 99.95 ? 1 : 0),
                     kUnits[unit]);
}

std::string human_seconds(double seconds) {
  const auto total = std::int64_t{std::llround(seconds)};
  const std::int64_t h = total / 3600;
  const std::int64_t m = total / 60 % 60;
  const std::int64_t s = total % 60;
  return h > 0 ? fmt::format("{}:{:02}:{:02}", h, m, s) : fmt::format("{}:{:02}", m, s);
}

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos)
    return std::string(word);
  if (printable(word) != word) {  // in the form that shells read escapes in
    std::string escaped;
    for (const char c : word)
      escaped += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
    return "$'" + printable(escaped) + "'";
  }
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string with_commas(std::int64_t number) {
  // The lowest number has no positive counterpart, so negate in unsigned arithmetic.
  const auto bits = static_cast<std::uint64_t>(number);
  std::string digits = fmt::format("{}", number < 0 ? std::uint64_t{0} - bits : bits);
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return number < 0 ? fmt::format("-{}", digits) : digits;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit = to_lower(std::string_view(end, text.data() + text.size()));
  unit.erase(0, unit.find_first_not_of(' '));
  constexpr double kKibi = 1024.0;
  const double factor = unit.empty() || unit == "b" ? 1.0
                        : unit == "kb"              ? 1e3
                        : unit == "mb"              ? 1e6
                        : unit == "gb"              ? 1e9
                        : unit == "tb"              ? 1e12
                        : unit == "kib"             ? kKibi
                        : unit == "mib"             ? kKibi * kKibi
                        : unit == "gib"             ? kKibi * kKibi * kKibi
                        : unit == "tib"             ? kKibi * kKibi * kKibi * kKibi
                                                    : 0.0;
  if (error != std::errc{} || !(value * factor >= 1.0) || value * factor > 9e18)
    return std::nullopt;
  return static_cast<std::int64_t>(value * factor);
}

bool contains_any(std::string_view text, std::span<const std::string> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return text.find(part) != std::string_view::npos;
  });
}

std::string to_lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(character.size());
    if (length != 0 && !is_control(character))
      result += character;
    else if (character == "\n" || character == "\t")
      result += character == "\n" ? "\\n" : "\\t";
    else
      for (const char c : character)
        result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return result;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return join_parts(parts, separator);
}
std::string join(std::span<const std::string_view> parts, std::string_view separator) {
  return join_parts(parts, separator);
}
std::string join(std::span<const std::int64_t> numbers, std::string_view separator) {
  return join_parts(numbers, separator);
}
std::string join(std::span<const int> numbers, std::string_view separator) {
  return join_parts(numbers, separator);
}
std::string join(std::span<const double> numbers, std::string_view separator) {
  return join_parts(numbers, separator);
}

std::vector<std::string> split_list(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    std::string_view piece = text.substr(0, end);
    while (!piece.empty() && piece.front() == ' ') piece.remove_prefix(1);
    while (!piece.empty() && piece.back() == ' ') piece.remove_suffix(1);
    if (!piece.empty()) pieces.emplace_back(piece);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return pieces;
}

}  // namespace millrace
