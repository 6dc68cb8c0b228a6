// SPDX-License-Identifier: Apache-2.0
#include "device/arena.hpp"

#include "tests/support/expect_error.hpp"

namespace millrace::device {
namespace {

std::vector<std::byte> contents(const Arena& arena) {
  std::vector<std::byte> host(static_cast<std::size_t>(arena.bytes()), std::byte{1});
  copy_to_host(host.data(), arena.at(0), arena.bytes());
  return host;
}

TEST(Arena, IsAligned) {
  EXPECT_EQ(aligned(0), 0);
  EXPECT_EQ(aligned(1), kAlignment);
  EXPECT_EQ(aligned(kAlignment), kAlignment);
  EXPECT_EQ(aligned(kAlignment + 1), 2 * kAlignment);
  EXPECT_EQ(Arena(100).bytes(), 128);
  for (const std::int64_t bytes : {0, 1, 64, 1000, 100000}) {
    const Arena arena(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.at(0)) % kAlignment, 0u);
    EXPECT_EQ(arena.at(kAlignment) - arena.at(0), kAlignment);
  }
}

TEST(Arena, TellsEachPieceThatIsPlaced) {
  constexpr std::int64_t kPiece = std::int64_t{512} << 20;
  for (const std::int64_t bytes : {std::int64_t{1}, kPiece + 1}) {
    std::int64_t placed = 0;
    const Arena arena(bytes, [&] { ++placed; });
    EXPECT_EQ(placed, bytes > kPiece ? 2 : 1);
    EXPECT_EQ(placed, Arena::pieces(bytes));
  }
}

TEST(Arena, IsZero) {
  // Reused memory would show its old contents.
  for (int round = 0; round < 2; ++round) {
    const Arena arena(1000);
    const std::vector<std::byte> bytes = contents(arena);
    EXPECT_TRUE(
        std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; }));
    const std::vector<std::byte> ones(1000, std::byte{0xff});
    copy_to_device(arena.at(0), ones.data(), 1000);
  }
}

TEST(Arena, CopiesThereAndBack) {
  const Arena arena(256);
  std::vector<std::byte> sent(100);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i);
  copy_to_device(arena.at(64), sent.data(), 100);
  std::vector<std::byte> received(100);
  copy_to_host(received.data(), arena.at(64), 100);
  EXPECT_EQ(received, sent);
  EXPECT_EQ(contents(arena)[63], std::byte{});
  EXPECT_EQ(contents(arena)[164], std::byte{});
}

TEST(Arena, Moves) {
  Arena first(64);
  std::byte* const place = first.at(0);
  Arena second(std::move(first));
  EXPECT_EQ(second.at(0), place);
  Arena third(128);
  third = std::move(second);
  EXPECT_EQ(third.at(0), place);
  EXPECT_EQ(third.bytes(), 64);
}

TEST(HostBuffer, IsAlignedAndFeedsTheDevice) {
  const std::shared_ptr<std::byte> buffer = host_buffer(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.get()) % kAlignment, 0u);
  for (std::size_t i = 0; i < 100; ++i) buffer.get()[i] = static_cast<std::byte>(i + 1);
  const Arena arena(128);
  copy_to_device(arena.at(0), buffer.get(), 100);
  const std::vector<std::byte> received = contents(arena);
  EXPECT_EQ(received[99], std::byte{100});
  EXPECT_EQ(received[100], std::byte{});
}

TEST(Arena, TooLargeIsAConfigurationError) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the address sanitizer ends the process on such a request";
#endif
  expect_error(ErrorKind::Config, {"`batch-size`"},
               [] { const Arena arena(std::int64_t{1} << 60); });
}

}  // namespace
}  // namespace millrace::device
