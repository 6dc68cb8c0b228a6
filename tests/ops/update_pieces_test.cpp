// SPDX-License-Identifier: Apache-2.0
//
// How accelerators cut an update into pieces and sums into lanes; the same on every machine.
#include "ops/update_pieces.hpp"

#include "ops/last_one.hpp"
#include "ops/optimiser.hpp"
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

// ---- sums over replicas -------------------------------------------------------------------------

// The order of addition is that of the replicas, wherever the sum is computed. A stride of 1003
// elements cannot be read several elements at a time.
TEST(AddParts, AddsInTheOrderOfReplicas) {
  constexpr std::int64_t kCount = 1003;
  std::vector<Values> parts;
  for (std::uint64_t p = 0; p < 3; ++p) parts.push_back(random_as<float>(kCount, p));
  const Values expected = stored_sum<float>(stored_sum<float>(parts[0], parts[1]), parts[2]);
  for (const std::size_t own : {0u, 1u, 2u})
    for (const std::int64_t stride : {kCount, std::int64_t{1024}}) {
      Values others(static_cast<std::size_t>(2 * stride));
      auto place = others.begin();
      for (std::size_t p = 0; p < 3; ++p) {
        if (p == own) continue;
        std::copy(parts[p].begin(), parts[p].end(), place);
        place += stride;
      }
      DeviceValues<float> out(parts[own]), received(others);
      const device::ExecutionSpace space;
      add_parts(space, kCount, out.data(), received.data(), stride, static_cast<int>(own), 3);
      EXPECT_EQ(out.values(), expected) << own << ", stride " << stride;
    }
}

// The replica's own values are float32.
TEST(AddParts, WidensWhatOthersSent) {
  constexpr std::int64_t kCount = 1003;
  const Values own = random_as<float>(kCount, 1);
  const Values other = random_as<bfloat16>(kCount, 2);
  DeviceValues<float> out(own);
  DeviceValues<bfloat16> received(other);
  add_parts(device::ExecutionSpace(), kCount, out.data(), received.data(), kCount, 0, 2);
  EXPECT_EQ(out.values(), stored_sum<float>(own, other));
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
  DeviceValues<std::uint32_t> flag(Values{0.0});
  const device::ExecutionSpace space;
  flag_non_finite(space, std::ssize(values) - 1, device.data(), flag.data());
  return flag.values()[0] != 0.0;
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

// ---- last one -----------------------------------------------------------------------------------

/// `shared` teams share each counter, and the last of them adds up their numbers, which follow from
/// the launch. Teams with one counter are far apart, so that several run at a time. Other threads
/// write and read than the one that counts.
struct SumOfCounter {
  static constexpr int kThreads = kTeamThreads;
  static constexpr std::size_t kSharedBytes = sizeof(std::uint32_t);
  std::uint32_t* counters;
  std::int64_t* numbers;
  std::int64_t* totals;
  std::int64_t num_counters;
  std::int64_t shared;
  std::int64_t launch;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    const std::int64_t own = i % num_counters;
    if (team.rank() == team.size() - 1) numbers[i] = launch * (i / num_counters + 1);
    if (!is_last(team, counters + own, static_cast<std::uint32_t>(shared),
                 reinterpret_cast<std::uint32_t*>(team.shared())))
      return;
    if (team.rank() != team.size() / 2) return;
    for (std::int64_t k = own; k < shared * num_counters; k += num_counters)
      totals[own] += numbers[k];
  }
};

// A team that goes on too early adds an old number, and one that goes on twice adds all again.
TEST(LastOne, OfEachCounterSeesWhatTheOthersWrote) {
  constexpr std::int64_t kCounters = 50;
  constexpr std::int64_t kLaunches = 200;
  const device::ExecutionSpace space;
  for (const std::int64_t shared : {1, 2, 7, 100}) {
    DeviceValues<std::uint32_t> counters(Values(kCounters, 0.0));
    DeviceValues<std::int64_t> numbers(Values(static_cast<std::size_t>(kCounters * shared), 0.0));
    DeviceValues<std::int64_t> totals(Values(kCounters, 0.0));
    for (std::int64_t launch = 1; launch <= kLaunches; ++launch)
      device::parallel_teams(
          "last one", space, kCounters * shared,
          SumOfCounter{counters.data(), numbers.data(), totals.data(), kCounters, shared, launch});
    device::fence(space);
    const std::int64_t launches = kLaunches * (kLaunches + 1) / 2;
    const auto expected = static_cast<double>(launches * (shared * (shared + 1) / 2));
    EXPECT_EQ(totals.values(), Values(kCounters, expected)) << shared << " teams";
    EXPECT_EQ(counters.values(), Values(kCounters, 0.0));
  }
}

}  // namespace
}  // namespace millrace::ops
