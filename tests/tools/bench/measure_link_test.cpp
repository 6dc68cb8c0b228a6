// SPDX-License-Identifier: Apache-2.0
//
// What is measured over a wire whose messages take a known time, and longer where a machine is
// busy.
#include "tools/bench/measure_link.hpp"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/support/test.hpp"

namespace millrace::comm {
namespace {

/// Messages of both directions, and the only clock: it stands at the time at which the last message
/// that was taken arrived. They take the delays in turn.
class Wire {
 public:
  explicit Wire(std::vector<double> delays) : delays_(std::move(delays)) {}

  void put(std::size_t to, std::vector<std::byte> data) {
    const std::scoped_lock lock(mutex_);
    const double delay = delays_[sent_++ % delays_.size()];
    boxes_[to].push_back({now_ + delay, std::move(data)});
    arrived_.notify_all();
  }
  std::vector<std::byte> take(std::size_t at) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !boxes_[at].empty(); });
    Message message = std::move(boxes_[at].front());
    boxes_[at].pop_front();
    now_ = std::max(now_, message.due);
    return std::move(message.data);
  }
  [[nodiscard]] double seconds() {
    const std::scoped_lock lock(mutex_);
    return now_;
  }

 private:
  struct Message {
    double due;
    std::vector<std::byte> data;
  };
  std::vector<double> delays_;
  double now_ = 0.0;
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
/// Over messages that take these seconds in turn.
Measured measure(std::vector<double> delays, const Rounds& rounds) {
  Wire wire(std::move(delays));
  const auto now = [&wire] { return wire.seconds(); };
  Measured measured;
  std::thread other([&] {
    WireEnd end(wire, 1);
    measured.answers = message_seconds(end, 0, Side::Answers, 64, rounds, now);
  });
  WireEnd end(wire, 0);
  measured.leads = message_seconds(end, 1, Side::Leads, 64, rounds, now);
  other.join();
  return measured;
}

TEST(MeasureLinkTest, TheShortestIsThatOfAnIdleMachine) {
  // To and fro: 12, 12, 12, 2 s.
  const Measured measured =
      measure({6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 1.0, 1.0}, {.least = 40, .most = 40});
  ASSERT_EQ(measured.leads.size(), 40u);
  EXPECT_EQ(measured.leads[9], 1.0);
  EXPECT_EQ(measured.leads[10], 6.0);
  EXPECT_EQ(measured.leads[39], 6.0);
}

TEST(MeasureLinkTest, MessagesOfBothEndsAreUnderWayAtOnce) {
  const Rounds rounds{.at_once = true, .least = 5, .most = 5};
  EXPECT_EQ(measure({3.0}, rounds).leads, std::vector<double>(5, 3.0));
}

TEST(MeasureLinkTest, TimeEndsTheRoundsOfBothSides) {
  // Rounds begin after 0, 2, 4, .. s.
  const Measured measured = measure({1.0}, {.least = 3, .most = 1'000'000, .seconds = 19.0});
  EXPECT_EQ(measured.leads.size(), 11u) << "the one that begins after 20 s is the last";
  EXPECT_EQ(measured.answers.size(), 11u);
  EXPECT_EQ(measure({1.0}, {.least = 3, .most = 9}).leads.size(), 3u)
      << "no time but for the least";
  EXPECT_EQ(measure({0.0}, {.least = 1, .most = 5, .seconds = 60.0}).leads.size(), 5u);
}

}  // namespace
}  // namespace millrace::comm
