// SPDX-License-Identifier: Apache-2.0
//
// The wire format of protobuf, as far as tf.Examples and event files need it: fields of a message
// are written one after the other, each with a number and a type. Defaults are written too; readers
// do not mind.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/data/files.hpp"
#include "io/data/little_endian.hpp"

namespace millrace::io {

enum class WireType : std::uint8_t {
  Varint = 0,
  Fixed64 = 1,
  Bytes = 2,
  GroupBegin = 3,
  GroupEnd = 4,
  Fixed32 = 5
};

/// A message that is being written.
class WireMessage {
 public:
  WireMessage& integer(int field, std::uint64_t value) {
    return tag(field, WireType::Varint).varint(value);
  }
  WireMessage& real(int field, double value) {
    return tag(field, WireType::Fixed64).fixed(std::bit_cast<std::uint64_t>(value));
  }
  WireMessage& narrow(int field, float value) {
    return tag(field, WireType::Fixed32).fixed(std::bit_cast<std::uint32_t>(value));
  }
  WireMessage& bytes(int field, std::string_view value) {
    begin(field, value.size()).bytes_ += value;
    return *this;
  }
  WireMessage& message(int field, const WireMessage& inner) { return bytes(field, inner.bytes_); }

  /// Begins a message of `size` bytes, which the following calls write.
  WireMessage& begin(int field, std::size_t size) {
    return tag(field, WireType::Bytes).varint(size);
  }
  /// Bytes of a field, below 16, of this many bytes.
  [[nodiscard]] static std::size_t size_of_bytes(std::size_t bytes) {
    return 1 + WireMessage().varint(bytes).bytes_.size() + bytes;
  }
  /// One of several numbers in a field of bytes.
  WireMessage& varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7f) | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  template <class T>
  WireMessage& fixed(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_ += static_cast<char>(value >> (8 * i));
    return *this;
  }

  [[nodiscard]] const std::string& str() const { return bytes_; }

 private:
  WireMessage& tag(int field, WireType type) {
    return varint((static_cast<std::uint64_t>(field) << 3) | static_cast<std::uint64_t>(type));
  }

  std::string bytes_;
};

/// A field that was read: the value of a number, or the place of its bytes in the file.
struct WireField {
  int number = 0;
  WireType type = WireType::Varint;
  std::uint64_t value = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;

  [[nodiscard]] bool is(int wanted, WireType kind) const {
    return number == wanted && type == kind;
  }
};

/// Reads the message in [begin, begin + bytes) of a file field by field. Nothing is copied, and the
/// bytes of a field are not read unless they are asked for. Safe for any bytes. Errors: as
/// ByteWindow's.
class WireReader {
 public:
  WireReader(ByteWindow& file, std::uint64_t begin, std::uint64_t bytes)
      : file_(&file), at_(begin), end_(begin + bytes) {}
  /// The message, or the numbers, in the bytes of a field.
  WireReader(ByteWindow& file, const WireField& field)
      : WireReader(file, field.begin, field.bytes) {}

  /// The next field; false after the last one, and if the bytes are no message. Groups are skipped.
  [[nodiscard]] bool next(WireField& field) {
    while (more()) {
      ok_ = read(field) && field.type != WireType::GroupEnd &&
            (field.type != WireType::GroupBegin || skip_group(field.number, kMostNested));
      if (ok_ && field.type != WireType::GroupBegin) return true;
    }
    return false;
  }
  [[nodiscard]] bool more() const { return ok_ && at_ != end_; }
  /// Whether all that was read is valid.
  [[nodiscard]] bool ok() const { return ok_; }

  /// The next number in the bytes of a field; 0 if there is none.
  std::uint64_t varint() {
    const auto bytes = file_->at(at_, std::min<std::uint64_t>(kMostVarint, end_ - at_));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto byte = std::to_integer<std::uint64_t>(bytes[i]);
      value |= (byte & 0x7f) << (7 * i);
      if (byte >= 0x80) continue;
      at_ += i + 1;
      return value;
    }
    ok_ = false;
    return 0;
  }
  template <class T>
  T fixed() {
    ok_ = ok_ && end_ - at_ >= sizeof(T);
    if (!ok_) return 0;
    at_ += sizeof(T);
    return load_little<T>(file_->at(at_ - sizeof(T), sizeof(T)).data());
  }

 private:
  static constexpr std::uint64_t kMostVarint = 10;
  static constexpr int kMostNested = 8;  ///< groups

  bool read(WireField& field) {
    const std::uint64_t tag = varint();
    field.number = static_cast<int>(tag >> 3);
    field.type = static_cast<WireType>(tag & 7);
    if (!ok_ || tag >> 32 != 0 || field.number == 0) return false;
    switch (field.type) {
      case WireType::Varint:
        field.value = varint();
        return ok_;
      case WireType::Fixed64:
        field.value = fixed<std::uint64_t>();
        return ok_;
      case WireType::Fixed32:
        field.value = fixed<std::uint32_t>();
        return ok_;
      case WireType::Bytes:
        field.bytes = varint();
        field.begin = at_;
        if (!ok_ || field.bytes > end_ - at_) return false;
        at_ += field.bytes;
        return true;
      case WireType::GroupBegin:
      case WireType::GroupEnd:
        return true;
    }
    return false;
  }

  /// Goes on behind the end of group `number`.
  bool skip_group(int number, int levels) {
    for (WireField field; levels > 0 && at_ != end_ && read(field);) {
      if (field.type == WireType::GroupEnd) return field.number == number;
      if (field.type == WireType::GroupBegin && !skip_group(field.number, levels - 1)) return false;
    }
    return false;
  }

  ByteWindow* file_;
  std::uint64_t at_;
  std::uint64_t end_;
  bool ok_ = true;
};

}  // namespace millrace::io
