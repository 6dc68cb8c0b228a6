// SPDX-License-Identifier: Apache-2.0
#include "io/data/tar_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.hpp"

namespace millrace::io {
namespace {

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kMaxNameBytes = 8 * 1024;  // of an extra header with one or two paths
constexpr std::uint64_t kMaxRepeats = 8;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A header field up to its first zero byte.
std::string_view field(std::span<const std::byte> header, std::size_t at, std::size_t bytes) {
  const std::string_view text = as_text(header.subspan(at, bytes));
  return text.substr(0, text.find('\0'));
}

// Octal digits between spaces.
std::optional<std::uint64_t> parse_octal(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  text.remove_prefix(begin);
  text = text.substr(0, text.find(' '));
  std::uint64_t value = 0;
  if (text.empty()) return 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// A size is octal, or, if its first bit is set, an eleven-byte number (GNU).
std::optional<std::uint64_t> parse_size(std::span<const std::byte> header) {
  constexpr std::size_t kAt = 124;
  constexpr std::size_t kBytes = 12;
  if (header[kAt] != std::byte{0x80}) return parse_octal(field(header, kAt, kBytes));
  std::uint64_t value = 0;
  for (std::size_t i = 1; i < kBytes; ++i) {
    if (value >> 56 != 0) return {};
    value = (value << 8) | std::to_integer<std::uint64_t>(header[kAt + i]);
  }
  return value;
}

bool checksum_is_right(std::span<const std::byte> header) {
  constexpr std::size_t kAt = 148;
  constexpr std::size_t kBytes = 8;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < header.size(); ++i)
    sum += i >= kAt && i < kAt + kBytes ? std::uint64_t{' '}
                                        : std::to_integer<std::uint64_t>(header[i]);
  return parse_octal(field(header, kAt, kBytes)) == sum;
}

// The value of `key` ("path=") in the records "<length> path=<value>\n" of a pax header.
std::optional<std::string> pax_value(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    const auto digits = static_cast<std::size_t>(end - text.data());
    if (error != std::errc() || length <= digits + 1 || length > text.size()) return {};
    const std::string_view record = text.substr(digits + 1, length - digits - 1);
    if (record.starts_with(key))
      return std::string(record.substr(key.size(), record.size() - key.size() - 1));
    text.remove_prefix(length);
  }
  return {};
}

TarMember member_of(const std::string& name, std::uint64_t offset, std::uint64_t bytes) {
  const std::size_t begin = name.rfind('/') + 1;  // 0 at the top
  return {name.substr(begin), offset, bytes, name.substr(0, begin)};
}

// Names from extra headers before a member.
struct LongNames {
  std::optional<std::string> name;
  std::optional<std::string> target;
};

// Members by full name, for links.
class Listing {
 public:
  void add_file(const std::string& name, std::uint64_t offset, std::uint64_t bytes) {
    bytes_ += bytes;
    places_[name] = listing_.members.size();
    listing_.members.push_back(member_of(name, offset, bytes));
  }
  void add_link(const std::string& name, const std::string& target) {
    const auto known = places_.find(target);
    if (known == places_.end()) return listing_.links.push_back(member_of(name, 0, 0).name);
    const TarMember& same = listing_.members[known->second];
    add_file(name, same.offset, same.bytes);
  }
  /// Bytes of all members, those of a file as often as it is linked.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] TarListing take() { return std::move(listing_); }

 private:
  TarListing listing_;
  std::map<std::string, std::size_t> places_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

TarListing list_tar(ByteWindow& file) {
  Listing listing;
  const std::uint64_t end = file.size();
  LongNames names;
  std::uint64_t at = 0;
  const auto bad = [&](std::string_view what) {
    fail(ErrorKind::Data,
         "{}: {} at offset {}: the archive is truncated or damaged: fetch it again", file.label(),
         what, at);
  };
  for (;;) {
    if (end - at < kBlock) bad("no end marker");
    const std::span<const std::byte> header = file.at(at, kBlock);
    if (std::ranges::all_of(header, [](std::byte b) { return b == std::byte{0}; }))
      return listing.take();
    if (!checksum_is_right(header)) bad("header checksum mismatch");
    const std::optional<std::uint64_t> size = parse_size(header);
    if (!size) bad("header without a size");
    const auto type = std::to_integer<char>(header[156]);
    const std::string name(field(header, 0, 100));
    const std::string target(field(header, 157, 100));
    at += kBlock;
    if (*size > end - at) bad("a member longer than the rest of the archive");
    if (type == 'L' || type == 'K' || type == 'x') {
      if (*size > kMaxNameBytes) bad("name too long");
      const std::string_view text = as_text(file.at(at, static_cast<std::size_t>(*size)));
      if (type == 'x') names = {pax_value(text, "path="), pax_value(text, "linkpath=")};
      if (type == 'L') names.name = std::string(text.substr(0, text.find('\0')));
      if (type == 'K') names.target = std::string(text.substr(0, text.find('\0')));
    } else if (type != 'g') {
      if (type == '0' || type == '\0') listing.add_file(names.name.value_or(name), at, *size);
      if (type == '1' || type == '2')
        listing.add_link(names.name.value_or(name), names.target.value_or(target));
      names = {};
      // A link of 512 bytes may stand for an image of any size.
      if (listing.bytes() / kMaxRepeats > end) bad("links that repeat its files too often");
    }
    const std::uint64_t padded = (*size + kBlock - 1) / kBlock * kBlock;
    if (padded > end - at) bad("a member longer than the rest of the archive");
    at += padded;
  }
}

}  // namespace millrace::io
