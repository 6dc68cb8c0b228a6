// SPDX-License-Identifier: Apache-2.0
#include "comm/world.hpp"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "core/error.hpp"

namespace millrace::comm {
namespace {

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(ErrorKind::Peer, "{} failed with code {}", call, code);
}

std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int count(std::size_t elements) { return static_cast<int>(elements); }

/// The ranks of this machine among themselves, in the order of `rank`.
class RanksHere {
 public:
  explicit RanksHere(int rank) {
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &comm_),
          "MPI_Comm_split_type");
  }
  ~RanksHere() { MPI_Comm_free(&comm_); }
  RanksHere(const RanksHere&) = delete;
  RanksHere& operator=(const RanksHere&) = delete;
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Where the stretch of each rank begins, and behind them where the last one ends.
std::vector<int> begins_of(const std::vector<int>& lengths) {
  std::vector<int> begins(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), begins.begin() + 1);
  return begins;
}

}  // namespace

/// Open MPI, MPICH and its descendants, and PMIx under Slurm tell a process so.
bool started_by_launcher() {
  constexpr std::array kSigns = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                 "MPI_LOCALNRANKS"};
  return std::any_of(kSigns.begin(), kSigns.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* text = std::getenv(name))
      return static_cast<int>(std::strtol(text, nullptr, 10));
  return 0;
}

bool is_open_mpi() noexcept {
#ifdef OPEN_MPI
  return true;
#else
  return false;
#endif
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

World::World() {
  if (!started_by_launcher()) return;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  initialised_ = true;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  const RanksHere here(rank_);
  check(MPI_Comm_rank(here.comm(), &local_rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(here.comm(), &local_size_), "MPI_Comm_size");
  int* tag = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&tag), &found),
        "MPI_Comm_get_attr");
  if (found != 0) highest_tag_ = *tag;
}

World::~World() {
  if (initialised_) MPI_Finalize();
}

std::string World::broadcast(std::string text) const {
  if (size_ == 1) return text;
  auto length = static_cast<std::uint64_t>(text.size());
  check(MPI_Bcast(&length, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD), "MPI_Bcast");
  text.resize(length);
  check(MPI_Bcast(text.data(), count(text.size()), MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
  return text;
}

void World::add(std::span<double> values) const {
  if (size_ == 1) return;
  check(MPI_Allreduce(MPI_IN_PLACE, values.data(), count(values.size()), MPI_DOUBLE, MPI_SUM,
                      MPI_COMM_WORLD),
        "MPI_Allreduce");
}

std::int64_t World::maximum(std::int64_t value) const {
  if (size_ == 1) return value;
  check(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD),
        "MPI_Allreduce");
  return value;
}

std::vector<std::string> World::gather(const std::string& text) const {
  if (size_ == 1) return {text};
  std::vector<int> lengths(rank_ == 0 ? static_cast<std::size_t>(size_) : 0);
  const int length = count(text.size());
  check(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, MPI_COMM_WORLD),
        "MPI_Gather");
  const std::vector<int> begins = begins_of(lengths);
  std::string all(static_cast<std::size_t>(begins.back()), '\0');
  check(MPI_Gatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(),
                    MPI_CHAR, 0, MPI_COMM_WORLD),
        "MPI_Gatherv");
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r)
    texts.push_back(
        all.substr(static_cast<std::size_t>(begins[r]), static_cast<std::size_t>(lengths[r])));
  return texts;
}

std::vector<int> World::gather_here(const std::vector<int>& numbers) const {
  if (size_ == 1) return numbers;
  const RanksHere here(rank_);
  std::vector<int> lengths(static_cast<std::size_t>(local_size_));
  const int length = count(numbers.size());
  check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, here.comm()),
        "MPI_Allgather");
  const std::vector<int> begins = begins_of(lengths);
  std::vector<int> all(static_cast<std::size_t>(begins.back()));
  check(MPI_Allgatherv(numbers.data(), length, MPI_INT, all.data(), lengths.data(), begins.data(),
                       MPI_INT, here.comm()),
        "MPI_Allgatherv");
  return all;
}

void World::barrier() const {
  if (size_ > 1) check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

std::int64_t World::clock_offset() const {
  constexpr int kRounds = 20;
  constexpr int kTag = 1;
  std::int64_t offset = 0;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int other = 1; other < size_; ++other) {
    for (int round = 0; round < kRounds; ++round) {
      if (rank_ == 0) {
        std::int64_t time = 0;
        check(MPI_Recv(&time, 1, MPI_INT64_T, other, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
              "MPI_Recv");
        time = steady_nanoseconds();
        check(MPI_Send(&time, 1, MPI_INT64_T, other, kTag, MPI_COMM_WORLD), "MPI_Send");
      }
      if (rank_ != other) continue;
      // The answer is taken to be made half-way; the quickest round is the truest.
      std::int64_t theirs = steady_nanoseconds();
      const std::int64_t begin = theirs;
      check(MPI_Send(&theirs, 1, MPI_INT64_T, 0, kTag, MPI_COMM_WORLD), "MPI_Send");
      check(MPI_Recv(&theirs, 1, MPI_INT64_T, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
            "MPI_Recv");
      const std::int64_t end = steady_nanoseconds();
      if (end - begin >= shortest) continue;
      shortest = end - begin;
      offset = theirs - (begin + end) / 2;
    }
  }
  return offset;
}

void World::abort(int code) const {
  if (initialised_) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace millrace::comm
