// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.hpp"
#include "core/sha256.hpp"
#include "tests/support/test.hpp"

namespace millrace {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

std::string sha256(std::string_view text) {
  Sha256 digest;
  digest.update(bytes_of(text.substr(0, text.size() / 3)));
  digest.update(bytes_of(text.substr(text.size() / 3)));
  return digest.hex_digest();
}

TEST(Crc32c, VectorsOfRfc3720) {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  const std::string descending(ascending.rbegin(), ascending.rend());
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62a8ab43u);
  EXPECT_EQ(crc32c(bytes_of(ascending)), 0x46dd794eu);
  EXPECT_EQ(crc32c(bytes_of(descending)), 0x113fdb5cu);
  const std::vector<std::uint8_t> read_command = {
      0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
      0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(crc32c(std::as_bytes(std::span(read_command))), 0xd9963a56u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes_of("6789"), crc32c(bytes_of("12345"))), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

#if defined(__x86_64__)
// Code without AVX would take 20 times as long: XINUSE tells of the upper halves of registers.
TEST(Crc32c, LeavesTheUpperHalvesOfRegisters) {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  std::uint32_t other = 0;
  std::uint32_t leaf = 0xd;
  std::uint32_t part = 1;
  if (__builtin_cpu_supports("avx") == 0) GTEST_SKIP() << "there are none";
  __asm__ volatile("cpuid" : "+a"(leaf), "=b"(other), "+c"(part), "=d"(high));
  if ((leaf & 4u) == 0) GTEST_SKIP() << "this processor does not tell";
  const std::string text(65536, 'x');
  const std::uint32_t crc = crc32c(bytes_of(text));
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1), "m"(crc));
  EXPECT_EQ(low & 0x44u, 0u);
}
#endif

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
