// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "comm/open_mpi.hpp"
#include "comm/rank_messages.hpp"
#include "core/error.hpp"

namespace millrace::comm {
namespace {

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(ErrorKind::Peer, "{} failed with code {}", call, code);
}

/// A message is cut into pieces that leave at once: kEagerBytes. The answer to the announcement of
/// a larger one would wait behind the bytes that go its way, so that two ranks that send to each
/// other take turns, and the message until both ranks look at their messages.
///
/// A message has up to three steps. Each begins when the one before it is done, which this process
/// notices only when it looks: in done(), wait() and flush().
///
///                  before MPI                            MPI        after it
///   on cores                                             requests
///   MPI reads the  wait for kernels                      requests
///   device itself
///   staged send    wait for kernels, copy to the host    requests
///   staged receive                                       requests   copy to the device
///
/// The copy of a receive waits for the kernels that were queued before its start, and kernels that
/// are queued after its end wait for the copy, so that the host waits for neither.
class MpiMessages final : public RankMessages {
 public:
  MpiMessages(const World& world, const DeviceMemory& memory) : world_(world), memory_(memory) {
    MILLRACE_ASSERT(!memory.is_staged || memory.queues);
    check(MPI_Comm_dup(*static_cast<const MPI_Comm*>(world.communicator()), &communicator_),
          "MPI_Comm_dup");
  }
  ~MpiMessages() override {
    if (has_ended_mpi()) return;
    if (world_.has_failed()) settle();
    for (Message& message : messages_)
      for (MPI_Request& request : message.requests) MPI_Request_free(&request);
    MPI_Comm_free(&communicator_);
  }
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;

  int add_send(const std::byte* data, std::int64_t bytes, int rank, int tag) override {
    Message& message = add({.from = data, .bytes = bytes});
    const std::byte* const from = message.host ? message.host.get() : data;
    for_pieces(message, [&](std::int64_t at, int size, MPI_Request& request) {
      check(MPI_Send_init(from + at, size, MPI_BYTE, rank, tag, communicator_, &request),
            "MPI_Send_init");
    });
    return last();
  }
  int add_receive(std::byte* data, std::int64_t bytes, int rank, int tag) override {
    Message& message = add({.to = data, .bytes = bytes});
    std::byte* const to = message.host ? message.host.get() : data;
    for_pieces(message, [&](std::int64_t at, int size, MPI_Request& request) {
      check(MPI_Recv_init(to + at, size, MPI_BYTE, rank, tag, communicator_, &request),
            "MPI_Recv_init");
    });
    return last();
  }

  void start(int number) override {
    Message& message = at(number);
    MILLRACE_ASSERT(message.step == Step::None);
    if (!memory_.queues) return request(message);
    message.kernels->after_kernels();
    if (message.host && message.to != nullptr) {
      message.copy->wait();  // of the last message through this buffer, long ago
      return request(message);
    }
    if (message.host)
      memory_.queues->copy_to_host(message.host.get(), message.from, message.bytes,
                                   *message.kernels, *message.copy);
    message.step = Step::Before;
    waiting_.push_back(number);
  }
  bool done(int number) override {
    advance();
    Message& message = at(number);
    if (message.step == Step::Before) return false;
    const bool done = are_done(message);
    if (done) finish(message);
    return done;
  }
  void wait(int number, Patience patience) override {
    Message& message = at(number);
    while ((patience.looks() || !waiting_.empty()) && !done(number)) patience.pause();
    check(MPI_Waitall(pieces(message), message.requests.data(), MPI_STATUSES_IGNORE),
          "MPI_Waitall");
    finish(message);
  }
  void flush(Patience patience) override {
    for (advance(); !waiting_.empty(); advance()) patience.pause();
  }

 private:
  enum class Step { None, Before, Requests };
  struct Message {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::int64_t bytes = 0;
    std::vector<MPI_Request> requests = {};
    Step step = Step::None;
    std::shared_ptr<std::byte> host = nullptr;  ///< null: MPI reaches the device's memory
    std::unique_ptr<Mark> kernels = nullptr;    ///< those queued before the start
    std::unique_ptr<Mark> copy = nullptr;       ///< the end of the copy from or to the host
  };

  Message& add(Message message) {
    if (memory_.queues) {
      message.kernels = memory_.queues->make_mark();
      message.copy = memory_.queues->make_mark();
    }
    if (memory_.is_staged)
      message.host = memory_.queues->host_buffer(static_cast<std::size_t>(message.bytes));
    waiting_.reserve(messages_.size() + 1);  // so that start() never allocates
    return messages_.emplace_back(std::move(message));
  }
  static int pieces(const Message& message) { return static_cast<int>(message.requests.size()); }
  template <class Make>
  static void for_pieces(Message& message, const Make& make) {
    message.requests.reserve(static_cast<std::size_t>(message.bytes / kEagerBytes + 1));
    for (std::int64_t at = 0; at < message.bytes; at += kEagerBytes)
      make(at, static_cast<int>(std::min(kEagerBytes, message.bytes - at)),
           message.requests.emplace_back(MPI_REQUEST_NULL));
  }
  static bool are_done(Message& message) {
    int flag = 0;
    check(MPI_Testall(pieces(message), message.requests.data(), &flag, MPI_STATUSES_IGNORE),
          "MPI_Testall");
    return flag != 0;
  }
  [[nodiscard]] int last() const { return static_cast<int>(messages_.size()) - 1; }
  Message& at(int number) { return messages_[static_cast<std::size_t>(number)]; }

  /// After a failure some messages have no receiver, and some will never come; none may use memory
  /// that is gone. Takes what arrives until all ranks are rid of what they sent, or for a while.
  void settle() {
    const auto still_sends = [](Message& message) {
      return message.from != nullptr && message.step == Step::Requests && !are_done(message);
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MPI_Request all = MPI_REQUEST_NULL;
    for (int over = 0; over == 0 && std::chrono::steady_clock::now() < end;) {
      int here = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &here, &status);
      if (here != 0) {
        int bytes = 0;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        std::vector<std::byte> lost(static_cast<std::size_t>(bytes));
        MPI_Recv(lost.data(), bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, communicator_,
                 MPI_STATUS_IGNORE);
      }
      if (all != MPI_REQUEST_NULL)
        MPI_Test(&all, &over, MPI_STATUS_IGNORE);
      else if (std::none_of(messages_.begin(), messages_.end(), still_sends))
        MPI_Ibarrier(communicator_, &all);
    }
    for (Message& message : messages_) {
      if (message.to == nullptr || message.step != Step::Requests) continue;
      for (MPI_Request& request : message.requests) MPI_Cancel(&request);
      MPI_Waitall(pieces(message), message.requests.data(), MPI_STATUSES_IGNORE);
    }
  }
  static void request(Message& message) {
    message.step = Step::Requests;
    for (MPI_Request& request : message.requests) check(MPI_Start(&request), "MPI_Start");
  }
  /// Begins the requests of messages whose step before is done, in the order of their starts: what
  /// they wait for is done in that order, too.
  void advance() {
    std::size_t ready = 0;
    for (; ready < waiting_.size(); ++ready) {
      Message& message = at(waiting_[ready]);
      if (!(message.host ? *message.copy : *message.kernels).reached()) break;
      request(message);
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(ready));
  }
  /// The requests are done.
  void finish(Message& message) const {
    if (message.step == Step::Requests && message.host && message.to != nullptr) {
      memory_.queues->copy_to_device(message.to, message.host.get(), message.bytes,
                                     *message.kernels, *message.copy);
      message.copy->delay_kernels();
    }
    message.step = Step::None;
  }

  const World& world_;
  DeviceMemory memory_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::deque<Message> messages_;
  std::vector<int> waiting_;  ///< messages in the step before
};

}  // namespace

std::unique_ptr<RankMessages> make_mpi_messages(const World& world, const DeviceMemory& memory) {
  return std::make_unique<MpiMessages>(world, memory);
}

}  // namespace millrace::comm
