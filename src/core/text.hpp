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

/// The candidate with the smallest edit distance to `word`, or "" when none is closer than half of
/// the word: for "did you mean" in messages. Nobody mistypes a word of more than 1,000 letters.
[[nodiscard]] std::string nearest_match(std::string_view word,
                                        std::span<const std::string> candidates);

/// Up to `count` candidates, those first of which some part is nearest to `word` by edit distance;
/// of equals the one that comes first.
[[nodiscard]] std::vector<std::string> nearest_containing(std::string_view word,
                                                          std::span<const std::string> candidates,
                                                          std::size_t count);

/// "1.43 GB", "210 kB", "12 B" (powers of 1000).
[[nodiscard]] std::string human_bytes(std::int64_t bytes);

/// What "512MiB", "8GB", "1.5 kB" or "4096" say; the letters' case does not matter. Nothing for
/// what is no size above 0 or beyond std::int64_t.
[[nodiscard]] std::optional<std::int64_t> parse_bytes(std::string_view text);

/// "2:03:04" or "0:42".
[[nodiscard]] std::string human_seconds(double seconds);

/// 1234567 as "1,234,567".
[[nodiscard]] std::string with_commas(std::int64_t number);

/// Whether at least one of `parts` stands somewhere in `text`; an empty part stands in every text.
[[nodiscard]] bool contains_any(std::string_view text, std::span<const std::string> parts);

/// The number that all of `text` is, as std::from_chars reads it: without blanks or a plus, and
/// integers in decimal only. Nothing when `text` is something else or beyond T.
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

/// Whether `text` is UTF-8, as JSON and TOML files must be; names of files may be any bytes.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

/// `text` for a line of a message: control characters and bytes that are no UTF-8 become "\n",
/// "\t" or "\x1b", so that no name of a file can move the cursor or begin a line. Of what this
/// returned it changes nothing.
[[nodiscard]] std::string printable(std::string_view text);

/// The parts with `separator` between them. fmt::join says the same and takes half a second to
/// compile in every source that uses it.
[[nodiscard]] std::string join(std::span<const std::string> parts, std::string_view separator);
[[nodiscard]] std::string join(std::span<const std::string_view> parts, std::string_view separator);
[[nodiscard]] std::string join(std::span<const std::int64_t> numbers, std::string_view separator);
[[nodiscard]] std::string join(std::span<const int> numbers, std::string_view separator);
[[nodiscard]] std::string join(std::span<const double> numbers, std::string_view separator);

/// Pieces of `text` between `separator`, trimmed of blanks; empty pieces are dropped.
[[nodiscard]] std::vector<std::string> split_list(std::string_view text, char separator = ',');

}  // namespace millrace
