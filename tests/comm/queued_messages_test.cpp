// SPDX-License-Identifier: Apache-2.0
//
// Messages of a device whose kernels wait in a queue, between two ranks: they leave after the
// kernels before them, arrive before the kernels behind them, and nobody waits for a kernel.
#include "comm/transport.hpp"
#include "tests/support/two_ranks.hpp"

namespace millrace::comm {
namespace {

/// A device with one queue for kernels and copies. It does one piece of work each time somebody
/// asks whether it is done.
class SlowDevice {
 public:
  void queue(std::function<void()> work) {
    work_.push_back(std::move(work));
    ++queued_;
  }
  void work() {
    if (work_.empty()) return;
    work_.front()();
    work_.pop_front();
    ++done_;
  }
  void finish() {
    while (!work_.empty()) work();
  }
  [[nodiscard]] int queued() const { return queued_; }
  [[nodiscard]] int done() const { return done_; }

 private:
  std::deque<std::function<void()>> work_;
  int queued_ = 0;
  int done_ = 0;
};

class SlowMark final : public Mark {
 public:
  explicit SlowMark(SlowDevice& device) : device_(device) {}
  void after_kernels() override { at_ = device_.queued(); }
  [[nodiscard]] bool reached() override {
    if (device_.done() < at_) device_.work();
    return device_.done() >= at_;
  }
  void wait() override {
    while (!reached()) continue;
  }
  void delay_kernels() override {}  // there is one queue

 private:
  SlowDevice& device_;
  int at_ = 0;
};

class SlowQueues final : public DeviceQueues {
 public:
  explicit SlowQueues(SlowDevice& device) : device_(device) {}
  /// Nobody knows, so that messages go by MPI.
  [[nodiscard]] std::string place() override { return ""; }
  [[nodiscard]] std::unique_ptr<MessageQueue> make_message_queue() override { return nullptr; }
  [[nodiscard]] std::shared_ptr<std::byte> device_buffer(std::size_t bytes) override {
    return host_buffer(bytes);
  }
  [[nodiscard]] std::unique_ptr<Mark> make_mark() override {
    return std::make_unique<SlowMark>(device_);
  }
  [[nodiscard]] std::shared_ptr<std::byte> host_buffer(std::size_t bytes) override {
    return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  }
  void copy_to_host(std::byte* host, const std::byte* device, std::int64_t bytes, const Mark&,
                    Mark& done) override {
    copy(host, device, bytes, done);
  }
  void copy_to_device(std::byte* device, const std::byte* host, std::int64_t bytes, const Mark&,
                      Mark& done) override {
    copy(device, host, bytes, done);
  }

 private:
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes, Mark& done) {
    device_.queue([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
    done.after_kernels();
  }

  SlowDevice& device_;
};

constexpr std::size_t kNumbers = 1000;
using Numbers = std::array<int, kNumbers>;

std::byte* bytes_of(Numbers& numbers) { return reinterpret_cast<std::byte*>(numbers.data()); }

/// Whether messages go through host buffers, or MPI reaches the device's memory.
class QueuedMessages : public test::OverTwoRanks<testing::TestWithParam<bool>> {
 protected:
  static int peer() { return 1 - world().rank(); }

  /// A kernel that sets all numbers.
  void set(Numbers& numbers, int value) {
    device_.queue([&numbers, value] { numbers.fill(value); });
  }

  SlowDevice device_;
  DeviceMemory memory_{.queues = std::make_shared<SlowQueues>(device_), .is_staged = GetParam()};
};

TEST_P(QueuedMessages, TakeTheirPlaceAmongKernels) {
  Numbers out = {};
  Numbers in = {};
  Numbers seen = {};
  const auto transport = make_transport(world(), memory_);
  const int send = transport->prepare_send(bytes_of(out), sizeof out, peer(), 1);
  const int receive = transport->prepare_receive(bytes_of(in), sizeof in, peer(), 1);
  for (int round = 1; round <= 5; ++round) {
    // What arrives may not come before this kernel has read what arrived last.
    device_.queue([&] { seen = in; });
    transport->start(receive);
    const int before = device_.done();
    for (int k = 0; k < 7; ++k) set(out, 1000 * round + 10 * k + world().rank());
    transport->start(send);
    EXPECT_EQ(device_.done(), before) << "start() does not wait";
    transport->wait(receive);
    transport->wait(send);
    set(out, -1);  // the message has left
    device_.finish();
    EXPECT_EQ(in[0], 1000 * round + 60 + peer());
    EXPECT_EQ(in[kNumbers - 1], in[0]);
    EXPECT_EQ(seen[0], round == 1 ? 0 : 1000 * (round - 1) + 60 + peer());
  }
}

// A buffer of the host is used again while the copy of the last message out of it still waits.
TEST_P(QueuedMessages, KeepWhatIsStillCopied) {
  constexpr int kMessages = 3;
  std::array<Numbers, kMessages> seen = {};
  Numbers numbers = {};
  const auto transport = make_transport(world(), memory_);
  const bool sends = world().rank() == 0;
  const int number = sends
                         ? transport->prepare_send(bytes_of(numbers), sizeof numbers, peer(), 1)
                         : transport->prepare_receive(bytes_of(numbers), sizeof numbers, peer(), 1);
  for (int k = 0; k < kMessages; ++k) {
    if (sends) set(numbers, k + 1);
    transport->start(number);
    transport->wait(number);
    if (!sends) device_.queue([&, k] { seen.at(static_cast<std::size_t>(k)) = numbers; });
  }
  device_.finish();
  if (sends) return;
  for (int k = 0; k < kMessages; ++k) {
    const Numbers& message = seen.at(static_cast<std::size_t>(k));
    EXPECT_EQ(message.front(), k + 1);
    EXPECT_EQ(message.back(), k + 1);
  }
}

TEST_P(QueuedMessages, WithOneTagKeepTheirOrder) {
  constexpr int kMessages = 20;
  std::array<Numbers, kMessages> out = {};
  std::array<Numbers, kMessages> in = {};
  const auto transport = make_transport(world(), memory_);
  std::array<int, kMessages> sends = {};
  std::array<int, kMessages> receives = {};
  for (std::size_t i = 0; i < kMessages; ++i) {
    sends[i] = transport->prepare_send(bytes_of(out[i]), sizeof(Numbers), peer(), 3);
    receives[i] = transport->prepare_receive(bytes_of(in[i]), sizeof(Numbers), peer(), 3);
  }
  for (const int message : receives) transport->start(message);
  for (std::size_t i = 0; i < kMessages; ++i) {
    set(out[i], static_cast<int>(i));
    transport->start(sends[i]);
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    transport->wait(receives[i]);
    transport->wait(sends[i]);
  }
  device_.finish();
  for (std::size_t i = 0; i < kMessages; ++i) EXPECT_EQ(in[i][0], static_cast<int>(i));
}

TEST_P(QueuedMessages, LeaveWhileNobodyAsksForThemAfterAFlush) {
  Numbers out = {};
  Numbers in = {};
  const auto transport = make_transport(world(), memory_);
  const int send = transport->prepare_send(bytes_of(out), sizeof out, peer(), 5);
  const int receive = transport->prepare_receive(bytes_of(in), sizeof in, peer(), 5);
  transport->start(receive);
  set(out, 8);
  transport->start(send);
  transport->flush();
  EXPECT_EQ(out[0], 8);
  // Rank 1 needs the message before it enters what rank 0 waits in.
  if (world().rank() == 1) transport->wait(receive);
  EXPECT_EQ(world().maximum(std::int64_t{0}), 0);
  transport->wait(receive);
  transport->wait(send);
  device_.finish();
  EXPECT_EQ(in[0], 8);
}

INSTANTIATE_TEST_SUITE_P(Ways, QueuedMessages, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "Staged" : "Direct");
});

}  // namespace
}  // namespace millrace::comm
