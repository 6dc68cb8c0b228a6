// SPDX-License-Identifier: Apache-2.0
//
// Replicas whose weights differ because one of them received a wrong bit.
#include "faults.hpp"

namespace millrace::test {
namespace {

constexpr int kIterations = 8;

Words training(const fs::path& run) {
  return short_training(kIterations, 2) +
         Words{"--replicas 2 --gradients-to-accumulate 1 --max-ckpts-to-keep 0 --run-dir", run};
}

/// Rank 1 receives the N-th message with one wrong bit. In each update its first message adds to
/// sums that both get, the second brings the sums of the other rank. Wrong bits of two updates
/// could cancel out.
Environment wrong_bits(int first) {
  return {"LD_PRELOAD=" + std::string(MILLRACE_POISON_SHIM),
          "MILLRACE_POISON_RANK=1",
          "MILLRACE_POISON_FROM=0",
          "MILLRACE_POISON_BIT=1",
          "MILLRACE_POISON_EVERY=0",
          "MILLRACE_POISON_FIRST=" + std::to_string(first)};
}

void expect_caught(const Words& more, int message, int sound) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  Job job(training(run) + more, wrong_bits(message));
  const fs::path good = run / "checkpoints" / ("ckpt-" + std::to_string(sound));
  expect_end(
      job.wait(), 7,
      {"replica 1 has different weights", "the last checkpoint, " + good.string() + ", is good"});
  const std::optional<Newest> newest = newest_in(run);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->iteration, sound);
  // The remedy in the error works: without the fault the run continues.
  expect_end(restore(run), 0);
  const fs::path straight = directory / "straight";
  expect_end(millrace(training(straight)), 0);
  EXPECT_EQ(newest_in(run)->digest, newest_in(straight)->digest);
}

TEST(WrongBitTest, IsCaughtByTheNextCheckAndTheLastGoodCheckpointIsNamed) {
  expect_caught({"--weight-check-every 1"}, 2 + 2 * 4, 4);
}

// Replicas are compared before every checkpoint, however rarely otherwise.
TEST(WrongBitTest, IsCaughtBeforeACheckpointIsWritten) {
  expect_caught({"--weight-check-every 1000"}, 2 + 2 * 2, 2);
}

}  // namespace
}  // namespace millrace::test
