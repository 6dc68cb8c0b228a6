// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace millrace {

/// The candidate with the smallest edit distance to `word`, for "did you mean" in messages; "" if
/// the distance exceeds half the length of `word`, or `word` has more than 1,000 letters.
[[nodiscard]] std::string nearest_match(std::string_view word,
                                        std::span<const std::string> candidates);

/// Up to `count` candidates, sorted by the edit distance from `word` to their nearest substring.
/// Ties keep the order of the candidates.
[[nodiscard]] std::vector<std::string> nearest_containing(std::string_view word,
                                                          std::span<const std::string> candidates,
                                                          std::size_t count);

/// "1.43 GB", "210 kB", "12 B" (powers of 1000).
[[nodiscard]] std::string human_bytes(std::int64_t bytes);

/// Parses a size like "512MiB", "8GB", "1.5 kB" or "4096", ignoring case. nullopt if `text` is not
/// a size, is below one byte or does not fit into std::int64_t.
[[nodiscard]] std::optional<std::int64_t> parse_bytes(std::string_view text);

/// "2:03:04" or "0:42".
[[nodiscard]] std::string human_seconds(double seconds);
/// A word quoted for a shell if necessary.
[[nodiscard]] std::string shell_word(std::string_view word);

/// 1234567 as "1,234,567".
[[nodiscard]] std::string with_commas(std::int64_t number);

/// Whether `text` contains at least one of `parts`. Every text contains the empty string.
[[nodiscard]] bool contains_any(std::string_view text, std::span<const std::string> parts);

/// Parses all of `text` as a number, as std::from_chars does: no blanks, no plus sign, integers in
/// decimal. nullopt if `text` is not such a number or does not fit into T.
template <class T>
[[nodiscard]] std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc{} || end != last) return std::nullopt;
  return value;
}

/// Lower-case copy (ASCII).
[[nodiscard]] std::string to_lower(std::string_view text);

/// Whether `text` is valid UTF-8. JSON and TOML files must be; file names may be any bytes.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

/// `text` escaped for one line of a message: control characters and bytes that are not valid UTF-8
/// become escapes like "\n", "\t" or "\x1b", so that a file name cannot move the cursor or start a
/// line. Idempotent.
[[nodiscard]] std::string printable(std::string_view text);

/// The parts with `separator` between them. Unlike fmt::join, it does not add half a second of
/// compile time to every source that uses it.
[[nodiscard]] std::string join(std::span<const std::string> parts, std::string_view separator);
[[nodiscard]] std::string join(std::span<const std::string_view> parts, std::string_view separator);
[[nodiscard]] std::string join(std::span<const std::int64_t> numbers, std::string_view separator);
[[nodiscard]] std::string join(std::span<const int> numbers, std::string_view separator);
[[nodiscard]] std::string join(std::span<const double> numbers, std::string_view separator);

/// Splits `text` at `separator`. Pieces are trimmed of blanks; empty pieces are dropped.
[[nodiscard]] std::vector<std::string> split_list(std::string_view text, char separator = ',');

}  // namespace millrace
