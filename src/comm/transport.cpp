// SPDX-License-Identifier: Apache-2.0
#include "comm/transport.hpp"

#include <cstddef>
#include <deque>

#include "comm/rank_messages.hpp"
#include "comm/route.hpp"
#include "core/error.hpp"

namespace millrace::comm {
namespace {

/// Messages of a rank to itself. For each tag, started sends and started receives wait in two
/// rings, one of which is always empty.
class LocalMessages {
 public:
  explicit LocalMessages(CopyBytes copy) : copy_(copy) {}

  /// Returns the number of a receive (`to`) or a send (`from`; the other is null).
  int add(std::byte* to, const std::byte* from, std::int64_t bytes, int tag) {
    Line& line = lines_.try_emplace(tag).first->second;
    const int number = static_cast<int>(ends_.size());
    ends_.push_back({&line, to, from, bytes, true});
    // Reserve a place for every message now, so that start() never allocates.
    (to != nullptr ? line.receives : line.sends).add_place();
    return number;
  }
  void start(int number) {
    End& end = at(number);
    MILLRACE_ASSERT(end.done);
    end.done = false;
    (end.to != nullptr ? end.line->receives : end.line->sends).push(number);
    deliver(*end.line);
  }
  [[nodiscard]] bool done(int number) { return at(number).done; }

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

  End& at(int number) { return ends_[static_cast<std::size_t>(number)]; }
  void deliver(Line& line) {
    if (line.sends.empty() || line.receives.empty()) return;
    End& send = at(line.sends.pop());
    End& receive = at(line.receives.pop());
    MILLRACE_ASSERT(send.bytes == receive.bytes);
    copy_(receive.to, send.from, send.bytes);
    send.done = true;
    receive.done = true;
  }

  CopyBytes copy_;
  std::map<int, Line> lines_;  ///< by tag
  std::deque<End> ends_;
};

/// Messages within the rank have negative numbers: -1, -2, ... Without remote messages the rank is
/// played alone: those to and from others are always done.
class RoutingTransport final : public Transport {
 public:
  RoutingTransport(const World& world, int rank, bool alone, const DeviceMemory& memory)
      : world_(&world), rank_(rank), staged_(memory.is_staged), local_(memory.copy_within) {
    if (world.size() == 1 || alone) return;
    const bool by_nccl = route_between_ranks(world, memory).way == Way::Nccl;
    staged_ = staged_ && !by_nccl;
    early_ = !by_nccl && memory.queues == nullptr;
    remote_ = by_nccl ? make_nccl_messages(world, memory) : make_mpi_messages(world, memory);
  }

  int add_run(const MessageOrder& order) override { return remote_ ? remote_->add_run(order) : 0; }
  void begin_run(int run) override {
    if (remote_) remote_->begin_run(run);
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
  void flush() override {
    if (remote_) remote_->flush(patience());
  }
  [[nodiscard]] bool is_staged() const override { return staged_; }
  [[nodiscard]] bool receives_early() const override { return early_; }
  [[nodiscard]] Patience patience() const override { return world_->patience(); }

 private:
  static constexpr int kLost = 0;  ///< the number of all messages that go nowhere
  static int local_number(int number) { return -1 - number; }
  void require_tag(int tag) const {
    if (tag <= world_->highest_tag()) return;
    fail(ErrorKind::Config,
         "this layout needs message tag {}, but the highest tag of this MPI library is {}: use "
         "fewer stages or replicas",
         tag, world_->highest_tag());
  }

  const World* world_;
  int rank_;
  bool staged_;
  bool early_ = false;
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
