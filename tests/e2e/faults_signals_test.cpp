// SPDX-License-Identifier: Apache-2.0
//
// Signals at any moment, once and twice; suspension of all ranks, or of one rank forever; disks
// that are slow or hang.
#include <random>
#include <thread>

#include "faults.hpp"
#include "support/sanitizers.hpp"

namespace millrace::test {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kIterations = 24;
constexpr int kSaved = 8;

Words training(const fs::path& run, int iterations = kIterations, int saved = kSaved) {
  return short_training(iterations, saved) + on_ranks(2) + Words{"--run-dir", run};
}

// ---- requests to stop ---------------------------------------------------------------------------

class RandomSignalTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(millrace(training(directory_ / "whole")).code, 0);
    length_ = Seconds(std::chrono::steady_clock::now() - begin).count();
  }

  /// A request ends the run at a step that all ranks save, unless the run has finished. Before the
  /// handlers are installed, a signal has its default effect.
  static void expect_code(int signal, bool twice, const fs::path& run,
                          const ProcessResult& result) {
    if (result.code == 0) return;
    const int asked = signal == SIGINT ? 130 : 75;
    const bool by_signal = twice || !newest_in(run);
    EXPECT_TRUE(result.code == asked || (by_signal && result.code == 128 + signal))
        << result.code << "\n"
        << result.output;
    if (result.code != asked || twice) return;
    if (const auto newest = newest_in(run)) {
      EXPECT_EQ(last_saved_in(result.output), newest->iteration) << result.output;
    }
  }

  void send_at(double seconds, int signal, bool twice) {
    SCOPED_TRACE(std::string(strsignal(signal)) + (twice ? " twice" : "") + " after " +
                 std::to_string(seconds) + " s");
    const fs::path run = directory_ / "run";
    fs::remove_all(run);
    Job job(training(run));
    std::this_thread::sleep_for(Seconds(seconds));
    job.send(signal);
    if (twice) {
      std::this_thread::sleep_for(Seconds(std::uniform_real_distribution(0.0, 0.5)(random_)));
      job.send(signal);
    }
    const ProcessResult result = job.wait();
    ASSERT_TRUE(wait_until([&] { return members_of(run).empty(); }));
    expect_code(signal, twice, run, result);
    undisturbed(kIterations).expect_sound(run, result.output);
    undisturbed(kIterations)
        .expect_finished(run, training(run), whole() ? Words{} : Words{"--ranks 1"});
    const auto newest = last_saved_in(result.output);
    std::cout << strsignal(signal) << (twice ? " twice" : "") << " after " << seconds << " s: code "
              << result.code << ", saved " << newest << '\n';
  }

  TemporaryDirectory directory_;
  double length_ = 0.0;
  std::minstd_rand random_{7};
};

TEST_F(RandomSignalTest, SavesOneStepOfAllRanks) {
  constexpr std::array kSignals = {SIGUSR1, SIGUSR2, SIGTERM, SIGHUP, SIGINT};
  const int moments = whole() ? 50 : 8;
  std::uniform_real_distribution<double> moment(0.0, length_);
  for (int i = 0; i < moments; ++i) {
    const int signal = kSignals.at(static_cast<std::size_t>(i) % kSignals.size());
    if (whole() || i % 2 == 0) send_at(moment(random_), signal, false);
    if (whole() || i % 2 == 1) send_at(moment(random_), signal, true);
  }
}

// ---- suspension ---------------------------------------------------------------------------------

/// A long training on two ranks with a short hang timeout.
class Watched {
 public:
  explicit Watched(int timeout)
      : timeout_(timeout),
        job_(training(run(), 100000, 0) +
             Words{"--hang-timeout", std::to_string(timeout), "--log-freq 10"}) {
    EXPECT_TRUE(job_.wait_for("iteration")) << job_.output();
  }
  [[nodiscard]] fs::path run() const { return directory_ / "run"; }
  [[nodiscard]] int timeout() const { return timeout_; }
  Job& job() { return job_; }
  void send_to_all(int signal) const {
    for (const Member& member : members_of(run())) kill(member.process, signal);
  }

 private:
  TemporaryDirectory directory_;
  int timeout_;
  Job job_;
};

TEST(SuspensionTest, ASuspendedJobIsNoHang) {
  const int moments = whole() ? 20 : 1;
  Watched watched(2);
  std::minstd_rand random(11);
  for (int i = 0; i < moments && !watched.job().ended(); ++i) {
    SCOPED_TRACE(i);
    std::this_thread::sleep_for(Seconds(std::uniform_real_distribution(0.0, 1.0)(random)));
    watched.send_to_all(SIGSTOP);
    std::this_thread::sleep_for(Seconds(3.0 * watched.timeout()));
    watched.send_to_all(SIGCONT);
  }
  std::this_thread::sleep_for(Seconds(1));
  watched.job().send(SIGTERM);
  expect_end(watched.job().wait(), 75);
}

TEST(SuspensionTest, ARankThatStopsIsNamed) {
  constexpr int kTimeout = 2;  // start-up must take less than this, too
  const int moments = whole() ? 64 : 2;
  std::minstd_rand random(13);
  double slowest = 0.0;
  for (int i = 0; i < moments; ++i) {
    Watched watched(kTimeout);
    const int rank = static_cast<int>(random() % 2);
    const pid_t process = process_of_rank(watched.run(), rank);
    ASSERT_GT(process, 0) << watched.job().output();
    const double delay = std::uniform_real_distribution(0.0, 0.5)(random);
    SCOPED_TRACE("rank " + std::to_string(rank) + " after " + std::to_string(delay) + " s");
    std::this_thread::sleep_for(Seconds(delay));
    kill(process, SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    const ProcessResult result = watched.job().wait();
    const double seconds = Seconds(std::chrono::steady_clock::now() - begin).count();
    kill(process, SIGKILL);
    EXPECT_EQ(result.code, 124) << result.output;
    // The rank that waits for it reports this.
    const std::size_t at = result.output.find("no progress for 2 s: ");
    ASSERT_NE(at, std::string::npos) << result.output;
    const std::string said = result.output.substr(at, result.output.find('\n', at) - at);
    expect_in(said, {"rank " + std::to_string(rank)});
    slowest = std::max(slowest, seconds);
  }
  std::cout << moments << " moments: the slowest end came after " << slowest << " s\n";
  // Other tests may keep the machine busy.
  EXPECT_LT(slowest, kTimeout + 5.0 + (whole() ? 0.0 : 15.0));
}

TEST(SuspensionTest, ARankThatStopsWhileItStartsIsNamed) {
  const int moments = whole() ? 20 : 1;
  std::minstd_rand random(17);
  for (int i = 0; i < moments; ++i) {
    const TemporaryDirectory directory;
    const fs::path run = directory / "run";
    Job job(training(run, 100000, 0) + "--hang-timeout 3");
    const int rank = static_cast<int>(random() % 2);
    ASSERT_TRUE(wait_until([&] { return process_of_rank(run, rank) > 0; }, 1));
    std::this_thread::sleep_for(Seconds(std::uniform_real_distribution(0.0, 0.1)(random)));
    const pid_t process = process_of_rank(run, rank);
    kill(process, SIGSTOP);
    const ProcessResult result = job.wait();
    kill(process, SIGKILL);
    expect_end(result, 124,
               {"error: rank " + std::to_string(rank) + " (replica 0, stage " +
                std::to_string(rank) + ") did not respond"});
  }
}

// ---- disks --------------------------------------------------------------------------------------

/// A training on two ranks whose end must wait for files that rank 1 writes.
class DiskTest : public testing::Test {
 protected:
  static constexpr int kTimeout = 2;

  /// Applies a fault to the last call of rank 1 that changes files.
  ProcessResult train_with(const std::string& fault) {
    const fs::path calls = directory_ / "calls";
    const Words command = training(run(), 2, 1) + Words{"--hang-timeout", std::to_string(kTimeout)};
    const Environment counted = {"MILLRACE_SHIM_BELOW=" + run().string(),
                                 "MILLRACE_SHIM_RECORD=" + calls.string()};
    EXPECT_EQ(result_of(command, counted).code, 0);
    fs::remove_all(run());
    int last = 0;
    int number = 0;
    for (const std::string& line : lines_of(read_text(calls)))
      if (++number; line.starts_with("sync ")) last = number;
    EXPECT_GT(last, 0);
    return result_of(command, Environment{"MILLRACE_SHIM_AT=" + std::to_string(last),
                                          "MILLRACE_SHIM_FAULT=" + fault} +
                                  counted);
  }

  /// On a busy machine a start may take longer than the timeout: then it is tried again.
  ProcessResult result_of(const Words& command, const Environment& rules) {
    for (int attempt = 1;; ++attempt) {
      Job job(command, file_shim(1, rules));
      const auto begin = std::chrono::steady_clock::now();
      ProcessResult result = job.wait();
      seconds_ = Seconds(std::chrono::steady_clock::now() - begin).count();
      for (const Member& member : members_of(run())) kill(member.process, SIGKILL);
      if (attempt == 5 || result.output.find(": is starting") == std::string::npos) return result;
      fs::remove_all(run());
      fs::remove(directory_ / "calls");
    }
  }
  [[nodiscard]] fs::path run() const { return directory_ / "run"; }

  TemporaryDirectory directory_;
  double seconds_ = 0.0;
};

TEST_F(DiskTest, ASlowOneIsNoHang) {
  expect_end(train_with("slow"), 0);
  EXPECT_GT(seconds_, 4.0 * kTimeout);
  const auto newest = newest_in(run());
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->iteration, 2);
}

TEST_F(DiskTest, OneThatHangsIsNamed) {
  expect_end(train_with("hang"), 124, {"rank 1: is writing a checkpoint"});
  const auto newest = newest_in(run());
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->iteration, 1);
}

TEST_F(DiskTest, ARankThatStopsWhileItWritesIsNamed) {
  expect_end(train_with("stop"), 124, {"waits for rank 1"});
  EXPECT_LT(seconds_, 5.0 * kTimeout + (whole() ? 0.0 : 15.0));
}

}  // namespace
}  // namespace millrace::test
