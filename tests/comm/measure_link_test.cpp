// SPDX-License-Identifier: Apache-2.0
//
// What is measured over a wire whose messages take a known time, and longer where a machine is
// busy.
#include "comm/measure_link.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/clock.hpp"

namespace millrace::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// Messages of both directions. They take the delays in turn.
class Wire {
 public:
  explicit Wire(std::vector<milliseconds> delays) : delays_(std::move(delays)) {}

  void put(std::size_t to, std::vector<std::byte> data) {
    const std::scoped_lock lock(mutex_);
    const milliseconds delay = delays_[sent_++ % delays_.size()];
    boxes_[to].push_back({Clock::now() + delay, std::move(data)});
    arrived_.notify_all();
  }
  std::vector<std::byte> take(std::size_t at) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !boxes_[at].empty(); });
    Message message = std::move(boxes_[at].front());
    boxes_[at].pop_front();
    lock.unlock();
    std::this_thread::sleep_until(message.due);
    return std::move(message.data);
  }

 private:
  struct Message {
    Clock::time_point due;
    std::vector<std::byte> data;
  };
  std::vector<milliseconds> delays_;
  std::size_t sent_ = 0;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::array<std::deque<Message>, 2> boxes_;
};

/// An end of the wire: message 0 is sent, message 1 received.
class WireEnd : public Transport {
 public:
  WireEnd(Wire& wire, std::size_t rank) : wire_(wire), rank_(rank) {}
  int add_run(const MessageOrder& /*order*/) override { return 0; }
  void begin_run(int /*run*/) override {}
  int prepare_send(const std::byte* data, std::int64_t bytes, int /*rank*/, int /*tag*/) override {
    out_ = {data, static_cast<std::size_t>(bytes)};
    return 0;
  }
  int prepare_receive(std::byte* data, std::int64_t /*bytes*/, int /*rank*/, int /*tag*/) override {
    in_ = data;
    return 1;
  }
  void start(int message) override {
    if (message == 0) wire_.put(1 - rank_, {out_.begin(), out_.end()});
  }
  bool done(int /*message*/) override { return true; }
  void wait(int message) override {
    if (message == 1) std::ranges::copy(wire_.take(rank_), in_);
  }
  void flush() override {}
  [[nodiscard]] bool is_staged() const override { return true; }
  [[nodiscard]] Patience patience() const override { return Patience(false); }

 private:
  Wire& wire_;
  std::size_t rank_;
  std::span<const std::byte> out_;
  std::byte* in_ = nullptr;
};

struct Measured {
  std::vector<double> leads;
  std::vector<double> answers;
};
Measured measure(std::vector<milliseconds> delays, const Rounds& rounds) {
  Wire wire(std::move(delays));
  Measured measured;
  std::thread other([&] {
    WireEnd end(wire, 1);
    measured.answers = message_seconds(end, 0, Side::Answers, 64, rounds);
  });
  WireEnd end(wire, 0);
  measured.leads = message_seconds(end, 1, Side::Leads, 64, rounds);
  other.join();
  return measured;
}

TEST(MeasureLinkTest, TheShortestIsThatOfAnIdleMachine) {
  // To and fro: 12, 12, 12, 2 ms.
  const milliseconds slow(6);
  const milliseconds fast(1);
  const Measured measured =
      measure({slow, slow, slow, slow, slow, slow, fast, fast}, {.least = 40, .most = 40});
  ASSERT_EQ(measured.leads.size(), 40u);
  EXPECT_GE(measured.leads.front(), 1e-3);
  EXPECT_LT(measured.leads.front(), 3e-3);
  EXPECT_GE(measured.leads[20], 6e-3) << "the median, which is that of the busy machine";
}

TEST(MeasureLinkTest, TimeEndsTheRoundsOfBothSides) {
  const Timer timer;
  const Measured measured =
      measure({milliseconds(10)}, {.least = 3, .most = 1'000'000, .seconds = 0.2});
  EXPECT_GE(measured.leads.size(), 3u);
  EXPECT_LE(measured.leads.size(), 11u);
  EXPECT_EQ(measured.answers.size(), measured.leads.size());
  EXPECT_EQ(measure({milliseconds(10)}, {.least = 3, .most = 9}).leads.size(), 3u)
      << "no time but for the least";
  EXPECT_EQ(measure({milliseconds(0)}, {.least = 1, .most = 5, .seconds = 60.0}).leads.size(), 5u);
  EXPECT_LT(timer.seconds(), 30.0);
}

}  // namespace
}  // namespace millrace::comm
