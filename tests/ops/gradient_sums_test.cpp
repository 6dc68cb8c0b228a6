// SPDX-License-Identifier: Apache-2.0
#include "ops/optimiser.hpp"
#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

// ---- sums over replicas -------------------------------------------------------------------------

/// `elements` sums over three parts, of which this replica has number `own`.
Values sum_of_parts(std::int64_t elements, std::int64_t stride, int own) {
  std::vector<Values> parts;
  for (std::uint64_t p = 0; p < 3; ++p) parts.push_back(random_as<float>(elements, p));
  Values others(static_cast<std::size_t>(2 * stride));
  for (std::size_t p = 0; p < 3; ++p) {
    if (static_cast<int>(p) == own) continue;
    const auto place = static_cast<std::int64_t>(static_cast<int>(p) < own ? p : p - 1);
    std::copy(parts[p].begin(), parts[p].end(), others.begin() + place * stride);
  }
  DeviceValues<float> out(parts[static_cast<std::size_t>(own)]);
  DeviceValues<float> received(others);
  const device::ExecutionSpace space;
  add_parts(space, elements, out.data(), received.data(), stride, own, 3);
  device::fence(space);
  return out.values();
}

// The order of addition is that of the replicas, wherever the sum is computed. A stride of 1003
// elements cannot be read several elements at a time.
TEST(AddParts, AddsInTheOrderOfReplicas) {
  constexpr std::int64_t kElements = 1003;
  Values expected;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kElements); ++i) {
    float sum = 0.0f;
    for (std::uint64_t p = 0; p < 3; ++p) {
      const auto part = static_cast<float>(random_as<float>(kElements, p)[i]);
      sum = p == 0 ? part : sum + part;
    }
    expected.push_back(static_cast<double>(sum));
  }
  for (const int own : {0, 1, 2}) {
    EXPECT_EQ(sum_of_parts(kElements, kElements, own), expected) << own;
    EXPECT_EQ(sum_of_parts(kElements, 1024, own), expected) << own;
  }
}

// ---- norms --------------------------------------------------------------------------------------

// Squares of 1 to n, which are exact in double. A span has the same sum at every place.
TEST(SquareGradients, SumsEachSpan) {
  const std::vector<ParameterSpan> spans = {{.offset = 3, .elements = 1},
                                            {.offset = 4, .elements = 4096},
                                            {.offset = 4104, .elements = 300}};
  Values gradients(5000, std::nan(""));
  Values expected;
  for (const ParameterSpan& span : spans) {
    const auto n = static_cast<double>(span.elements);
    for (std::int64_t k = 0; k < span.elements; ++k)
      gradients[static_cast<std::size_t>(span.offset + k)] = static_cast<double>(k + 1);
    expected.push_back(n * (n + 1.0) * (2.0 * n + 1.0) / 6.0);
  }
  DeviceValues<float> on_device(gradients);
  const DeviceRecords<ParameterSpan> records(spans);
  DeviceValues<Accumulator> squares(std::ssize(spans));
  const device::ExecutionSpace space;
  square_gradients(space, records.data(), std::ssize(spans), on_device.data(), squares.data());
  device::fence(space);
  EXPECT_EQ(squares.values(), expected);
}

// ---- check for non-finite values ----------------------------------------------------------------

template <class T>
bool flagged(Values values) {
  values.push_back(std::numeric_limits<double>::infinity());  // past the end
  DeviceValues<T> device(values);
  DeviceValues<float> flag(Values(1, 0.0));
  const device::ExecutionSpace space;
  auto* word = reinterpret_cast<std::uint32_t*>(flag.raw());
  flag_non_finite(space, std::ssize(values) - 1, device.data(), word);
  const std::vector<std::byte> bits = flag.bits();
  return std::any_of(bits.begin(), bits.end(), [](std::byte b) { return b != std::byte{0}; });
}

TEST(FlagNonFinite, FindsOneAnywhere) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::size_t kSize = 40'003;  // accelerators take 8 at a time, then the rest
  Values values(kSize, 1.0);
  values[1] = static_cast<double>(std::numeric_limits<float>::denorm_min());
  values[2] = -3.0e38;
  EXPECT_FALSE(flagged<float>(values));
  EXPECT_FALSE(flagged<bfloat16>(values));
  EXPECT_FALSE(flagged<float>({}));
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{16383}, kSize - 1}) {
      Values broken = values;
      broken[place] = bad;
      EXPECT_TRUE(flagged<float>(broken)) << bad << " at " << place;
      EXPECT_TRUE(flagged<bfloat16>(broken)) << bad << " at " << place;
    }
  }
}

}  // namespace
}  // namespace millrace::ops
