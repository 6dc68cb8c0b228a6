// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/norm.hpp"
#include "tests/ops/device_values.hpp"

namespace millrace::ops {

/// Scratch of a norm's kernels. Checks at the end that they left the counters as they must.
class NormScratchMemory {
 public:
  explicit NormScratchMemory(const NormShape& s)
      : sums_(s.scratch_floats()), counters_(Values(static_cast<std::size_t>(s.counters()), 0.0)) {}
  NormScratchMemory(const NormScratchMemory&) = delete;
  NormScratchMemory& operator=(const NormScratchMemory&) = delete;
  ~NormScratchMemory() {
    const std::vector<std::byte> counters = counters_.bits();
    EXPECT_EQ(counters, std::vector<std::byte>(counters.size())) << "counters are not zero again";
  }
  [[nodiscard]] NormScratch get() { return {sums_.data(), counters_.data()}; }

 private:
  DeviceValues<float> sums_;
  DeviceValues<std::uint32_t> counters_;
};

}  // namespace millrace::ops
