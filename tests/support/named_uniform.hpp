// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace::test {

/// Multiples of 2^-23 in [-1, 1), by name and index: SplitMix64 of the FNV-1a hash of the name, as
/// in tests/golden/record_pytorch.py.
class NamedUniform {
 public:
  explicit NamedUniform(const std::string& name) {
    for (const char c : name) key_ = (key_ ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  double operator()(std::size_t index) const {
    std::uint64_t z = key_ + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z = z ^ (z >> 31);
    return static_cast<double>(z >> 40) / 8388608.0 - 1.0;
  }

 private:
  std::uint64_t key_ = 0xCBF29CE484222325u;
};

}  // namespace millrace::test
