// SPDX-License-Identifier: Apache-2.0
#include "comm/world.hpp"

#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <string_view>
#include <thread>

#include "comm/open_mpi.hpp"
#include "comm/rank_messages.hpp"
#include "comm/route.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/machine_limits.hpp"

namespace millrace::comm {
namespace {

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(ErrorKind::Peer, "{} failed with code {}", call, code);
}

int count(std::size_t elements) { return static_cast<int>(elements); }

constexpr int kTag = 0;

/// The ranks form a binomial tree with root 0. A rank's parent is its number with the lowest set
/// bit cleared.
int parent_of(int rank) { return rank & (rank - 1); }

/// Children, nearest first. The subtree of a child at distance d has up to d ranks.
std::vector<int> children_of(int rank, int size) {
  std::vector<int> children;
  for (int distance = 1; (rank & distance) == 0 && rank + distance < size; distance *= 2)
    children.push_back(rank + distance);
  return children;
}

constexpr int kFailure = 1;  ///< the tag that says that a rank has failed

/// Starts MPI until the process ends, unless the program has started it.
void start_mpi() {
  int has_begun = 0;
  check(MPI_Initialized(&has_begun), "MPI_Initialized");
  if (has_begun != 0) return;
  prepare_for_nccl();  // before MPI may start CUDA
  prefer_eager_messages();
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  (void)std::atexit([] {
    if (has_ended_mpi()) return;
    watch_daemon();
    MPI_Finalize();
  });
}

/// Errors: Config if this thread may not call MPI while there are others.
void require_thread_level() {
  int level = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  int is_main = 0;
  check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
  if (level > MPI_THREAD_FUNNELED || (level == MPI_THREAD_FUNNELED && is_main != 0)) return;
  const bool single = level == MPI_THREAD_SINGLE;
  fail(ErrorKind::Config, "MPI was initialised for {}: initialise it with MPI_Init_thread for {}",
       single ? "one thread (MPI_THREAD_SINGLE), but there are more"
              : "calls of the main thread only (MPI_THREAD_FUNNELED), and this is another one",
       single ? "MPI_THREAD_FUNNELED or more" : "MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
}

/// The number in an environment variable; 0 without one.
int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : static_cast<int>(std::strtol(text, nullptr, 10));
}

/// Start offset of each rank's part, followed by the end of the last part.
std::vector<int> begins_of(const std::vector<int>& lengths) {
  std::vector<int> begins(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), begins.begin() + 1);
  return begins;
}

}  // namespace

void Patience::pause() {
  constexpr int kLooks = 20;  // messages that are about to arrive need no sleep
  constexpr std::chrono::microseconds kLongest{200};
  constexpr int kBetweenQuestions = 64;  // a question takes as long as a look
  ++looks_;
  if (guest_ != nullptr && looks_ % kBetweenQuestions == 0) guest_->look_for_failures();
  if (!sleeps_ || looks_ <= kLooks) return;
  // The sleep ends on time and not, as by default on Linux, 50 us later.
  const int slack = ::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  std::this_thread::sleep_for(sleep_);
  ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack), 0UL, 0UL, 0UL);
  sleep_ = std::min(2 * sleep_, kLongest);
}

/// Messages of the collective functions. They are built from point-to-point messages, because MPI's
/// own collectives do not tell which rank is missing. The pipeline's messages use Transport.
class World::Peers {
 public:
  explicit Peers(MPI_Comm ranks) {
    check(MPI_Comm_dup(ranks, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here_),
          "MPI_Comm_split_type");
  }
  ~Peers() {
    if (has_ended_mpi()) return;
    MPI_Comm_free(&here_);
    MPI_Comm_free(&comm_);
  }
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  [[nodiscard]] const MPI_Comm& comm() const noexcept { return comm_; }
  /// Of the ranks on this machine, in the same order.
  [[nodiscard]] MPI_Comm here() const noexcept { return here_; }

  void send(int to, std::span<const std::byte> data) const {
    check(MPI_Send(data.data(), count(data.size()), MPI_BYTE, to, kTag, comm_), "MPI_Send");
  }
  void receive(int from, std::span<std::byte> data, Patience patience) {
    awaited_.store(from, std::memory_order_relaxed);
    for (int here = patience.looks() ? 0 : 1; here == 0;) {
      check(MPI_Iprobe(from, kTag, comm_, &here, MPI_STATUS_IGNORE), "MPI_Iprobe");
      if (here == 0) patience.pause();
    }
    check(MPI_Recv(data.data(), count(data.size()), MPI_BYTE, from, kTag, comm_, MPI_STATUS_IGNORE),
          "MPI_Recv");
    awaited_.store(-1, std::memory_order_relaxed);
  }
  void send_text(int to, const std::string& text) const {
    const std::uint64_t length = text.size();
    send(to, std::as_bytes(std::span(&length, 1)));
    if (length > 0) send(to, std::as_bytes(std::span(text)));
  }
  [[nodiscard]] std::string receive_text(int from, Patience patience) {
    std::uint64_t length = 0;
    receive(from, std::as_writable_bytes(std::span(&length, 1)), patience);
    std::string text(length, '\0');
    if (length > 0) receive(from, std::as_writable_bytes(std::span(text)), patience);
    return text;
  }
  [[nodiscard]] int awaited() const noexcept { return awaited_.load(std::memory_order_relaxed); }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm here_ = MPI_COMM_NULL;
  std::atomic<int> awaited_{-1};
};

/// Open MPI, MPICH with its derivatives, and PMIx under Slurm set one of these variables.
bool started_by_launcher() {
  constexpr std::array kSigns = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                 "MPI_LOCALNRANKS"};
  return std::any_of(kSigns.begin(), kSigns.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (std::getenv(name) != nullptr) return number_in(name);
  return 0;
}

int separate_tasks(const World& world) {
  // The number of SLURM_NTASKS is the allocation's where a batch script starts mpirun or millrace.
  const int tasks = number_in("SLURM_STEP_NUM_TASKS");
  if (tasks <= 1 || world.size() > 1 || std::getenv("TF_CONFIG") != nullptr) return 0;
  // A launcher that a task of srun started, such as a shell, made its own number of ranks.
  for (const char* made : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (std::getenv(made) != nullptr && number_in(made) != tasks) return 0;
  return tasks;
}

void remove_shared_memory() noexcept {
  // The files that this process has mapped: its own and those of the other ranks on this machine.
  constexpr std::string_view kName = "/dev/shm/vader_segment.";
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const std::size_t at = line.find(kName); at != std::string::npos)
      ::unlink(line.c_str() + at);
}

bool is_open_mpi() noexcept {
#ifdef OPEN_MPI
  return true;
#else
  return false;
#endif
}

bool reaches_cuda_memory() noexcept {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

bool reaches_rocm_memory() noexcept {
#if defined(MPIX_ROCM_AWARE_SUPPORT)  // since Open MPI 5
  return MPIX_Query_rocm_support() == 1;
#else
  return false;
#endif
}

bool has_ended_mpi() noexcept {
  int has_ended = 0;
  return MPI_Finalized(&has_ended) == MPI_SUCCESS && has_ended != 0;
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

std::string of_this_machine(std::string_view device) {
  return device.empty() ? "" : fmt::format("{} of {}", device, host_name());
}

World::World() {
  (void)wants_mpi();  // a wrong wish ends every process alike, also those that send no messages
  if (!started_by_launcher()) return;
  start_mpi();
  const MPI_Comm all = MPI_COMM_WORLD;
  join(&all);
}

World::World(Alone) noexcept {}

World::World(Guest guest) {
  (void)wants_mpi();
  MPI_Comm ranks = MPI_COMM_WORLD;
  if (guest.communicator != nullptr) {
    int has_begun = 0;
    check(MPI_Initialized(&has_begun), "MPI_Initialized");
    if (has_begun == 0 || has_ended_mpi())
      fail(ErrorKind::Config, "a communicator was given, but MPI does not run");
    ranks = *static_cast<const MPI_Comm*>(guest.communicator);
    if (ranks == MPI_COMM_NULL)
      fail(ErrorKind::Config, "the communicator is MPI_COMM_NULL: this process has no part in it");
    int is_between = 0;
    check(MPI_Comm_test_inter(ranks, &is_between), "MPI_Comm_test_inter");
    if (is_between != 0)
      fail(
          ErrorKind::Config,
          "the communicator lies between two groups of processes: give that of one, or merge them");
  } else {
    if (!started_by_launcher()) return;
    start_mpi();
  }
  require_thread_level();
  join(&ranks);
  check(MPI_Comm_set_errhandler(peers_->comm(), MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  is_guest_ = size_ > 1;
}

World::~World() = default;

void World::join(const void* communicator) {
  peers_ = std::make_unique<Peers>(*static_cast<const MPI_Comm*>(communicator));
  check(MPI_Comm_rank(peers_->comm(), &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(peers_->comm(), &size_), "MPI_Comm_size");
  check(MPI_Comm_rank(peers_->here(), &local_rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(peers_->here(), &local_size_), "MPI_Comm_size");
  int* tag = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(peers_->comm(), MPI_TAG_UB, static_cast<void*>(&tag), &found),
        "MPI_Comm_get_attr");
  if (found != 0) highest_tag_ = *tag;
}

const void* World::communicator() const noexcept { return peers_ ? &peers_->comm() : nullptr; }

int World::awaited() const noexcept { return peers_ ? peers_->awaited() : -1; }

template <class T, class Combine>
void World::reduce(std::span<T> values, Combine combine) const {
  if (size_ == 1) return;
  const std::vector<int> children = children_of(rank_, size_);
  std::vector<T> theirs(children.empty() ? 0 : values.size());
  for (const int child : children) {
    peers_->receive(child, std::as_writable_bytes(std::span(theirs)), patience());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = combine(values[i], theirs[i]);
  }
  if (rank_ != 0) {
    peers_->send(parent_of(rank_), std::as_bytes(values));
    peers_->receive(parent_of(rank_), std::as_writable_bytes(values), patience());
  }
  for (auto child = children.rbegin(); child != children.rend(); ++child)
    peers_->send(*child, std::as_bytes(values));
}

void World::add(std::span<double> values) const { reduce(values, std::plus<>()); }

void World::maximum(std::span<std::int64_t> values) const {
  reduce(values, [](std::int64_t a, std::int64_t b) { return std::max(a, b); });
}

std::int64_t World::maximum(std::int64_t value) const {
  maximum(std::span(&value, 1));
  return value;
}

void World::barrier() const { (void)maximum(0); }

std::string World::broadcast(std::string text) const {
  if (size_ == 1) return text;
  if (rank_ != 0) text = peers_->receive_text(parent_of(rank_), patience());
  const std::vector<int> children = children_of(rank_, size_);
  for (auto child = children.rbegin(); child != children.rend(); ++child)
    peers_->send_text(*child, text);
  return text;
}

std::vector<std::string> World::gather(const std::string& text) const {
  if (rank_ != 0) {
    peers_->send_text(0, text);
    return {};
  }
  std::vector<std::string> texts = {text};
  for (int rank = 1; rank < size_; ++rank) texts.push_back(peers_->receive_text(rank, patience()));
  return texts;
}

std::string World::gather_everywhere(const std::string& text) const {
  std::string all;
  for (const std::string& one : gather(text)) all += one;
  return broadcast(all);
}

std::vector<int> World::gather_here(const std::vector<int>& numbers) const {
  if (size_ == 1) return numbers;
  std::vector<int> lengths(static_cast<std::size_t>(local_size_));
  const int length = count(numbers.size());
  check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, peers_->here()),
        "MPI_Allgather");
  const std::vector<int> begins = begins_of(lengths);
  std::vector<int> all(static_cast<std::size_t>(begins.back()));
  check(MPI_Allgatherv(numbers.data(), length, MPI_INT, all.data(), lengths.data(), begins.data(),
                       MPI_INT, peers_->here()),
        "MPI_Allgatherv");
  return all;
}

std::int64_t World::clock_offset() const {
  constexpr int kRounds = 20;
  std::int64_t offset = 0;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t time = 0;
  const std::span<std::byte> message = std::as_writable_bytes(std::span(&time, 1));
  for (int other = 1; other < size_; ++other) {
    for (int round = 0; round < kRounds; ++round) {
      if (rank_ == 0) {
        peers_->receive(other, message, patience());
        time = steady_nanoseconds();
        peers_->send(other, message);
      }
      if (rank_ != other) continue;
      // Assume that the answer was made half-way. The shortest round gives the best estimate.
      const std::int64_t begin = steady_nanoseconds();
      peers_->send(0, message);
      peers_->receive(0, message, patience());
      const std::int64_t end = steady_nanoseconds();
      if (end - begin >= shortest) continue;
      shortest = end - begin;
      offset = time - (begin + end) / 2;
    }
  }
  return offset;
}

void World::abort(int code) const {
  remove_shared_memory();
  if (peers_) MPI_Abort(peers_->comm(), code);
  std::_Exit(code);
}

void World::begin() const {
  if (!is_guest_) return;
  require_thread_level();
  if (has_failed())
    fail(ErrorKind::Peer,
         "rank {} of this Runtime has failed, so that messages may be missing: make a new Runtime",
         failed_);
  failing_together_ = false;
}

void World::tell_failure() const noexcept {
  if (!is_guest_ || failing_together_ || has_failed()) return;
  failed_ = rank_;
  for (int other = 0; other < size_; ++other) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (other != rank_ &&
        MPI_Isend(nullptr, 0, MPI_BYTE, other, kFailure, peers_->comm(), &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

void World::look_for_failures() const {
  if (!has_failed()) {
    int has_one = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kFailure, peers_->comm(), &has_one, &status), "MPI_Iprobe");
    if (has_one == 0) return;
    failed_ = status.MPI_SOURCE;
  }
  fail(ErrorKind::Peer, "rank {} has failed: its own error says why", failed_);
}

}  // namespace millrace::comm
