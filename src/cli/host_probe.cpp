// SPDX-License-Identifier: Apache-2.0
#include "cli/host_probe.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>

#include "cli/pipe.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::cli {
namespace {

/// The words that run a command on a host, as Open MPI finds them: the first of its agents, and
/// what is added to it. An ssh of nobody's choice must not ask for a password.
std::vector<std::string> agent_words(const Cluster& cluster) {
  const char* const named = std::getenv("OMPI_MCA_plm_rsh_agent");
  std::vector<std::string> words =
      split_list(split_list(named != nullptr ? named : "ssh", ':').front(), ' ');
  if (std::filesystem::path(words.front()).filename() == "ssh" && named == nullptr)
    words.insert(words.end(), {"-o", "BatchMode=yes"});
  const std::vector<std::string> more = split_list(agent_arguments(cluster), ' ');
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Starts a command without input and output, in its own process group. Its messages go to that
/// descriptor. Returns its process.
int start_silently(const std::vector<std::string>& words, int messages) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO})
    posix_spawn_file_actions_addopen(&files, stream, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&files, messages, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t process = 0;
  const int error =
      posix_spawnp(&process, arguments.front(), &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    fail(ErrorKind::Io,
         "cannot start {}, by which hosts are reached: {}; install it, or name another program in "
         "OMPI_MCA_plm_rsh_agent",
         words.front(), std::generic_category().message(error));
  return process;
}

/// The last line in a pipe whose writer has ended.
std::string last_line_in(const io::UniqueFd& pipe) {
  fcntl(pipe.get(), F_SETFL, O_NONBLOCK);  // what it has started may still hold the other end
  std::array<char, 4096> buffer{};
  std::string text;
  for (ssize_t n = 0; (n = read(pipe.get(), buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(n));
  std::erase(text, '\r');
  const std::vector<std::string> lines = split_list(text, '\n');
  return lines.empty() ? "" : printable(lines.back());
}

}  // namespace

bool is_this_machine(const std::string& host) {
  if (names_this_machine(host)) return true;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    // Only addresses of this machine can be bound.
    const io::UniqueFd socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket.get() >= 0 && bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0) return true;
  }
  return false;
}

namespace {

/// Whether an interface has this name, or an address in this subnet.
bool is_named(const ifaddrs& interface, const std::string& name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos) return name == interface.ifa_name;
  in_addr net = {};
  const int bits = parse_number<int>(name.substr(slash + 1)).value_or(-1);
  if (inet_pton(AF_INET, name.substr(0, slash).c_str(), &net) != 1 || bits < 0 || bits > 32)
    return true;
  if (interface.ifa_addr == nullptr || interface.ifa_addr->sa_family != AF_INET) return false;
  sockaddr_in own = {};
  std::memcpy(&own, interface.ifa_addr, sizeof own);
  const std::uint32_t differ = ntohl(own.sin_addr.s_addr) ^ ntohl(net.s_addr);
  return bits == 0 || differ >> (32 - bits) == 0;
}

/// Whether one of these names or subnets, as in "eth0,10.0.0.0/8", is up here. True for "", and for
/// what cannot be read.
bool has_interface(const std::string& names) {
  ifaddrs* found = nullptr;
  if (names.empty() || getifaddrs(&found) != 0) return true;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, freeifaddrs);
  for (const std::string& name : split_list(names))
    for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next)
      if ((at->ifa_flags & IFF_RUNNING) != 0 && is_named(*at, name)) return true;
  return false;
}

}  // namespace

HostProbe::HostProbe(const Cluster& cluster, std::span<const std::string> hosts,
                     const std::string& command)
    : asked_(hosts.begin(), hosts.end()) {
  const std::vector<std::string> agent = agent_words(cluster);
  const bool reaches_others = has_interface(cluster.interface);
  for (const std::string& host : hosts) {
    const bool here = is_this_machine(host);
    if (here) answered_.insert(host);
    if (here || !reaches_others) continue;
    std::vector<std::string> words = agent;
    words.insert(words.end(), {host, command});
    Pipe messages = make_pipe();
    open_.push_back({host, start_silently(words, messages.write.get()), std::move(messages.read)});
  }
  begun_ = std::chrono::steady_clock::now();  // looking up names may have taken long
}

HostProbe::~HostProbe() {
  for (const Question& question : open_) {
    kill(-question.process, SIGKILL);
    waitpid(question.process, nullptr, 0);
  }
}

void HostProbe::look() {
  std::erase_if(open_, [&](const Question& question) {
    int status = 0;
    if (waitpid(question.process, &status, WNOHANG) != question.process) return false;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      answered_.insert(question.host);
      slowest_ = age();
    } else if (const std::string said = last_line_in(question.words); !said.empty()) {
      refused_[question.host] = said;
    }
    return true;
  });
}

void HostProbe::wait(std::chrono::milliseconds most, const std::set<std::string>& unless) {
  constexpr std::chrono::milliseconds kPause{10};
  const auto awaited = [&](const Question& question) { return !unless.contains(question.host); };
  for (look(); std::ranges::any_of(open_, awaited) && age() < most; look())
    std::this_thread::sleep_for(kPause);
}

std::chrono::milliseconds HostProbe::age() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               begun_);
}

}  // namespace millrace::cli
