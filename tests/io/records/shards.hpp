// SPDX-License-Identifier: Apache-2.0
//
// Small synthetic shards.
#pragma once

#include <fmt/format.h>

#include "../fixtures.hpp"
#include "example_bytes.hpp"
#include "io/data/example.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Fake JPEG of image `number`, with a JPEG's first bytes and a unique size.
inline Bytes fake_image(std::size_t number) {
  Bytes bytes = bytes_of("\xff\xd8\xff image " + std::to_string(number));
  bytes.resize(bytes.size() + 7 * (number % 50), std::byte{0x5a});
  return bytes;
}

inline Bytes payload_of(std::size_t number, std::int64_t label,
                        std::span<const ObjectBox> boxes = {}) {
  const Bytes image = fake_image(number);
  return example_bytes({.encoded = text_of(image),
                        .height = 3,
                        .width = 4,
                        .label = label,
                        .synset = "n00000001",
                        .filename = fmt::format("n{:08}.JPEG", number),
                        .boxes = boxes});
}

/// A file of records.
class Shard {
 public:
  void append(std::span<const std::byte> payload) { append_frame(payload, bytes_); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_.size(); }
  void write(const std::filesystem::path& path) const { test::write_file(path, bytes_); }

 private:
  Bytes bytes_;
};

/// A shard of images first, first + 1, ... with labels 1 + number % classes. Returns the offsets of
/// the records, and the end.
inline std::vector<std::uint64_t> write_shard(const std::filesystem::path& path, std::size_t first,
                                              std::size_t count, std::int64_t classes = 10) {
  std::filesystem::create_directories(path.parent_path());
  Shard shard;
  std::vector<std::uint64_t> places;
  for (std::size_t i = first; i < first + count; ++i) {
    places.push_back(shard.bytes());
    shard.append(payload_of(i, 1 + static_cast<std::int64_t>(i) % classes));
  }
  places.push_back(shard.bytes());
  shard.write(path);
  return places;
}

inline Bytes load(const std::filesystem::path& path) { return read_file(path, 1 << 28); }

inline void store(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  test::write_file(path, bytes);
}
inline void store(const std::filesystem::path& path, std::string_view text) {
  test::write_file(path, text);
}

/// The content of every file below a folder by its path there, without hidden ones.
inline std::map<std::string, Bytes> files_below(const std::filesystem::path& root) {
  std::map<std::string, Bytes> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with('.'))
      files[std::filesystem::relative(entry.path(), root).string()] = load(entry.path());
  return files;
}

inline void flip_byte(const std::filesystem::path& path, std::uint64_t offset) {
  Bytes bytes = load(path);
  bytes.at(offset) ^= std::byte{0x10};
  store(path, bytes);
}

inline void cut(const std::filesystem::path& path, std::uint64_t bytes) {
  std::filesystem::resize_file(path, bytes);
}

}  // namespace millrace::io
