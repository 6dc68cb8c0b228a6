// SPDX-License-Identifier: Apache-2.0
#include "cli/launch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/error.hpp"

namespace millrace::cli {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

// A handler can reach nothing but static objects.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t g_launcher = 0;
volatile std::sig_atomic_t g_interrupted = 0;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

/// Launchers kill their ranks soon after SIGTERM or SIGINT, but pass SIGUSR1 on, which asks to save
/// and stop.
extern "C" void millrace_forward_signal(int signal) {
  if (signal == SIGINT && g_interrupted != 0) {
    kill(g_launcher, SIGINT);
    return;
  }
  if (signal == SIGINT) g_interrupted = 1;
  kill(g_launcher, SIGUSR1);
}

void forward_signals() {
  struct sigaction action = {};
  action.sa_handler = millrace_forward_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : kForwarded) sigaction(signal, &action, nullptr);
}

/// Open MPI refuses to run as root unless told twice; whoever started this program as root has
/// decided that.
void allow_root() {
  if (geteuid() != 0) return;
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
}

[[noreturn]] void become(const std::vector<std::string>& command) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // whoever kills this program means its ranks as well
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  _exit(127);
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      fail(ErrorKind::Io, "waiting for the ranks: {}", std::generic_category().message(errno));
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return 128 + WTERMSIG(status);
}

}  // namespace

std::vector<std::string> launch_command(int ranks, std::span<const std::string> words,
                                        const std::optional<Cluster>& cluster) {
  std::vector<std::string> command = {MILLRACE_MPIEXEC, "-n", std::to_string(ranks)};
  const auto add = [&](std::initializer_list<std::string> more) {
    command.insert(command.end(), more);
  };
  // Ranks pin themselves; what a rank has to say it says itself; and one that waits for a message
  // lets the threads run that read its images.
  if (comm::is_open_mpi())
    add({"--oversubscribe", "--bind-to", "none", "--quiet", "--mca", "mpi_yield_when_idle", "1"});
  if (cluster) {
    std::vector<std::string> hosts;
    const auto each =
        (static_cast<std::size_t>(ranks) + cluster->hosts.size() - 1) / cluster->hosts.size();
    for (const std::string& host : cluster->hosts)
      hosts.push_back(host.find(':') == std::string::npos ? fmt::format("{}:{}", host, each)
                                                          : host);
    add({comm::is_open_mpi() ? "-H" : "-hosts", fmt::format("{}", fmt::join(hosts, ","))});
    // Other machines know nothing of this one's environment.
    for (const char* name : {"TF_CONFIG", "DATA_DIR", "OMP_WAIT_POLICY", "PATH", "LD_LIBRARY_PATH"})
      if (comm::is_open_mpi() && std::getenv(name) != nullptr) add({"-x", name});
    const std::string& interface = cluster->interface;
    if (!interface.empty() && comm::is_open_mpi())
      add({"--mca", "btl_tcp_if_include", interface, "--mca", "oob_tcp_if_include", interface});
    if (!interface.empty() && !comm::is_open_mpi()) add({"-iface", interface});
    if (cluster->ssh_port > 0 && comm::is_open_mpi())
      add({"--mca", "plm_rsh_args", fmt::format("-p {}", cluster->ssh_port)});
  }
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

int launch(int ranks, std::span<const std::string> words, const std::optional<Cluster>& cluster) {
  const std::vector<std::string> command = launch_command(ranks, words, cluster);
  fmt::print("Starting {} ranks on {}: {} -n {} .. (--no-launch refuses)\n", ranks,
             cluster ? fmt::format("{}", fmt::join(cluster->hosts, " ")) : "this machine",
             command.front(), ranks);
  std::fflush(stdout);
  allow_root();
  const pid_t child = fork();
  if (child < 0)
    fail(ErrorKind::Io, "cannot start {}: {}", command.front(),
         std::generic_category().message(errno));
  if (child == 0) become(command);
  g_launcher = child;
  forward_signals();
  const int code = wait_for(child);
  if (code == 127)
    fail(ErrorKind::Io,
         "cannot run {}: install an MPI, start millrace by your own launcher, or use --ranks 1",
         command.front());
  if (code == exit_code(ErrorKind::Preempted) && g_interrupted != 0)
    return exit_code(ErrorKind::Interrupted);
  if (code > 128)
    fail(ErrorKind::Peer,
         "a rank was ended by signal {}: the run can be restored from its last "
         "checkpoint",
         code - 128);
  return code;
}

int launch_ranks(const train::TrainConfig& config, const Invocation& invocation) {
  const pipeline::RankMap& map = config.pipeline.ranks;
  if (invocation.options.flag("no-launch"))
    fail(ErrorKind::Usage,
         "{} shards x {} replicas need {} processes, and --no-launch starts none: start them with "
         "mpirun or srun, or use --ranks 1",
         map.devices, map.replicas, map.ranks);
  const std::optional<Cluster> cluster = cluster_of(invocation.options, invocation.environment);
  if (cluster && cluster->task != 0) {
    fmt::print("Task {} has nothing to do: task 0 on {} starts all {} ranks.\n", cluster->task,
               cluster->hosts.front(), map.ranks);
    return 0;
  }
  return launch(map.ranks, invocation.words, cluster);
}

int run_on_all_ranks(const comm::World& world, const std::function<int()>& body) {
  if (world.size() == 1) return body();
  try {
    return body();
  } catch (const Error& error) {
    if (!world.failing_together()) {
      fmt::print(stderr, "millrace: error: rank {}: {}\n", world.rank(), error.what());
      world.abort(exit_code(error.kind()));
    }
    if (world.rank() == 0) fmt::print(stderr, "millrace: error: {}\n", error.what());
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    fmt::print(stderr, "millrace: error: rank {}: {}\n", world.rank(), error.what());
    world.abort(exit_code(ErrorKind::Internal));
  }
}

void pin_rank(const comm::World& world, int threads) {
  if (world.size() == 1) return;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
  const int cores = CPU_COUNT(&mask);
  if (cores < world.local_size() * threads) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  int number = 0;
  const int first = world.local_rank() * threads;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    if (number >= first && number < first + threads) CPU_SET(cpu, &own);
    ++number;
  }
  sched_setaffinity(0, sizeof own, &own);
}

}  // namespace millrace::cli
