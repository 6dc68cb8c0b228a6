// SPDX-License-Identifier: Apache-2.0
//
// The wire format of protobuf, as far as event files need it: fields of a message are written one
// after the other, each with a number and a type. Defaults are written too; readers do not mind.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/data/little_endian.hpp"

namespace millrace::io {

enum class WireType : std::uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

/// A message that is being written.
class WireMessage {
 public:
  WireMessage& integer(int field, std::uint64_t value) {
    tag(field, WireType::Varint);
    varint(value);
    return *this;
  }
  WireMessage& real(int field, double value) {
    tag(field, WireType::Fixed64);
    fixed(std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  WireMessage& narrow(int field, float value) {
    tag(field, WireType::Fixed32);
    fixed(std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  WireMessage& bytes(int field, std::string_view value) {
    tag(field, WireType::Bytes);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  WireMessage& message(int field, const WireMessage& inner) { return bytes(field, inner.bytes_); }
  [[nodiscard]] const std::string& str() const { return bytes_; }

 private:
  void tag(int field, WireType type) {
    varint((static_cast<std::uint64_t>(field) << 3) | static_cast<std::uint64_t>(type));
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7f) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  template <class T>
  void fixed(T value) {
    ByteWriter writer;
    writer(value);
    for (const std::byte b : writer.bytes()) bytes_ += static_cast<char>(b);
  }

  std::string bytes_;
};

}  // namespace millrace::io
