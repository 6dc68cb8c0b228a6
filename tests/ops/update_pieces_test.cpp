// SPDX-License-Identifier: Apache-2.0
//
// How accelerators cut an update into pieces and sums into lanes; the same on every machine.
#include "ops/update_pieces.hpp"

#include "ops/sums.hpp"
#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

/// Writes to each element how many are accessed together with it.
struct Record {
  int* widths;
  template <int W>
  void run(const ParameterSpan& span, std::int64_t at) const {
    for (int j = 0; j < W; ++j) widths[span.offset + at + j] += W;
  }
};

/// What each element of a flat array of `size` sees of an update of these spans.
std::vector<int> widths_of(const std::vector<ParameterSpan>& spans, std::size_t size,
                           bool packs = true) {
  std::vector<int> widths(size);
  const Pieces<Record> pieces{{widths.data()}, spans.data(), packs};
  for (std::int64_t i = 0; i < std::ssize(spans) * kPiecesOfSpan; ++i) pieces(i);
  return widths;
}

TEST(UpdatePieces, CoverEveryElementOnce) {
  const std::vector<ParameterSpan> spans = {{.offset = 0, .elements = kSpanElements},
                                            {.offset = kSpanElements, .elements = 19},
                                            {.offset = kSpanElements + 20, .elements = 9},
                                            {.offset = kSpanElements + 32, .elements = 8}};
  std::vector<int> expected(kSpanElements + 16, kPiece);  // whole pieces at multiples of their size
  expected.insert(expected.end(), {1, 1, 1, 0});          // the rest of a span, then a gap
  expected.insert(expected.end(), 9, 1);                  // not aligned
  expected.insert(expected.end(), 3, 0);
  expected.insert(expected.end(), 8, kPiece);
  EXPECT_EQ(widths_of(spans, expected.size()), expected);
  for (int& width : expected) width = width > 0 ? 1 : 0;
  EXPECT_EQ(widths_of(spans, expected.size(), false), expected);
}

TEST(UpdatePieces, AreSingleElementsIfTheirVectorIsNotAligned) {
  EXPECT_EQ(widths_of({{.offset = 0, .elements = 8, .vector = 16}}, 8), std::vector<int>(8, 8));
  EXPECT_EQ(widths_of({{.offset = 0, .elements = 8, .vector = 3}}, 8), std::vector<int>(8, 1));
}

TEST(UpdatePieces, NeighborsHaveNeighboringElements) {
  std::vector<int> widths(kSpanElements);
  const ParameterSpan span{.offset = 0, .elements = kSpanElements};
  const Pieces<Record> pieces{{widths.data()}, &span, true};
  for (std::int64_t i = 0; i < 3; ++i) pieces(i);
  EXPECT_EQ(std::accumulate(widths.begin(), widths.begin() + 3 * kPiece, 0), 3 * kPiece * kPiece);
  EXPECT_EQ(std::accumulate(widths.begin(), widths.end(), 0), 3 * kPiece * kPiece);
}

struct Of {
  const float* values;
  KOKKOS_INLINE_FUNCTION float operator()(std::int64_t k) const { return values[k]; }
};

/// The sum that the last thread of a team sees, to which each thread contributes.
struct SumOfTeam {
  static constexpr int kThreads = kTeamThreads;
  static constexpr std::size_t kSharedBytes = kTeamLanes * sizeof(Accumulator);
  Accumulator* out;
  std::int64_t n;
  const float* values;
  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    auto* const lanes = reinterpret_cast<Accumulator*>(team.shared());
    const Accumulator sum = team_sum_of_squares(team, lanes, n, Of{values});
    if (team.rank() == team.size() - 1) out[i] = sum;
  }
};

// The order of summation, written out.
TEST(TeamSums, AreATreeOverLanes) {
  const device::ExecutionSpace space;
  for (const std::int64_t n : {1, 127, 128, 129, 4096}) {
    const Values values = random_as<float>(n, 1);
    std::vector<Accumulator> expected(kTeamLanes);
    for (std::size_t k = 0; k < values.size(); ++k) {
      const auto value = static_cast<Accumulator>(static_cast<float>(values[k]));
      expected[k % kTeamLanes] += value * value;
    }
    for (std::size_t half = kTeamLanes / 2; half > 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane) expected[lane] += expected[lane + half];
    constexpr std::int64_t kTeams = 5;
    DeviceValues<float> input(values);
    DeviceValues<Accumulator> sums(kTeams);
    device::parallel_teams("sum", space, kTeams, SumOfTeam{sums.data(), n, input.data()});
    device::fence(space);
    EXPECT_EQ(sums.values(), Values(kTeams, static_cast<double>(expected[0]))) << n;
  }
}

}  // namespace
}  // namespace millrace::ops
