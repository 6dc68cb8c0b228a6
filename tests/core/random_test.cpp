// SPDX-License-Identifier: Apache-2.0
#include "core/random.hpp"

#include "tests/support/test.hpp"

namespace millrace {
namespace {

RandomBlock philox(std::uint64_t key, std::uint64_t hi, std::uint64_t lo) {
  RandomStream stream(0, RandomPurpose::Initialise);
  stream.key = key;
  return stream.block(hi, lo);
}

// Rows "philox4x32 10" of kat_vectors in the Random123 distribution, which lists words from low to
// high.
TEST(RandomStream, KnownAnswersOfRandom123) {
  EXPECT_EQ(philox(0, 0, 0), (RandomBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint64_t kOnes = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(philox(kOnes, kOnes, kOnes),
            (RandomBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u),
            (RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The first outputs of Blackman and Vigna's xoshiro128++ from state 1, 2, 3, 4, as in the tests of
// libraries in other languages.
TEST(RandomSequence, KnownAnswersOfXoshiro128PlusPlus) {
  RandomBlock s = {1, 2, 3, 4};
  for (const std::uint32_t expected :
       {641u, 1573767u, 3222811527u, 3517856514u, 836907274u, 4247214768u, 3867114732u, 1355841295u,
        495546011u, 621204420u}) {
    EXPECT_EQ(next_in_sequence(s[0], s[1], s[2], s[3]), expected);
  }
}

// The first outputs of splitmix64 from state 0.
TEST(RandomStream, MixBitsIsSplitmix64) {
  EXPECT_EQ(mix_bits(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(mix_bits(0x9e3779b97f4a7c15u), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(mix_bits(0x9e3779b97f4a7c15u * 2), 0x06c45d188009454fu);
}

// Test vectors of draft-eastlake-fnv.
TEST(RandomStream, HashNameIsFnv1a) {
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash_name("foobar"), 0x85944171f73967e8u);
  EXPECT_NE(hash_name("b1/0/conv1/kernel"), hash_name("b1/0/conv2/kernel"));
}

TEST(RandomStream, KeysDifferByEachOfSeedPurposeAndStream) {
  std::set<std::uint64_t> keys;
  for (const std::uint64_t seed : {0u, 1u, 2u}) {
    for (const auto purpose : {RandomPurpose::Initialise, RandomPurpose::DataOrder,
                               RandomPurpose::Augment, RandomPurpose::GeneratedData}) {
      for (const std::uint64_t stream : {0u, 1u, 2u}) {
        keys.insert(RandomStream(seed, purpose, stream).key);
      }
    }
  }
  EXPECT_EQ(keys.size(), 3u * 4u * 3u);
}

TEST(RandomStream, UniformsStayInTheirRange) {
  EXPECT_EQ(uniform01(0), 0.0f);
  EXPECT_EQ(uniform01(0xffffffffu), 1.0f - 0x1p-24f);
  EXPECT_GT(uniform01_double(0, 0), 0.0);
  EXPECT_LT(uniform01_double(0xffffffffu, 0xffffffffu), 1.0);
  EXPECT_EQ(uniform_below(0, 7), 0u);
  EXPECT_EQ(uniform_below(0xffffffffu, 7), 6u);
  EXPECT_EQ(uniform_below(0x80000000u, 7), 3u);
}

TEST(RandomStream, UniformsHaveTheRightMoments) {
  const RandomStream stream(3, RandomPurpose::Augment, 4);
  constexpr int kCount = 20000;
  double sum = 0;
  double squares = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    for (const std::uint32_t word : stream.block(9, i)) {
      const double u = static_cast<double>(uniform01(word));
      sum += u;
      squares += u * u;
    }
  }
  const double n = 4.0 * kCount;
  EXPECT_NEAR(sum / n, 0.5, 4 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / n));
}

class PermutationOf : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PermutationOf, IsABijection) {
  const std::uint64_t size = GetParam();
  for (const std::uint64_t epoch : {0u, 1u}) {
    const Permutation permutation(17, epoch, size);
    ASSERT_EQ(permutation.size(), size);
    std::vector<bool> hit(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t place = permutation(i);
      ASSERT_LT(place, size);
      ASSERT_FALSE(hit[place]) << "twice: " << place;
      hit[place] = true;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PermutationOf,
                         testing::Values(1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65,
                                         100, 127, 128, 129, 255, 256, 257, 1000, 1023, 1024, 1025,
                                         4097, 10000, 50000, 65535, 65536, 65537),
                         testing::PrintToStringParamName());

TEST(Permutation, DiffersByEpochAndSeed) {
  constexpr std::uint64_t kSize = 50000;
  const Permutation one(1, 0, kSize);
  for (const Permutation& other : {Permutation(1, 1, kSize), Permutation(2, 0, kSize)}) {
    int equal = 0;
    for (std::uint64_t i = 0; i < kSize; ++i) equal += one(i) == other(i) ? 1 : 0;
    EXPECT_LT(equal, 10);  // two random orders agree in one place on average
  }
}

// Neighbors in the data set must not stay neighbors, and no part of the order may prefer a part of
// the data. Over the 10 x 10 deciles, chi-squared with 81 degrees of freedom must stay below its
// 99.99 % quantile.
TEST(Permutation, SpreadsTheSamplesEvenly) {
  constexpr std::uint64_t kSize = 50000;
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    const Permutation permutation(5, epoch, kSize);
    std::vector<double> cells(100);
    int neighbours = 0;
    for (std::uint64_t i = 0; i < kSize; ++i) {
      cells[i * 10 / kSize * 10 + permutation(i) * 10 / kSize] += 1;
      if (i > 0 && permutation(i) == permutation(i - 1) + 1) ++neighbours;
    }
    double chi_squared = 0;
    for (const double count : cells) chi_squared += (count - 500) * (count - 500) / 500;
    EXPECT_LT(chi_squared, 137.0);
    EXPECT_LT(neighbours, 10);
  }
}

TEST(Permutation, ServesHugeSizes) {
  constexpr std::uint64_t kSize = (std::uint64_t{1} << 40) + 12345;
  const Permutation permutation(1, 1, kSize);
  std::set<std::uint64_t> places;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::uint64_t place = permutation(kSize - 1 - i);
    EXPECT_LT(place, kSize);
    places.insert(place);
  }
  EXPECT_EQ(places.size(), 1000u);
}

}  // namespace
}  // namespace millrace
