// SPDX-License-Identifier: Apache-2.0
//
// Kills a process of a run, a rank or a launcher, at random moments: the run continues without
// manual steps and ends with the same result.
#include <random>
#include <thread>

#include "faults.hpp"

namespace millrace::test {
namespace {

constexpr int kIterations = 24;
constexpr int kSaved = 4;

class RandomKillTest : public testing::Test {
 protected:
  static Words training(int ranks, const fs::path& run) {
    return short_training(kIterations, kSaved) + on_ranks(ranks) + Words{"--run-dir", run};
  }

  /// Duration of an undisturbed run; checks that its result is right.
  double seconds_of(int ranks) {
    const fs::path run = directory_ / "whole";
    const auto begin = std::chrono::steady_clock::now();
    const ProcessResult result = millrace(training(ranks, run));
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(newest_in(run)->digest, undisturbed(kIterations).at_end());
    return time.count();
  }

  /// Kills one process of the run `seconds` after the start; returns which one.
  static std::string kill_one(const Job& job, const fs::path& run, double seconds,
                              std::minstd_rand& random) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    std::vector<Member> members = members_of(run);
    if (members.empty()) return "nobody";
    const Member& one = members[random() % members.size()];
    kill(one.process, SIGKILL);
    if (one.process == job.process()) return "the program";
    return one.rank < 0 ? one.program : "rank " + std::to_string(one.rank);
  }

  void expect_survived(int ranks, double seconds, std::minstd_rand& random) {
    const fs::path run = directory_ / "run";
    fs::remove_all(run);
    Job job(training(ranks, run));
    const std::string killed = kill_one(job, run, seconds, random);
    SCOPED_TRACE(killed + " killed after " + std::to_string(seconds) + " s");
    const ProcessResult result = job.wait();
    // The remaining processes of a killed program soon end by themselves.
    ASSERT_TRUE(wait_until([&] { return members_of(run).empty(); })) << result.output;
    undisturbed(kIterations).expect_sound(run, result.output);
    undisturbed(kIterations).expect_finished(run, training(ranks, run));
    std::cout << killed << " after " << seconds << " s: code " << result.code << ", saved "
              << last_saved_in(result.output) << '\n';
  }

  void kill_at_random(int ranks, int runs) {
    const double length = seconds_of(ranks);
    std::minstd_rand random(static_cast<unsigned>(ranks));
    std::uniform_real_distribution<double> moment(0.0, length);
    for (int i = 0; i < runs; ++i) {
      SCOPED_TRACE(i);
      expect_survived(ranks, moment(random), random);
    }
  }

  TemporaryDirectory directory_;
};

TEST_F(RandomKillTest, OneProcess) { kill_at_random(1, whole() ? 60 : 8); }
TEST_F(RandomKillTest, TwoRanksAndTheirLauncher) { kill_at_random(2, whole() ? 100 : 12); }
TEST_F(RandomKillTest, FourRanksAndTheirLauncher) {
  if (!whole()) GTEST_SKIP() << "two ranks show the same in less time";
  kill_at_random(4, 40);
}

}  // namespace
}  // namespace millrace::test
