// SPDX-License-Identifier: Apache-2.0
//
// Small files of CIFAR-10.
#pragma once

#include "core/random.hpp"
#include "tests/io/fixtures.hpp"

namespace millrace::io {

inline constexpr std::size_t kRecord10 = 3073;

/// `count` records with labels label, label+1, ... (modulo the classes) and random pixels.
inline std::vector<std::uint8_t> records10(int count, int label, std::uint64_t seed) {
  const RandomStream stream(seed, RandomPurpose::GeneratedData);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * kRecord10);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = i % kRecord10 == 0
                   ? static_cast<std::uint8_t>((label + static_cast<int>(i / kRecord10)) % 10)
                   : static_cast<std::uint8_t>(stream.block(0, i)[0]);
  return bytes;
}

/// A set of two files, in a folder that is made for it.
inline void write_cifar10(const std::filesystem::path& folder, int train, int test) {
  std::filesystem::create_directories(folder);
  write_bytes(folder / "data_batch_1.bin", records10(train, 0, 1));
  write_bytes(folder / "test_batch.bin", records10(test, 0, 2));
}

}  // namespace millrace::io
