// SPDX-License-Identifier: Apache-2.0
//
// TFRecord files are sequences of records, little-endian:
//
//   8 bytes  length of the payload
//   4 bytes  masked CRC-32C of those 8 bytes
//   n bytes  payload
//   4 bytes  masked CRC-32C of the payload
//
// Checksums are masked because the CRC of data that contains its own CRC is weak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/files.hpp"

namespace millrace::io {

inline constexpr std::uint64_t kFrameHeadBytes = 12;
inline constexpr std::uint64_t kFrameBytes = 16;  ///< of a record without its payload
/// Limit on records: a length from a file is untrusted, and memory is allocated for it.
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{64} << 20;

/// ((crc >> 15) | (crc << 17)) + 0xa282ead8 of the CRC-32C of `bytes`.
[[nodiscard]] std::uint32_t masked_crc32c(std::span<const std::byte> bytes) noexcept;

/// Length of the payload from the first 12 bytes of a record; empty if their checksum is wrong.
[[nodiscard]] std::optional<std::uint64_t> parse_frame_head(
    std::span<const std::byte, kFrameHeadBytes> head) noexcept;

/// Whether the 4 bytes after a payload are its checksum.
[[nodiscard]] bool payload_is_whole(std::span<const std::byte> payload_and_checksum) noexcept;

/// Appends the record of a payload.
void append_frame(std::span<const std::byte> payload, std::vector<std::byte>& to);

/// Refuses a file that TensorFlow has compressed as a whole, which its first bytes say whatever its
/// name is. Errors: Data; Io.
void refuse_gzip(ByteWindow& file);

/// What was found at an offset of a file.
struct Frame {
  enum class Kind : std::uint8_t { Record, Damage, End };
  Kind kind = Kind::End;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  ///< where to continue
  std::string problem;    ///< description of the damage

  [[nodiscard]] std::uint64_t payload_bytes() const noexcept { return end - begin - kFrameBytes; }
};

/// Iterates over the frames of a file.
class FrameWalk {
 public:
  /// `known` are ascending offsets where records may begin. They are tried before a search byte by
  /// byte.
  explicit FrameWalk(ByteWindow& file, std::span<const std::uint64_t> known = {});

  /// The next record, with a verified header and an unread payload. If no record begins here, the
  /// damage extends to the next intact record (verified with its payload) or to the end of the
  /// file. The search also stops, with a note in `problem`, after reading a few times the file's
  /// size because of false headers. After the end it always returns Kind::End. Errors: Io.
  [[nodiscard]] Frame next();

 private:
  [[nodiscard]] Frame look_at(std::uint64_t offset);
  void go_on_behind(Frame& damage);
  [[nodiscard]] std::uint64_t find_record(std::uint64_t offset);
  [[nodiscard]] bool is_record(std::uint64_t offset);
  [[nodiscard]] bool gives_up() const;

  ByteWindow& file_;
  std::span<const std::uint64_t> known_;  ///< not tried yet
  std::uint64_t offset_ = 0;
  std::uint64_t in_vain_ = 0;  ///< bytes read because of false headers
};

}  // namespace millrace::io
