// SPDX-License-Identifier: Apache-2.0
#include "comm/transport.hpp"

#include <mpi.h>

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace millrace::comm {
namespace {

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(ErrorKind::Peer, "{} failed with code {}", call, code);
}

/// Messages of a rank to itself. For each tag, started sends and started receives wait in two
/// rings, one of which is always empty.
class LocalMessages {
 public:
  explicit LocalMessages(CopyBytes copy) : copy_(copy) {}

  int add(std::byte* to, const std::byte* from, std::int64_t bytes, int tag) {
    Line& line = lines_.try_emplace(tag).first->second;
    const int number = static_cast<int>(ends_.size());
    ends_.push_back({&line, to, from, bytes, true});
    // Reserve a place for every message now, so that start() never allocates.
    (to != nullptr ? line.receives : line.sends).add_place();
    return number;
  }

  void start(int number) {
    End& end = ends_[static_cast<std::size_t>(number)];
    MILLRACE_ASSERT(end.done);
    end.done = false;
    const bool receives = end.to != nullptr;
    (receives ? end.line->receives : end.line->sends).push(number);
    deliver(*end.line);
  }

  [[nodiscard]] bool done(int number) const { return ends_[static_cast<std::size_t>(number)].done; }

 private:
  class Ring {
   public:
    void add_place() { places_.push_back(0); }
    [[nodiscard]] bool empty() const { return size_ == 0; }
    void push(int number) {
      MILLRACE_ASSERT(size_ < places_.size());
      places_[(first_ + size_++) % places_.size()] = number;
    }
    int pop() {
      const int number = places_[first_];
      first_ = (first_ + 1) % places_.size();
      --size_;
      return number;
    }

   private:
    std::vector<int> places_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
  };
  struct Line {
    Ring sends;
    Ring receives;
  };
  struct End {
    Line* line;
    std::byte* to;
    const std::byte* from;
    std::int64_t bytes;
    bool done;
  };

  void deliver(Line& line) {
    if (line.sends.empty() || line.receives.empty()) return;
    End& send = ends_[static_cast<std::size_t>(line.sends.pop())];
    End& receive = ends_[static_cast<std::size_t>(line.receives.pop())];
    MILLRACE_ASSERT(send.bytes == receive.bytes);
    copy_(receive.to, send.from, send.bytes);
    send.done = true;
    receive.done = true;
  }

  CopyBytes copy_;
  std::map<int, Line> lines_;  ///< by tag
  std::deque<End> ends_;
};

/// Persistent requests on a separate communicator.
class MpiMessages {
 public:
  MpiMessages() { check(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "MPI_Comm_dup"); }
  ~MpiMessages() {
    for (MPI_Request& request : requests_) MPI_Request_free(&request);
    MPI_Comm_free(&communicator_);
  }
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;

  int add_send(const std::byte* data, std::int64_t bytes, int rank, int tag) {
    check(MPI_Send_init(data, size(bytes), MPI_BYTE, rank, tag, communicator_, &add()),
          "MPI_Send_init");
    return last();
  }
  int add_receive(std::byte* data, std::int64_t bytes, int rank, int tag) {
    check(MPI_Recv_init(data, size(bytes), MPI_BYTE, rank, tag, communicator_, &add()),
          "MPI_Recv_init");
    return last();
  }
  void start(int number) { check(MPI_Start(&at(number)), "MPI_Start"); }
  bool done(int number) {
    int flag = 0;
    check(MPI_Test(&at(number), &flag, MPI_STATUS_IGNORE), "MPI_Test");
    return flag != 0;
  }
  void wait(int number, Patience patience) {
    while (patience.sleeps() && !done(number)) patience.pause();
    check(MPI_Wait(&at(number), MPI_STATUS_IGNORE), "MPI_Wait");
  }

 private:
  static int size(std::int64_t bytes) {
    if (bytes > 0x7fffffff)
      fail(ErrorKind::Config,
           "a message of {} bytes exceeds MPI's limit of 2 GiB: use a smaller --batch-size", bytes);
    return static_cast<int>(bytes);
  }
  MPI_Request& add() { return requests_.emplace_back(MPI_REQUEST_NULL); }
  [[nodiscard]] int last() const { return static_cast<int>(requests_.size()) - 1; }
  MPI_Request& at(int number) { return requests_[static_cast<std::size_t>(number)]; }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::deque<MPI_Request> requests_;
};

/// Messages between ranks. Where MPI cannot reach device memory, a send is copied to the host when
/// it starts, and a receive to the device when somebody finds it done.
class RankMessages {
 public:
  explicit RankMessages(const DeviceMemory& memory) : memory_(memory) {}

  int add_send(const std::byte* data, std::int64_t bytes, int rank, int tag) {
    std::byte* const host = add({.from = data, .bytes = bytes});
    return mpi_.add_send(host == nullptr ? data : host, bytes, rank, tag);
  }
  int add_receive(std::byte* data, std::int64_t bytes, int rank, int tag) {
    std::byte* const host = add({.to = data, .bytes = bytes});
    return mpi_.add_receive(host == nullptr ? data : host, bytes, rank, tag);
  }
  void start(int number) {
    Message& message = at(number);
    message.arrives = message.to != nullptr;
    if (message.host && message.from != nullptr)
      memory_.copy_to_host(message.host.get(), message.from, message.bytes);
    mpi_.start(number);
  }
  bool done(int number) {
    if (!mpi_.done(number)) return false;
    deliver(at(number));
    return true;
  }
  void wait(int number, Patience patience) {
    mpi_.wait(number, patience);
    deliver(at(number));
  }

 private:
  struct Message {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::int64_t bytes = 0;
    std::shared_ptr<std::byte> host = nullptr;  ///< null: MPI reaches the device's memory
    bool arrives = false;                       ///< a receive that is not on the device yet
  };

  /// Returns the message's buffer on the host, if it has one.
  std::byte* add(Message message) {
    if (memory_.is_staged())
      message.host = memory_.host_buffer(static_cast<std::size_t>(message.bytes));
    return messages_.emplace_back(std::move(message)).host.get();
  }
  void deliver(Message& message) const {
    if (message.host && message.arrives)
      memory_.copy_to_device(message.to, message.host.get(), message.bytes);
    message.arrives = false;
  }
  Message& at(int number) { return messages_[static_cast<std::size_t>(number)]; }

  DeviceMemory memory_;
  std::vector<Message> messages_;
  MpiMessages mpi_;  ///< destroyed first: its requests use the buffers
};

/// Messages within the rank have negative numbers: -1, -2, ... Without remote messages the rank is
/// played alone: those to and from others are always done.
class RoutingTransport final : public Transport {
 public:
  RoutingTransport(const World& world, int rank, bool alone, const DeviceMemory& memory)
      : world_(&world), rank_(rank), local_(memory.copy_within) {
    if (world.size() > 1 && !alone) remote_ = std::make_unique<RankMessages>(memory);
  }

  int prepare_send(const std::byte* data, std::int64_t bytes, int rank, int tag) override {
    if (rank == rank_) return local_number(local_.add(nullptr, data, bytes, tag));
    require_tag(tag);
    return remote_ ? remote_->add_send(data, bytes, rank, tag) : kLost;
  }
  int prepare_receive(std::byte* data, std::int64_t bytes, int rank, int tag) override {
    if (rank == rank_) return local_number(local_.add(data, nullptr, bytes, tag));
    require_tag(tag);
    return remote_ ? remote_->add_receive(data, bytes, rank, tag) : kLost;
  }
  void start(int message) override {
    if (message < 0) return local_.start(local_number(message));
    if (remote_) remote_->start(message);
  }
  bool done(int message) override {
    if (message < 0) return local_.done(local_number(message));
    return !remote_ || remote_->done(message);
  }
  void wait(int message) override {
    if (message >= 0 && remote_) remote_->wait(message, patience());
    MILLRACE_ASSERT(message >= 0 || local_.done(local_number(message)));
  }
  [[nodiscard]] Patience patience() const override { return world_->patience(); }

 private:
  static constexpr int kLost = 0;  ///< the number of all messages that go nowhere
  static int local_number(int number) { return -1 - number; }
  void require_tag(int tag) const {
    if (tag <= world_->highest_tag()) return;
    fail(ErrorKind::Config,
         "this layout needs message tag {}, but the highest tag of this MPI library is {}: use "
         "fewer "
         "stages or replicas",
         tag, world_->highest_tag());
  }

  const World* world_;
  int rank_;
  LocalMessages local_;
  std::unique_ptr<RankMessages> remote_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(const World& world, const DeviceMemory& memory) {
  return std::make_unique<RoutingTransport>(world, world.rank(), false, memory);
}

std::unique_ptr<Transport> make_transport_alone(const World& world, int rank,
                                                const DeviceMemory& memory) {
  return std::make_unique<RoutingTransport>(world, rank, true, memory);
}

}  // namespace millrace::comm
