// SPDX-License-Identifier: Apache-2.0
//
// What kernels may expect of teams, on every device; and on the fake device, that mistakes show.
#include "device/teams.hpp"

#include <csignal>

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "tests/support/test.hpp"

namespace millrace::device {
namespace {

constexpr std::int64_t kTeams = 37;
constexpr int kMost = threads_of_team(96);  // no power of two

/// Numbers on the device, for each thread of each team; first -1.
class Numbers {
 public:
  Numbers() : arena_(kBytes) {
    const std::vector<std::int32_t> start(kCount, -1);
    copy_to_device(arena_.at(0), reinterpret_cast<const std::byte*>(start.data()), kBytes);
  }
  [[nodiscard]] std::int32_t* data() const { return reinterpret_cast<std::int32_t*>(arena_.at(0)); }
  [[nodiscard]] std::vector<std::int32_t> values() const {
    std::vector<std::int32_t> host(kCount);
    copy_to_host(reinterpret_cast<std::byte*>(host.data()), arena_.at(0), kBytes);
    return host;
  }

 private:
  static constexpr std::size_t kCount = kTeams * kMost;
  static constexpr std::int64_t kBytes = kCount * sizeof(std::int32_t);
  Arena arena_;
};

std::vector<std::int32_t> numbers_after(const auto& make_kernel) {
  const ExecutionSpace space;
  const Numbers numbers;
  parallel_teams("teams", space, kTeams, make_kernel(numbers.data()));
  fence(space);
  return numbers.values();
}

/// What `of(team, rank)` says for each thread of each team.
std::vector<std::int32_t> expected(const auto& of) {
  std::vector<std::int32_t> numbers;
  for (std::int32_t team = 0; team < kTeams; ++team)
    for (std::int32_t rank = 0; rank < kMost; ++rank) numbers.push_back(of(team, rank));
  return numbers;
}

struct WriteRank {
  static constexpr int kThreads = kMost;
  static constexpr std::size_t kSharedBytes = 4;
  std::int32_t* out;
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t i) const {
    out[i * kMost + team.rank()] =
        1000 * static_cast<std::int32_t>(i) + 10 * team.rank() + (team.size() == kMost ? 1 : 0);
  }
};
TEST(Teams, RunEachThreadAndTellItsRankAndTheirNumber) {
  EXPECT_EQ(numbers_after([](auto* out) { return WriteRank{out}; }),
            expected([](int team, int rank) { return 1000 * team + 10 * rank + 1; }));
}

/// Each thread passes a number on to the next ones, several times, by shared memory.
template <bool kWaits>
struct PassAround {
  static constexpr int kThreads = kMost;
  static constexpr std::size_t kSharedBytes = 2 * kMost * sizeof(std::int32_t);
  static constexpr int kTimes = 5;
  std::int32_t* out;
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t i) const {
    auto* const own = reinterpret_cast<std::int32_t*>(team.shared());
    const auto number = static_cast<std::int32_t>(i);
    std::int32_t value = 100 * number + team.rank();
    for (int time = 0; time < kTimes; ++time) {
      std::int32_t* const values = own + time % 2 * kMost;
      values[team.rank()] = value;
      if (kWaits) team.wait();
      value = values[(team.rank() + time + number) % team.size()];
    }
    out[i * kMost + team.rank()] = value;
  }
};
std::vector<std::int32_t> passed_around() {
  return expected([](int team, int rank) {
    int from = rank;
    for (int time = 0; time < PassAround<true>::kTimes; ++time) from += time + team;
    return 100 * team + from % kMost;
  });
}
TEST(Teams, WaitForTheirThreadsAndShareMemoryOfTheirOwn) {
  EXPECT_EQ(numbers_after([](auto* out) { return PassAround<true>{out}; }), passed_around());
}

/// Threads without work at the end, as in a tree.
struct SumAsATree {
  static constexpr int kThreads = kMost;
  static constexpr std::size_t kSharedBytes = kMost * sizeof(std::int32_t);
  std::int32_t* out;
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t i) const {
    auto* const values = reinterpret_cast<std::int32_t*>(team.shared());
    values[team.rank()] = team.rank() + static_cast<std::int32_t>(i);
    for (int step = 1; step < team.size(); step *= 2) {
      team.wait();
      if (team.rank() % (2 * step) == 0 && team.rank() + step < team.size())
        values[team.rank()] += values[team.rank() + step];
    }
    team.wait();
    out[i * kMost + team.rank()] = values[0];
  }
};
TEST(Teams, WaitAsOftenAsTheyWant) {
  EXPECT_EQ(numbers_after([](auto* out) { return SumAsATree{out}; }),
            expected([](int team, int) { return kMost * (kMost - 1) / 2 + kMost * team; }));
}

/// Fewer threads than a kernel before.
struct OneThread {
  static constexpr int kThreads = 1;
  static constexpr std::size_t kSharedBytes = 4;
  std::int32_t* out;
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t i) const {
    team.wait();
    out[i * kMost] = team.size();
  }
};
TEST(Teams, HaveOneThreadIfTheKernelSaysSo) {
  EXPECT_EQ(numbers_after([](auto* out) { return OneThread{out}; }),
            expected([](int, int rank) { return rank == 0 ? 1 : -1; }));
}

#if defined(MILLRACE_FAKE_DEVICE)
TEST(FakeTeams, ComputeSomethingElseIfTheyDoNotWait) {
  EXPECT_NE(numbers_after([](auto* out) { return PassAround<false>{out}; }), passed_around());
}

/// Thread 0 writes what the others read, or the other way round. No single order of threads shows
/// both.
struct ReadEarly {
  static constexpr int kThreads = kMost;
  static constexpr std::size_t kSharedBytes = sizeof(std::int32_t);
  int writer;
  int reader;
  std::int32_t* out;
  void operator()(const Team& team, std::int64_t i) const {
    auto* const word = reinterpret_cast<std::int32_t*>(team.shared());
    if (team.rank() == writer) *word = 7;
    if (team.rank() == reader) out[i * kMost + reader] = *word;
  }
};
TEST(FakeTeams, RunInSeveralOrdersWithSharedMemoryThatHoldsNothing) {
  for (const auto& [writer, reader] : {std::pair{0, kMost - 1}, {kMost - 1, 0}, {4, 5}, {5, 4}}) {
    int early = 0;
    int late = 0;
    const std::vector<std::int32_t> seen = numbers_after([w = writer, r = reader](auto* out) {
      return ReadEarly{w, r, out};
    });
    for (std::int64_t team = 0; team < kTeams; ++team) {
      const std::int32_t word = seen[static_cast<std::size_t>(team * kMost + reader)];
      early += word == -1 ? 1 : 0;
      late += word == 7 ? 1 : 0;
    }
    EXPECT_EQ(early + late, kTeams);
    EXPECT_GT(early, 0) << writer << ' ' << reader;
    EXPECT_GT(late, 0) << writer << ' ' << reader;
  }
}

/// Expects that one team of this kernel ends the process.
void expect_end(const auto& kernel, int signal, const char* message) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ExecutionSpace space;
        parallel_teams("teams", space, 1, kernel);
        fence(space);
      },
      testing::KilledBySignal(signal), message);
}

struct WaitAlone {
  static constexpr int kThreads = kMost;
  static constexpr std::size_t kSharedBytes = 4;
  void operator()(const Team& team, std::int64_t) const {
    if (team.rank() == 3) team.wait();
  }
};
TEST(FakeTeams, EndAProcessInWhichNotAllThreadsWait) {
  expect_end(WaitAlone{}, SIGABRT, "waiting == threads");
}

/// A recursion that needs more than a stack.
struct Deep {
  static constexpr int kThreads = kMost;
  static constexpr std::size_t kSharedBytes = 4;
  static int descend(int depth) {
    volatile char page[1024];
    page[0] = static_cast<char>(depth);
    return depth == 0 ? page[0] : descend(depth - 1) + page[0];
  }
  void operator()(const Team& team, std::int64_t) const {
    if (descend(1000) == 1) team.wait();
  }
};
TEST(FakeTeams, EndAProcessWhoseKernelNeedsTooMuchStack) { expect_end(Deep{}, SIGSEGV, ""); }
#endif

}  // namespace
}  // namespace millrace::device
