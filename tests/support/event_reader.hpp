// SPDX-License-Identifier: Apache-2.0
//
// Reads event files without the code that wrote them: TFRecord framing with its checksums, and the
// fields of protobuf messages.
#pragma once

#include "tests/support/file_bytes.hpp"
#include "tests/support/test.hpp"

namespace millrace::test {

/// A field of a message: a number, or bytes.
struct WireField {
  int number = 0;
  std::uint64_t value = 0;
  std::string_view bytes = {};
};

inline std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

inline std::uint64_t take_varint(std::string_view& rest) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; !rest.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  ADD_FAILURE() << "a number is incomplete";
  return 0;
}

inline std::vector<WireField> fields_of(std::string_view rest) {
  std::vector<WireField> fields;
  while (!rest.empty()) {
    const std::uint64_t tag = take_varint(rest);
    WireField field{.number = static_cast<int>(tag >> 3)};
    std::size_t bytes = 0;
    if ((tag & 7) == 0) field.value = take_varint(rest);
    if ((tag & 7) == 1) bytes = 8;
    if ((tag & 7) == 5) bytes = 4;
    if ((tag & 7) == 2) bytes = take_varint(rest);
    EXPECT_LE(bytes, rest.size());
    field.bytes = rest.substr(0, bytes);
    if ((tag & 7) == 1 || (tag & 7) == 5) field.value = little_endian(field.bytes);
    rest.remove_prefix(std::min(bytes, rest.size()));
    fields.push_back(field);
  }
  return fields;
}

/// The last field of this number.
inline WireField field(std::string_view message, int number) {
  WireField found;
  for (const WireField& each : fields_of(message))
    if (each.number == number) found = each;
  return found;
}

/// CRC-32C bit by bit.
inline std::uint32_t slow_masked_crc(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1u) != 0 ? 0x82F63B78u : 0u);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/// The payloads of a file, up to the first incomplete one.
inline std::vector<std::string> records_in(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  std::string_view rest = text;
  std::vector<std::string> records;
  while (rest.size() >= 16) {
    const std::uint64_t length = little_endian(rest.substr(0, 8));
    EXPECT_EQ(little_endian(rest.substr(8, 4)), slow_masked_crc(rest.substr(0, 8)));
    if (length > rest.size() - 16) break;
    const std::string_view payload = rest.substr(12, length);
    EXPECT_EQ(little_endian(rest.substr(12 + length, 4)), slow_masked_crc(payload));
    records.emplace_back(payload);
    rest.remove_prefix(16 + length);
  }
  return records;
}

/// Event files in a folder, in the order in which TensorBoard reads them.
inline std::vector<std::filesystem::path> event_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::exists(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().find("tfevents") != std::string::npos)
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

struct Point {
  std::int64_t step = 0;
  float value = 0.0f;
  friend bool operator==(const Point&, const Point&) = default;
};

/// What the event files of a folder contain.
struct Events {
  std::map<std::string, std::vector<Point>> scalars;
  std::map<std::string, std::string> plugins;  ///< content of plugin data, by tag
  std::vector<std::int64_t> restarts;          ///< steps of marks that a run was restored
};

inline Events read_events(const std::filesystem::path& folder) {
  Events events;
  for (const std::filesystem::path& file : event_files_in(folder)) {
    const std::vector<std::string> records = records_in(file);
    const std::string first = records.empty() ? std::string{} : records.front();
    EXPECT_EQ(field(first, 3).bytes, "brain.Event:2") << file;
    for (const std::string& event : records) {
      EXPECT_GT(std::bit_cast<double>(field(event, 1).value), 1.7e9);
      const auto step = static_cast<std::int64_t>(field(event, 2).value);
      if (field(field(event, 7).bytes, 1).value == 1) events.restarts.push_back(step);
      for (const WireField& value : fields_of(field(event, 5).bytes)) {
        const std::string tag(field(value.bytes, 1).bytes);
        const std::string_view metadata = field(value.bytes, 9).bytes;
        if (!metadata.empty())
          events.plugins[tag] = field(field(metadata, 1).bytes, 2).bytes;
        else
          events.scalars[tag].push_back({step, std::bit_cast<float>(static_cast<std::uint32_t>(
                                                   field(value.bytes, 2).value))});
      }
    }
  }
  return events;
}

}  // namespace millrace::test
