// SPDX-License-Identifier: Apache-2.0
//
// Whole runs on one, two and four ranks. One rank is killed before its n-th call that changes
// files, or that call fails. What was saved remains, and the run can be finished.
#include "faults.hpp"

namespace millrace::test {
namespace {

constexpr int kIterations = 2;

/// A call of one rank, and its fault.
struct Strike {
  int rank = 0;
  std::size_t at = 0;  ///< which call, from 1
  std::string action;  ///< action of the call in a run without faults
  std::string fault;
};

std::ostream& operator<<(std::ostream& out, const Strike& strike) {
  return out << strike.fault << " at call " << strike.at << " (" << strike.action << ") of rank "
             << strike.rank;
}

/// Starting a run, or restoring one.
enum class Phase { Begun, Restored };

/// The rank that is struck, of so many.
struct Struck {
  int ranks;
  int rank;
};

class FileFaultTest : public testing::TestWithParam<Struck> {
 protected:
  static Words training(int ranks, const fs::path& run) {
    return short_training(kIterations, 1) + on_ranks(ranks) + Words{"--run-dir", run};
  }
  /// The rank in terms of the shim; a single process has none.
  static Environment shim(int ranks, int rank, const fs::path& run, const Environment& rules) {
    return file_shim(ranks == 1 ? -1 : rank,
                     Environment{"MILLRACE_SHIM_BELOW=" + run.string()} + rules);
  }

  fs::path fresh_run(int ranks, Phase phase) {
    fs::path run = directory_ / "run";
    fs::remove_all(run);
    if (phase == Phase::Begun) return run;
    const fs::path begun = directory_ / ("begun-" + std::to_string(ranks));
    if (!fs::exists(begun)) {
      EXPECT_EQ(millrace(training(ranks, run) + "--stop-after 1").code, 75);
      fs::rename(run, begun);
    }
    fs::copy(begun, run, fs::copy_options::recursive);
    return run;
  }
  static Words command(int ranks, Phase phase, const fs::path& run) {
    return phase == Phase::Begun ? training(ranks, run) : Words{"restore --restore-path", run};
  }

  /// The calls that change a rank's files in a run without faults.
  std::vector<std::string> calls_of(int ranks, int rank, Phase phase) {
    const fs::path run = fresh_run(ranks, phase);
    const fs::path record = directory_ / "record";
    fs::remove(record);
    Job job(command(ranks, phase, run),
            shim(ranks, rank, run, {"MILLRACE_SHIM_RECORD=" + record.string()}));
    expect_end(job.wait(), 0);
    std::vector<std::string> calls;
    for (const std::string& line : lines_of(read_text(record)))
      calls.push_back(line.substr(0, line.find(' ')));
    EXPECT_FALSE(calls.empty()) << "rank " << rank;
    return calls;
  }

  void expect_survived(int ranks, Phase phase, const Strike& strike) {
    std::ostringstream what;
    what << strike;
    SCOPED_TRACE(what.str());
    const fs::path run = fresh_run(ranks, phase);
    Job job(command(ranks, phase, run), shim(ranks, strike.rank, run,
                                             {"MILLRACE_SHIM_AT=" + std::to_string(strike.at),
                                              "MILLRACE_SHIM_FAULT=" + strike.fault}));
    const ProcessResult result = job.wait();
    expect_code(ranks, strike, result);
    ASSERT_TRUE(wait_until([&] { return members_of(run).empty(); }));
    const Undisturbed& other = undisturbed(kIterations);
    other.expect_sound(run, result.output);
    // The digest is the same in any layout; the long form finishes in the layout of the run.
    other.expect_finished(run, training(ranks, run), whole() ? Words{} : Words{"--ranks 1"});
    ++survived_[strike.fault];
  }

  static void expect_code(int ranks, const Strike& strike, const ProcessResult& result) {
    // The writing thread may make fewer calls than in the recorded run.
    if (result.code == 0) return;
    const bool killed = strike.fault == "kill" || strike.fault == "torn";
    const int expected = !killed ? 5 : ranks == 1 ? 128 + SIGKILL : 7;
    EXPECT_EQ(result.code, expected) << result.output;
  }

  /// Strikes every `stride`-th call of the rank: kills it before and during the call, and lets the
  /// call fail with every possible error, or, on several ranks, with a different one for each call.
  void strike(Phase phase) {
    const auto [ranks, rank] = GetParam();
    const std::size_t stride = whole() ? 1 : ranks == 1 ? 17 : 41;
    const std::vector<std::string> calls = calls_of(ranks, rank, phase);
    for (std::size_t i = static_cast<std::size_t>(rank) % stride; i < calls.size(); i += stride)
      for (const std::string& fault : faults_at(i, calls[i], ranks))
        expect_survived(ranks, phase, {rank, i + 1, calls[i], fault});
    for (const auto& [fault, times] : survived_)
      std::cout << "rank " << rank << " of " << ranks << ": survived " << fault << " at " << times
                << " calls\n";
  }

  static Words faults_at(std::size_t call, const std::string& action, int ranks) {
    const Words errors = action == "write"  ? Words{"ENOSPC EIO EDQUOT EINTR short"}
                         : action == "sync" ? Words{"ENOSPC EIO EDQUOT EINTR"}
                                            : Words{"ENOSPC EIO EDQUOT"};
    Words faults = {"kill"};
    if (action == "write") faults.push_back("torn");
    if (whole() && ranks == 1) return faults + errors;
    faults.push_back(errors[call % errors.size()]);
    // The short form uses one of them.
    return whole() ? faults : Words{faults[call % faults.size()]};
  }

  TemporaryDirectory directory_;
  std::map<std::string, int> survived_;
};

TEST_P(FileFaultTest, Begins) {
  if (GetParam().ranks == 4 && !whole()) GTEST_SKIP() << "two ranks show the same in less time";
  strike(Phase::Begun);
}

TEST_P(FileFaultTest, GoesOn) {
  if (GetParam().ranks == 4 && !whole()) GTEST_SKIP() << "two ranks show the same in less time";
  strike(Phase::Restored);
}

std::string name_of(const testing::TestParamInfo<Struck>& info) {
  const Struck& struck = info.param;
  if (struck.ranks == 1) return "OneRank";
  return "Rank" + std::to_string(struck.rank) + "Of" + std::to_string(struck.ranks);
}

// Each rank by itself: they mostly wait, so several can run side by side.
INSTANTIATE_TEST_SUITE_P(Files, FileFaultTest,
                         testing::Values(Struck{1, 0}, Struck{2, 0}, Struck{2, 1}, Struck{4, 0},
                                         Struck{4, 1}, Struck{4, 2}, Struck{4, 3}),
                         name_of);

}  // namespace
}  // namespace millrace::test
