// SPDX-License-Identifier: Apache-2.0
//
// TFRecord files are records one after the other, little endian:
//
//   8 bytes  length of the payload
//   4 bytes  masked CRC-32C of those 8 bytes
//   n bytes  payload
//   4 bytes  masked CRC-32C of the payload
//
// A checksum is masked because a CRC over data that holds its own CRC says little.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/records/byte_window.hpp"

namespace millrace::io {

inline constexpr std::uint64_t kFrameHeadBytes = 12;
inline constexpr std::uint64_t kFrameBytes = 16;  ///< of a record beside its payload
/// No record may be larger: a length is a number from outside, and memory follows it.
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{64} << 20;

/// ((crc >> 15) | (crc << 17)) + 0xa282ead8 of the CRC-32C of `bytes`.
[[nodiscard]] std::uint32_t masked_crc32c(std::span<const std::byte> bytes) noexcept;

/// Length of the payload as the first 12 bytes of a record say; nothing when their checksum is
/// wrong.
[[nodiscard]] std::optional<std::uint64_t> parse_frame_head(
    std::span<const std::byte, kFrameHeadBytes> head) noexcept;

/// Whether the 4 bytes after a payload are its checksum.
[[nodiscard]] bool payload_is_whole(std::span<const std::byte> payload_and_checksum) noexcept;

/// What begins at an offset of a file.
struct Frame {
  enum class Kind : std::uint8_t { Record, Damage, End };
  Kind kind = Kind::End;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  ///< where to go on
  std::string problem;    ///< of damage

  [[nodiscard]] std::uint64_t payload_bytes() const noexcept { return end - begin - kFrameBytes; }
};

/// Walks over the frames of a file, from its first to its end.
class FrameWalk {
 public:
  /// `known` are ascending places where records may begin, tried before every byte is.
  explicit FrameWalk(ByteWindow& file, std::span<const std::uint64_t> known = {});

  /// The next record: its head is verified, its payload not looked at. Where no record begins there
  /// is damage up to the next place with a whole record, payload's checksum included, or to the end
  /// of the file; also when the search has read a few times the file's size behind false heads,
  /// which says so. Behind the end comes Kind::End again and again. Errors: Io.
  [[nodiscard]] Frame next();

 private:
  [[nodiscard]] Frame look_at(std::uint64_t offset);
  void go_on_behind(Frame& damage);
  [[nodiscard]] std::uint64_t find_record(std::uint64_t offset);
  [[nodiscard]] bool is_record(std::uint64_t offset);
  [[nodiscard]] bool gives_up() const;

  ByteWindow& file_;
  std::span<const std::uint64_t> known_;  ///< those that are not tried yet
  std::uint64_t offset_ = 0;
  std::uint64_t in_vain_ = 0;  ///< bytes read behind false heads
};

/// Writes a file of records, staged: after a kill there is a whole file or none. Errors: Io.
class RecordWriter {
 public:
  explicit RecordWriter(const std::filesystem::path& path);

  /// Errors: Data when the payload is larger than kMaxRecordBytes.
  void append(std::span<const std::byte> payload);
  void commit();
  [[nodiscard]] std::uint64_t bytes() const noexcept { return written_ + pending_.size(); }

 private:
  void flush();

  std::filesystem::path path_;
  StagedFile file_;
  std::vector<std::byte> pending_;
  std::uint64_t written_ = 0;
};

}  // namespace millrace::io
