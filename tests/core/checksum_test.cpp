// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/crc32c.hpp"
#include "core/random.hpp"
#include "core/sha256.hpp"

namespace millrace {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

std::span<const std::byte> bytes_of(const std::vector<std::uint8_t>& bytes) {
  return std::as_bytes(std::span<const std::uint8_t>(bytes));
}

std::vector<std::uint8_t> random_bytes(std::size_t count) {
  const RandomStream stream(1, RandomPurpose::GeneratedData);
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(stream.block(0, i)[0]);
  }
  return bytes;
}

/// One bit at a time, directly from the polynomial.
std::uint32_t slow_crc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const std::byte b : bytes) {
    crc ^= std::to_integer<std::uint32_t>(b);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::string sha256(std::string_view text) {
  Sha256 digest;
  digest.update(bytes_of(text.substr(0, text.size() / 3)));
  digest.update(bytes_of(text.substr(text.size() / 3)));
  return digest.hex_digest();
}

TEST(Crc32c, VectorsOfRfc3720) {
  EXPECT_EQ(crc32c(bytes_of(std::vector<std::uint8_t>(32, 0x00))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::vector<std::uint8_t>(32, 0xff))), 0x62a8ab43u);
  std::vector<std::uint8_t> ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(crc32c(bytes_of(ascending)), 0x46dd794eu);
  std::reverse(ascending.begin(), ascending.end());
  EXPECT_EQ(crc32c(bytes_of(ascending)), 0x113fdb5cu);
  const std::vector<std::uint8_t> read_command = {
      0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
      0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(crc32c(bytes_of(read_command)), 0xd9963a56u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, AgreesWithTheDefinitionAtEveryLengthAndOffset) {
  const std::vector<std::uint8_t> bytes = random_bytes(80);
  for (std::size_t offset = 0; offset < 9; ++offset) {
    for (std::size_t size = 0; size + offset <= bytes.size(); ++size) {
      const auto part = bytes_of(bytes).subspan(offset, size);
      ASSERT_EQ(crc32c(part), slow_crc32c(part)) << offset << " + " << size;
      ASSERT_EQ(crc32c_portable(part), slow_crc32c(part)) << offset << " + " << size;
    }
  }
}

// Long inputs use a different method: one or several rounds of blocks side by side.
TEST(Crc32c, AgreesWithTheDefinitionOnLongTexts) {
  const std::vector<std::uint8_t> bytes = random_bytes(20000);
  for (const std::size_t size : {1343u, 1344u, 4031u, 4032u, 4033u, 8063u, 8064u, 8065u, 19990u})
    for (const std::size_t offset : {0u, 1u, 7u}) {
      const auto part = bytes_of(bytes).subspan(offset, size);
      ASSERT_EQ(crc32c(part), slow_crc32c(part)) << offset << " + " << size;
      ASSERT_EQ(crc32c_portable(part), slow_crc32c(part)) << offset << " + " << size;
      ASSERT_EQ(crc32c(part.subspan(5), crc32c(part.first(5))), slow_crc32c(part)) << size;
    }
}

// FIPS 180-4, example values published by NIST.
TEST(Sha256, VectorsOfNist) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                   "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace millrace
