// SPDX-License-Identifier: Apache-2.0
//
// slow_link MILLISECONDS MEGABITS HOST/ADDRESS...: joins network namespaces by a network in which
// each host sends at this rate, and packets arrive this much later, until it is ended. It plays a
// slow network on one machine, also where the kernel has no emulator of its own. Bits of IP headers
// count; packets are never lost. On fast links they are large, as those that a kernel hands to a
// network card: this process could not carry enough small ones. Needs root.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

[[noreturn]] void stop(const char* what) {
  std::perror(what);
  std::exit(1);
}

/// A network device in a namespace, whose packets this process reads and writes.
int open_device(const std::string& host) {
  const int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there = open(("/run/netns/" + host).c_str(), O_RDONLY | O_CLOEXEC);
  if (here < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0) stop(host.c_str());
  const int device = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  ifreq request = {};
  std::strncpy(request.ifr_name, "slow0", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) stop("/dev/net/tun");
  if (setns(here, CLONE_NEWNET) != 0) stop("setns");
  close(here);
  close(there);
  return device;
}

struct Host {
  std::string name;
  in_addr address = {};
  int device = -1;
};

/// What one host sends. A packet leaves when those before it have left, and arrives `delay` later.
class Wire {
 public:
  Wire(int from, const std::vector<Host>& hosts, Clock::duration delay, double bytes_per_second)
      : from_(from), hosts_(hosts), delay_(delay), rate_(bytes_per_second) {}

  [[nodiscard]] int from() const { return from_; }
  [[nodiscard]] Clock::time_point next() const {
    return packets_.empty() ? Clock::time_point::max() : packets_.front().arrives;
  }
  void take() {
    std::array<char, 65536> packet{};
    for (ssize_t n = 0; (n = read(from_, packet.data(), packet.size())) > 0;) {
      const auto seconds = Seconds(static_cast<double>(n) / rate_);
      free_ = std::max(free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(seconds);
      packets_.push_back({free_ + delay_, {packet.data(), packet.data() + n}});
    }
  }
  void deliver() {
    for (; next() <= Clock::now(); packets_.pop_front()) {
      const std::vector<char>& bytes = packets_.front().bytes;
      constexpr std::size_t kDestination = 16;
      for (const Host& host : hosts_)
        if (bytes.size() > kDestination + 4 &&
            std::memcmp(&host.address, bytes.data() + kDestination, 4) == 0)
          (void)!write(host.device, bytes.data(), bytes.size());
    }
  }

 private:
  struct Packet {
    Clock::time_point arrives;
    std::vector<char> bytes;
  };
  int from_;
  const std::vector<Host>& hosts_;
  Clock::duration delay_;
  double rate_;
  Clock::time_point free_;
  std::deque<Packet> packets_;
};

void carry(Wire& wire) {
  for (;;) {
    wire.deliver();
    const Clock::duration wait = wire.next() == Clock::time_point::max()
                                     ? std::chrono::seconds(1)
                                     : wire.next() - Clock::now();
    const auto ns = std::max<std::int64_t>(0, std::chrono::nanoseconds(wait).count());
    const timespec limit = {ns / 1'000'000'000, ns % 1'000'000'000};
    pollfd ready{.fd = wire.from(), .events = POLLIN, .revents = 0};
    ppoll(&ready, 1, &limit, nullptr);
    wire.take();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: slow_link MILLISECONDS MEGABITS HOST/ADDRESS HOST/ADDRESS...\n");
    return 2;
  }
  const auto delay = std::chrono::duration_cast<Clock::duration>(Seconds(std::atof(argv[1]) / 1e3));
  const double rate = std::atof(argv[2]) * 1e6 / 8;
  const char* const packets = rate > 10e6 ? "65000" : "1500";
  std::vector<Host> hosts;
  for (int i = 3; i < argc; ++i) {
    const std::string end = argv[i];
    const std::string name = end.substr(0, end.find('/'));
    const std::string address = end.substr(end.find('/') + 1);
    Host host{.name = name, .device = open_device(name)};
    const std::string ip = "ip -n " + name;
    if (inet_pton(AF_INET, address.c_str(), &host.address) != 1 ||
        std::system((ip + " addr add " + address + "/24 dev slow0 && " + ip +
                     " link set slow0 up txqueuelen 10000 mtu " + packets)
                        .c_str()) != 0)
      return 1;
    hosts.push_back(host);
  }
  const sched_param first = {.sched_priority = 1};
  (void)sched_setscheduler(0, SCHED_FIFO, &first);
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  std::vector<std::thread> threads;
  for (const Host& host : hosts)
    threads.emplace_back([&] {
      Wire wire(host.device, hosts, delay, rate);
      carry(wire);
    });
  for (std::thread& thread : threads) thread.join();
}
