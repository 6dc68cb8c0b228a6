// SPDX-License-Identifier: Apache-2.0
//
// If writing a checkpoint fails at any system call, the old or the new checkpoint is complete.
#include <cerrno>

#include "io/checkpoint.hpp"
#include "tests/io/checkpoint_fixtures.hpp"
#include "tests/io/fault_injection.hpp"
#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

constexpr unsigned kOldSeed = 1;
constexpr unsigned kNewSeed = 2;
constexpr std::int64_t kOldIteration = 5;

// Writes a checkpoint beside the old one, or over it. Each test uses a new directory with the old
// one.
class CheckpointFaultTest : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    write_checkpoint(pristine_.path(), sample_header(kOldIteration),
                     SampleModel(kOldSeed).tensors());
  }
  [[nodiscard]] fs::path fresh_folder() {
    fs::remove_all(work_.path() / "c");
    fs::copy(pristine_.path(), work_.path() / "c", fs::copy_options::recursive);
    return work_.path() / "c";
  }
  // Exit code of a process that writes the new checkpoint and removes the old one.
  static int write_new(const fs::path& folder) {
    try {
      write_checkpoint(folder, sample_header(GetParam()), SampleModel(kNewSeed).tensors());
      retire_checkpoints(folder, {.keep = 1});
      return 0;
    } catch (const Error& error) {
      return exit_code(error.kind());
    }
  }
  // Old or new; after the next start, nothing else is left.
  static void expect_sound(const fs::path& folder, const FaultOutcome& outcome) {
    std::vector<std::string> complaints;
    const std::string found = digest(open_newest(folder, complaints));
    EXPECT_TRUE(complaints.empty()) << complaints[0];
    const bool is_new = found == digest(SampleModel(kNewSeed).tensors());
    EXPECT_TRUE(is_new || found == digest(SampleModel(kOldSeed).tensors()));
    if (!outcome.killed && outcome.exit_code == 0) {
      EXPECT_TRUE(is_new);
    }
    retire_checkpoints(folder, {.keep = 1});
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
    EXPECT_EQ(digest(open_newest(folder, complaints)), found);
  }
  void strike_everywhere(Fault fault, int error = 0) {
    const fs::path folder = fresh_folder();
    const FaultOutcome whole = run_with_fault([&] { return write_new(folder); }, {});
    if (!whole.supported) GTEST_SKIP() << "processes cannot be traced here";
    ASSERT_EQ(whole.exit_code, 0);
    ASSERT_GT(whole.calls, 15);
    expect_sound(folder, whole);
    // Only these can be partial or interrupted by a signal.
    const bool only_transfers = fault == Fault::TornKill || error == EINTR;
    std::vector<int> calls(static_cast<std::size_t>(whole.calls));
    std::iota(calls.begin(), calls.end(), 1);
    for (const int at : only_transfers ? whole.transfers : calls) {
      SCOPED_TRACE("call " + std::to_string(at) + " of " + std::to_string(whole.calls));
      const fs::path again = fresh_folder();
      const FaultOutcome outcome =
          run_with_fault([&] { return write_new(again); }, {fault, at, error});
      ASSERT_TRUE(outcome.supported);
      if (fault == Fault::Fail) {
        EXPECT_FALSE(outcome.killed);
        EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == exit_code(ErrorKind::Io))
            << outcome.exit_code;
      } else {
        EXPECT_TRUE(outcome.killed);
      }
      expect_sound(again, outcome);
    }
  }

  TemporaryDirectory pristine_;
  TemporaryDirectory work_;
};

TEST_P(CheckpointFaultTest, KilledAtAnyCall) { strike_everywhere(Fault::Kill); }
TEST_P(CheckpointFaultTest, KilledInTheMiddleOfAnyWrite) { strike_everywhere(Fault::TornKill); }
TEST_P(CheckpointFaultTest, DeviceFullAtAnyCall) { strike_everywhere(Fault::Fail, ENOSPC); }
TEST_P(CheckpointFaultTest, InterruptedInAnyTransfer) { strike_everywhere(Fault::Fail, EINTR); }

INSTANTIATE_TEST_SUITE_P(NextAndSame, CheckpointFaultTest,
                         testing::Values(kOldIteration + 1, kOldIteration),
                         [](const auto& iteration) {
                           return iteration.param == kOldIteration ? "Replacing" : "Next";
                         });

}  // namespace
}  // namespace millrace::io
