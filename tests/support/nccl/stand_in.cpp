// SPDX-License-Identifier: Apache-2.0
//
// Stands in for NCCL on the fake device, for communicators of two processes of one machine. It is
// there if MILLRACE_STAND_IN_NCCL is set; the value seeds delays. Like NCCL:
//
// - it matches messages by their order alone, and a send is not done before its receive is there;
// - it goes on by itself (a thread for each communicator), whatever the host does;
// - the first message of a communicator blocks the host until the other end has one, too.
//
// It ends the process if the ends of a message have different sizes, or if the memory of a send
// changes before the kernels wait for its end. What has arrived is written as late as possible.
#include <nccl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/fake_device.hpp"
#include "device/fake_queue.hpp"

namespace {

using millrace::device::fake::Access;
using millrace::device::fake::Queue;

[[noreturn]] void end_process(const char* why) {
  std::fprintf(stderr, "NCCL's stand-in: %s\n", why);
  std::abort();
}

const char* seed() { return std::getenv("MILLRACE_STAND_IN_NCCL"); }

/// One end of a message, as an item of a queue.
class Job final : public millrace::device::fake::Elsewhere {
 public:
  Job(std::byte* to, const std::byte* from, std::size_t bytes) : data(bytes), to_(to), from_(from) {
    const Access access;
    if (from != nullptr) std::memcpy(data.data(), from, bytes);
  }
  [[nodiscard]] bool finish() override {
    if (aborted) return true;
    if (!done) return false;
    const Access access;
    if (to_ != nullptr)
      std::memcpy(to_, data.data(), data.size());
    else if (std::memcmp(from_, data.data(), data.size()) != 0)
      end_process("memory changed before its message had left");
    return true;
  }
  [[nodiscard]] bool sends() const { return from_ != nullptr; }

  std::vector<std::byte> data;
  std::atomic<bool> done = false;
  std::atomic<bool> aborted = false;

 private:
  std::byte* to_;
  const std::byte* from_;
};

/// Listening sockets of this process, by name.
std::map<std::string, int>& listeners() {
  static std::map<std::string, int> sockets;
  return sockets;
}

sockaddr_un address_of(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // in no folder
  return address;
}
const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace

struct ncclComm {
  ncclComm(int socket, unsigned number)
      : socket_(socket), random_(number), thread_([this] { serve(); }) {}
  ncclComm(const ncclComm&) = delete;
  ncclComm& operator=(const ncclComm&) = delete;
  ~ncclComm() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
    ::close(socket_);
  }

  void abort() {
    ::shutdown(socket_, SHUT_RDWR);
    const std::lock_guard lock(mutex_);
    for (const auto& job : jobs_) job->aborted = true;
    aborted_ = true;
  }
  void push(std::shared_ptr<Job> job) {
    if (!connected_) {
      std::byte other{};
      if (!write(&other, 1) || !read(&other, 1)) error = ncclRemoteError;
      connected_ = true;
    }
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

  std::atomic<ncclResult_t> error = ncclSuccess;

 private:
  bool write(const void* data, std::size_t bytes) const {
    const auto* at = static_cast<const std::byte*>(data);
    for (ssize_t n = 0; bytes > 0; at += n, bytes -= static_cast<std::size_t>(n))
      if ((n = ::send(socket_, at, bytes, MSG_NOSIGNAL)) <= 0) return false;
    return true;
  }
  bool read(void* data, std::size_t bytes) const {
    auto* at = static_cast<std::byte*>(data);
    for (ssize_t n = 0; bytes > 0; at += n, bytes -= static_cast<std::size_t>(n))
      if ((n = ::recv(socket_, at, bytes, 0)) <= 0) return false;
    return true;
  }
  /// The receiver says how much it expects, and that it has come.
  bool exchange(Job& job) {
    std::size_t expected = job.data.size();
    std::byte thanks{};
    if (!job.sends())
      return write(&expected, sizeof expected) && read(job.data.data(), job.data.size()) &&
             write(&thanks, 1);
    if (!read(&expected, sizeof expected)) return false;
    if (expected != job.data.size()) end_process("a receive of another size than its send");
    return write(job.data.data(), job.data.size()) && read(&thanks, 1);
  }
  void serve() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
        if (jobs_.empty() || aborted_) return;
        job = jobs_.front();
      }
      if (random_() % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % 1500));
      if (!exchange(*job)) {
        error = ncclRemoteError;
        return;
      }
      job->done = true;
      const std::lock_guard lock(mutex_);
      jobs_.pop_front();
    }
  }

  int socket_;
  std::minstd_rand random_;
  bool connected_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool closing_ = false;
  bool aborted_ = false;
  std::thread thread_;
};

namespace {

/// The thread begins as soon as what lies before in the queue lets it.
void issue(ncclComm* comm, cudaStream_t stream, std::byte* to, const std::byte* from,
           std::size_t bytes) {
  auto* const queue = reinterpret_cast<Queue*>(stream);
  queue->settle_waits();
  auto job = std::make_shared<Job>(to, from, bytes);
  queue->push(std::shared_ptr<millrace::device::fake::Elsewhere>(job));
  comm->push(std::move(job));
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  constexpr int kVersion = 22809;
  *version = kVersion;
  return seed() != nullptr ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::string name =
      "millrace-" + std::to_string(::getpid()) + '-' + std::to_string(listeners().size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un address = address_of(name);
  if (::bind(socket, generic(address), sizeof address) != 0 || ::listen(socket, 1) != 0)
    return ncclSystemError;
  listeners()[name] = socket;
  *id = {};
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (ranks != 2 || config->blocking != 1) return ncclInvalidUsage;
  const std::string name = id.internal;
  int socket = -1;
  if (rank == 0) {
    socket = ::accept(listeners().at(name), nullptr, nullptr);
    ::close(listeners().at(name));
    listeners().at(name) = -1;
  } else {
    socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = address_of(name);
    if (::connect(socket, generic(address), sizeof address) != 0) return ncclSystemError;
  }
  if (socket < 0) return ncclSystemError;
  static unsigned numbers = 0;
  *comm = new ncclComm(socket, 1000U * static_cast<unsigned>(std::atoi(seed())) + ++numbers);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->abort();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->error;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code) {
  return code == ncclRemoteError ? "remote process exited or there was a network error"
                                 : "unhandled system error";
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t, int, ncclComm_t comm,
                      cudaStream_t stream) {
  issue(comm, stream, nullptr, static_cast<const std::byte*>(data), count);
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t, int, ncclComm_t comm,
                      cudaStream_t stream) {
  issue(comm, stream, static_cast<std::byte*>(data), nullptr, count);
  return ncclSuccess;
}
}
