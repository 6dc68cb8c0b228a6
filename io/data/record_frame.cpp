// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/data/little_endian.hpp"

namespace millrace::io {
namespace {

// Payloads of headers that are valid only by chance or malice are read in vain; this limits the
// total to a multiple of the file size.
constexpr std::uint64_t kMostInVain = 4;

std::span<const std::byte, kFrameHeadBytes> head_at(ByteWindow& file, std::uint64_t offset) {
  return std::span<const std::byte, kFrameHeadBytes>(file.at(offset, kFrameHeadBytes));
}

bool fits(std::uint64_t length, std::uint64_t left) {
  return length <= kMaxRecordBytes && length <= left - kFrameBytes;
}

}  // namespace

std::uint32_t masked_crc32c(std::span<const std::byte> bytes) noexcept {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::optional<std::uint64_t> parse_frame_head(
    std::span<const std::byte, kFrameHeadBytes> head) noexcept {
  if (load_little<std::uint32_t>(head.data() + 8) != masked_crc32c(head.first(8))) return {};
  return load_little<std::uint64_t>(head.data());
}

bool payload_is_whole(std::span<const std::byte> payload_and_checksum) noexcept {
  const std::size_t length = payload_and_checksum.size() - sizeof(std::uint32_t);
  return load_little<std::uint32_t>(payload_and_checksum.data() + length) ==
         masked_crc32c(payload_and_checksum.first(length));
}

void append_frame(std::span<const std::byte> payload, std::vector<std::byte>& to) {
  std::array<std::byte, kFrameHeadBytes> head{};
  store_little(static_cast<std::uint64_t>(payload.size()), head.data());
  store_little(masked_crc32c(std::span(head).first(8)), head.data() + 8);
  std::array<std::byte, sizeof(std::uint32_t)> tail{};
  store_little(masked_crc32c(payload), tail.data());
  to.insert(to.end(), head.begin(), head.end());
  to.insert(to.end(), payload.begin(), payload.end());
  to.insert(to.end(), tail.begin(), tail.end());
}

void refuse_gzip(ByteWindow& file) {
  constexpr std::array kMagic = {std::byte{0x1f}, std::byte{0x8b}, std::byte{8}};
  // The length of a first record may be these bytes, but then its checksum is right.
  if (file.size() < kFrameHeadBytes || parse_frame_head(head_at(file, 0)) ||
      !std::ranges::equal(file.at(0, kMagic.size()), kMagic))
    return;
  fail(ErrorKind::Data,
       "{}: is compressed with GZIP, but only uncompressed TFRecord files are read: unpack all of "
       "them (gunzip <FILE >UNPACKED), or write them without compression_type",
       file.label());
}

FrameWalk::FrameWalk(ByteWindow& file, std::span<const std::uint64_t> known)
    : file_(file), known_(known) {}

bool FrameWalk::is_record(std::uint64_t offset) {
  const std::uint64_t left = file_.size() - offset;
  if (left < kFrameBytes) return false;
  const std::optional<std::uint64_t> length = parse_frame_head(head_at(file_, offset));
  if (!length || !fits(*length, left)) return false;
  const auto whole =
      file_.at(offset + kFrameHeadBytes, static_cast<std::size_t>(*length + sizeof(std::uint32_t)));
  if (payload_is_whole(whole)) return true;
  in_vain_ += whole.size();
  return false;
}

bool FrameWalk::gives_up() const { return in_vain_ / kMostInVain > file_.size(); }

std::uint64_t FrameWalk::find_record(std::uint64_t offset) {
  // Each known offset is tried only once: the result cannot change.
  while (!known_.empty() && known_.front() < file_.size() && !gives_up()) {
    const std::uint64_t place = known_.front();
    if (place >= offset && is_record(place)) return place;
    known_ = known_.subspan(1);
  }
  for (; offset + kFrameBytes <= file_.size() && !gives_up(); ++offset)
    if (is_record(offset)) return offset;
  return file_.size();
}

Frame FrameWalk::next() {
  Frame frame = look_at(offset_);
  offset_ = frame.end;
  return frame;
}

void FrameWalk::go_on_behind(Frame& damage) {
  damage.end = find_record(damage.begin + 1);
  if (gives_up())
    damage.problem += fmt::format(
        ", and the search for the next record stopped after {} bytes because of false record "
        "headers: the rest of the file is left out",
        in_vain_);
}

Frame FrameWalk::look_at(std::uint64_t offset) {
  Frame frame{.kind = Frame::Kind::End, .begin = offset, .end = offset, .problem = {}};
  const std::uint64_t left = file_.size() - offset;
  if (left == 0) return frame;
  frame.kind = Frame::Kind::Damage;
  frame.end = file_.size();
  if (left < kFrameBytes) {
    frame.problem =
        fmt::format("{} bytes are left, but a record has at least {}: the file is truncated", left,
                    kFrameBytes);
    return frame;
  }
  const std::optional<std::uint64_t> length = parse_frame_head(head_at(file_, offset));
  if (length && fits(*length, left)) {
    frame.kind = Frame::Kind::Record;
    frame.end = offset + kFrameBytes + *length;
  } else if (length && *length > kMaxRecordBytes) {
    frame.problem =
        fmt::format("a record of {} bytes exceeds the limit of {}", *length, kMaxRecordBytes);
    go_on_behind(frame);
  } else if (length) {
    frame.problem = fmt::format("a record of {} bytes, but {} are left: the file is truncated",
                                *length, left - kFrameBytes);
  } else {
    frame.problem = "record length checksum mismatch";
    go_on_behind(frame);
  }
  return frame;
}

}  // namespace millrace::io
