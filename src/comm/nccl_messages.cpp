// SPDX-License-Identifier: Apache-2.0
//
// Messages by NCCL. It has neither tags nor requests: between two ranks of a communicator, the k-th
// ncclSend meets the k-th ncclRecv, and both occupy their queue of the device until they have met.
// So messages are divided into links, each with a communicator of its two ranks and a queue, in
// which both ends have the same order:
//
// - Messages whose order the schedule fixes (activations and gradients) share one link for each
//   pair of sender and receiver. The sender starts them in that order. The receiver posts them
//   early and in another order, so it issues each when all before it are issued.
// - All others (sums over replicas, batch statistics) depend on progress. There is a link for each
//   tag: messages with one tag are started in the same order at both ends.
//
// A link's queue waits for the kernels that were queued before the start, and kernels wait for the
// queue where the host would wait: see wait(). The host asks only in done().
#include <fmt/format.h>
#include <mpi.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/rank_messages.hpp"
#include "comm/route.hpp"
#include "core/error.hpp"

namespace millrace::comm {
namespace {

/// Multiprocessors of the device that a message may occupy.
constexpr int kMostBlocks = 4;
/// More queues than the driver keeps apart (CUDA_DEVICE_MAX_CONNECTIONS) would wait for each other.
/// Kernels and copies have some, too.
constexpr int kMostConnections = 32;
constexpr int kMostLinks = kMostConnections - 4;

void check(ncclResult_t code, const char* call) {
  if (code != ncclSuccess) fail(ErrorKind::Peer, "{} failed: {}", call, ncclGetErrorString(code));
}
void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(ErrorKind::Peer, "{} failed with code {}", call, code);
}

/// The last parameter of a function.
template <class Last>
Last last_of(ncclResult_t (*)(const void*, std::size_t, ncclDataType_t, int, ncclComm_t, Last));
/// The queue as NCCL knows it, whose name belongs to the library of the device.
using Stream = decltype(last_of(&ncclSend));

/// MPI only carries what NCCL needs to bring two ranks together.
class Introductions {
 public:
  explicit Introductions(const World& world) {
    check_mpi(MPI_Comm_dup(*static_cast<const MPI_Comm*>(world.communicator()), &comm_),
              "MPI_Comm_dup");
  }
  ~Introductions() {
    if (!has_ended_mpi()) MPI_Comm_free(&comm_);
  }
  Introductions(const Introductions&) = delete;
  Introductions& operator=(const Introductions&) = delete;

  void send(int to, const ncclUniqueId& id) const {
    check_mpi(MPI_Send(&id, sizeof id, MPI_BYTE, to, 0, comm_), "MPI_Send");
  }
  [[nodiscard]] ncclUniqueId receive(int from) const {
    ncclUniqueId id;
    check_mpi(MPI_Recv(&id, sizeof id, MPI_BYTE, from, 0, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
    return id;
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// A communicator of sender (rank 0) and receiver (rank 1). Blocks until both are there.
class Pair {
 public:
  Pair(const ncclUniqueId& id, bool sends) : sends_(sends) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.minCTAs = 1;
    config.maxCTAs = kMostBlocks;
    check(ncclCommInitRankConfig(&comm_, 2, id, sends ? 0 : 1, &config), "ncclCommInitRankConfig");
  }
  /// After an error the other end may never come.
  ~Pair() { (void)(std::uncaught_exceptions() > 0 ? ncclCommAbort : ncclCommDestroy)(comm_); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void issue(std::byte* to, const std::byte* from, std::int64_t bytes, const MessageQueue& queue) {
    const auto count = static_cast<std::size_t>(bytes);
    const auto stream = static_cast<Stream>(queue.handle());
    if (sends_)
      check(ncclSend(from, count, ncclInt8, 1, comm_, stream), "ncclSend");
    else
      check(ncclRecv(to, count, ncclInt8, 0, comm_, stream), "ncclRecv");
  }
  /// Fails if NCCL has noticed meanwhile that the other end is gone.
  void check_health() const {
    ncclResult_t error = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &error), "ncclCommGetAsyncError");
    if (error != ncclInProgress) check(error, "a message by NCCL");
  }

 private:
  ncclComm_t comm_ = nullptr;
  bool sends_;
};

class NcclMessages final : public RankMessages {
 public:
  NcclMessages(const World& world, const DeviceMemory& memory)
      : world_(world),
        rank_(world.rank()),
        device_(memory.queues),
        greeting_(device_->device_buffer(kGreeting)),
        introductions_(world) {}

  int add_run(const MessageOrder& order) override {
    runs_.push_back({order});
    return static_cast<int>(runs_.size()) - 1;
  }
  void begin_run(int number) override {
    Run& run = runs_.at(static_cast<std::size_t>(number));
    if (!std::exchange(run.has_begun, true)) require_few_links();
    connect();
    for (auto& [key, link] : links_) {
      if (key.tag != kOrdered) continue;
      MILLRACE_ASSERT(link.posted.empty());
      const auto found = run.order.find({key.from, key.to});
      link.order = found == run.order.end() ? std::span<const int>() : found->second;
    }
  }

  int add_send(const std::byte* data, std::int64_t bytes, int rank, int tag) override {
    return add({.from = data, .bytes = bytes, .tag = tag}, rank_, rank);
  }
  int add_receive(std::byte* data, std::int64_t bytes, int rank, int tag) override {
    return add({.to = data, .bytes = bytes, .tag = tag}, rank, rank_);
  }

  void start(int number) override {
    Message& message = at(number);
    MILLRACE_ASSERT(message.step == Step::None);
    message.kernels->after_kernels();
    if (message.key->tag != kOrdered) return issue(message);
    message.step = Step::Posted;
    Link& link = *message.link;
    link.posted.push_back(number);
    if (message.from != nullptr && (link.order.empty() || link.order.front() != message.tag))
      fail(ErrorKind::Internal, "rank {} starts message {} to rank {} out of order", rank_,
           message.tag, message.key->to);
    issue_in_turn(link);
  }
  bool done(int number) override {
    Message& message = at(number);
    if (message.step == Step::None) return true;
    if (message.step == Step::Posted) return false;
    if (!message.end->reached()) {
      message.link->pair->check_health();
      return false;
    }
    message.step = Step::None;
    return true;
  }
  /// Kernels wait, this process does not: it could wait only for its own posts.
  void wait(int number, Patience) override {
    Message& message = at(number);
    if (message.step == Step::Posted)
      fail(ErrorKind::Internal,
           "rank {} waits for message {} from rank {}, which comes after one that is not posted",
           rank_, message.tag, message.key->from);
    if (message.step == Step::Issued) message.end->delay_kernels();
    message.step = Step::None;
  }
  /// They are on their way as soon as they are issued.
  void flush(Patience) override {}

 private:
  static constexpr int kOrdered = -1;
  static constexpr std::size_t kGreeting = 64;
  /// In the order in which all ranks connect their links.
  struct Key {
    int from;
    int to;
    int tag;  ///< kOrdered: all that have an order
    friend bool operator<(const Key& a, const Key& b) {
      return std::tie(a.from, a.to, a.tag) < std::tie(b.from, b.to, b.tag);
    }
  };
  struct Link {
    std::unique_ptr<MessageQueue> queue = nullptr;
    std::unique_ptr<Pair> pair = nullptr;  ///< before the queue in destruction
    std::span<const int> order = {};       ///< tags that are still to be issued in this run
    std::vector<int> posted = {};          ///< messages that wait for their turn
    std::size_t messages = 0;
  };
  using Links = std::map<Key, Link>;
  enum class Step { None, Posted, Issued };
  struct Message {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::int64_t bytes = 0;
    int tag = 0;
    const Key* key = nullptr;
    Link* link = nullptr;
    Step step = Step::None;
    std::unique_ptr<Mark> kernels = nullptr;  ///< those queued before the start
    std::unique_ptr<Mark> end = nullptr;
  };

  struct Run {
    MessageOrder order;
    bool has_begun = false;
  };

  Message& at(int number) { return messages_[static_cast<std::size_t>(number)]; }

  [[nodiscard]] bool has_order(int from, int to, int tag) const {
    if (runs_.empty()) return false;
    const MessageOrder& order = runs_.back().order;
    const auto found = order.find({from, to});
    return found != order.end() &&
           std::find(found->second.begin(), found->second.end(), tag) != found->second.end();
  }
  int add(Message message, int from, int to) {
    const Key key{from, to, has_order(from, to, message.tag) ? kOrdered : message.tag};
    const auto place = links_.try_emplace(key).first;
    message.key = &place->first;
    message.link = &place->second;
    message.kernels = device_->make_mark();
    message.end = device_->make_mark();
    message.link->posted.reserve(++message.link->messages);  // so that start() never allocates
    messages_.push_back(std::move(message));
    return static_cast<int>(messages_.size()) - 1;
  }

  void issue(Message& message) {
    Link& link = *message.link;
    link.queue->wait_for(*message.kernels);
    if (message.bytes > 0) link.pair->issue(message.to, message.from, message.bytes, *link.queue);
    link.queue->mark(*message.end);
    message.step = Step::Issued;
  }
  /// Messages with the same tag keep the order in which they were posted.
  void issue_in_turn(Link& link) {
    while (!link.order.empty()) {
      const auto next = std::find_if(link.posted.begin(), link.posted.end(), [&](int number) {
        return at(number).tag == link.order.front();
      });
      if (next == link.posted.end()) return;
      issue(at(*next));
      link.posted.erase(next);
      link.order = link.order.subspan(1);
    }
  }

  /// Collective, so that all ranks refuse what is too much for one of them.
  void require_few_links() const {
    const std::int64_t most = world_.maximum(std::ssize(links_));
    if (most <= kMostLinks) return;
    world_.fail_together();
    fail(ErrorKind::Config,
         "this layout needs {} links of NCCL on one rank, but a GPU serves only {} side by side: "
         "set MILLRACE_MESSAGES=mpi, or use fewer replicas",
         most, kMostLinks);
  }

  /// Makes the communicators of new links. Every rank takes its own in the order of all keys, so
  /// that both ends of the first link that is not yet made come to it, and none waits for ever.
  /// NCCL connects two ranks at their first message, for which the host has to wait; a greeting
  /// makes this happen here and not in the middle of a step.
  void connect() {
    for (auto& [key, link] : links_) {
      if (link.pair) continue;
      const bool sends = key.from == rank_;
      ncclUniqueId id;
      if (sends) {
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        introductions_.send(key.to, id);
      } else {
        id = introductions_.receive(key.from);
      }
      link.queue = device_->make_message_queue();
      link.pair = std::make_unique<Pair>(id, sends);
      const std::unique_ptr<Mark> greeted = device_->make_mark();
      link.pair->issue(greeting_.get(), greeting_.get(), kGreeting, *link.queue);
      link.queue->mark(*greeted);
      greeted->wait();
    }
  }

  const World& world_;
  int rank_;
  std::shared_ptr<DeviceQueues> device_;
  std::shared_ptr<std::byte> greeting_;
  Introductions introductions_;
  std::vector<Run> runs_;
  Links links_;
  std::deque<Message> messages_;
};

}  // namespace

std::unique_ptr<RankMessages> make_nccl_messages(const World& world, const DeviceMemory& memory) {
  MILLRACE_ASSERT(memory.queues);
  return std::make_unique<NcclMessages>(world, memory);
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// A queue must not wait for another's work, which may wait for a message. And a kernel that is
/// loaded when it is first launched can wait for all queues, be it behind a message that waits for
/// this kernel.
void prepare_for_nccl() {
  if (wants_mpi()) return;
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(kMostConnections).c_str(), 0);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace millrace::comm
