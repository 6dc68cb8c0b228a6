// SPDX-License-Identifier: Apache-2.0
#include "cli/launch.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "cli/command_line.hpp"
#include "cli/launcher_end.hpp"
#include "cli/launcher_output.hpp"
#include "cli/launcher_place.hpp"
#include "cli/supervisor.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "millrace_places.hpp"
#include "train/progress.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

/// Environment variables that ranks use. Those of one machine are not among them: on another one,
/// the numbers in CUDA_VISIBLE_DEVICES mean other GPUs, and its scheduler sets its own.
/// --select-ipus chooses the same GPUs everywhere.
constexpr std::array kVariables = {
    "TF_CONFIG",        "MULTI_HLS_IPS",    "MPI_TCP_INCLUDE",    "DATA_DIR",        "NO_COLOR",
    "MILLRACE_RUN_DIR", "MILLRACE_MAX_ISA", "ONEDNN_MAX_CPU_ISA", "OMP_WAIT_POLICY", "PATH",
    "LD_LIBRARY_PATH",  "DNNL_MAX_CPU_ISA", "MILLRACE_MESSAGES",  "GOMP_SPINCOUNT"};

/// Whether a variable is one of NCCL's settings, which have to be equal on all ranks.
/// NCCL_HOSTID is the name of one machine.
bool is_nccl_setting(std::string_view name) {
  return name.starts_with("NCCL_") && name != "NCCL_HOSTID";
}

/// The names of the variables above and of NCCL's settings that this process has.
std::vector<std::string> set_variables() {
  std::vector<std::string> names;
  for (const char* const name : kVariables)
    if (std::getenv(name) != nullptr) names.emplace_back(name);
  const std::size_t first = names.size();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (is_nccl_setting(name)) names.emplace_back(name);
  }
  std::sort(names.begin() + static_cast<std::ptrdiff_t>(first), names.end());
  return names;
}

/// The launcher of the MPI library that this program was built with, unless the environment names
/// another one.
std::string launcher() {
  const char* const named = std::getenv("MILLRACE_MPIEXEC");
  return named != nullptr && *named != '\0' ? named : kMpiexec;
}

/// The file of this program. Errors: Usage, if another one has its place, as after an upgrade.
std::string own_file() {
  constexpr const char* kOwn = "/proc/self/exe";
  std::string path = std::filesystem::read_symlink(kOwn).string();
  if (io::file_identity(path) == io::file_identity(kOwn)) return path;
  fail(ErrorKind::Usage,
       "{}: was replaced or removed while it ran: restore the run with the new one",
       path.substr(0, path.find(" (deleted)")));
}

}  // namespace

std::vector<std::string> environment_lines() {
  std::vector<std::string> lines;
  for (const std::string& name : set_variables())
    if (const char* const value = std::getenv(name.c_str()); value != nullptr && name != "PATH")
      lines.push_back(fmt::format("Environment: {}={}", name, shell_word(value)));
  return lines;
}

namespace {

/// Whether all hosts are names of this machine.
bool lies_here(const Cluster& cluster) {
  return cluster.interface.empty() && std::ranges::all_of(cluster.hosts, [](std::string_view host) {
           return names_this_machine(name_of_host(host));
         });
}

}  // namespace

std::vector<std::string> launch_command(int ranks, std::span<const std::string> words,
                                        const std::optional<Cluster>& cluster) {
  std::vector<std::string> command = {launcher(), "-n", std::to_string(ranks)};
  const auto add = [&](std::initializer_list<std::string> more) {
    command.insert(command.end(), more);
  };
  // Ranks pin themselves and print their own messages. A rank that waits for a message yields its
  // core to the threads that read its images.
  if (comm::is_open_mpi())
    add({"--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"});
  // Settings of Open MPI, unless the user has made them.
  const auto prefer = [&](const std::string& name, const std::string& value) {
    if (comm::is_open_mpi() && std::getenv(("OMPI_MCA_" + name).c_str()) == nullptr)
      add({"--mca", name, value});
  };
  if (cluster) {
    // Ranks that hear nothing of a host say where they stand before the launcher ends them.
    constexpr int kOpenMpis = 300;
    prefer("oob_tcp_keepalive_time", std::to_string(std::max(kOpenMpis, cluster->hang_timeout)));
    add({comm::is_open_mpi() ? "-H" : "-hosts", join(with_room(*cluster, ranks), ",")});
    // Other machines do not inherit this environment.
    if (comm::is_open_mpi()) {
      for (const std::string& name : set_variables()) add({"-x", name});
      add({"-x", fmt::format("{}=1", kLaunchedVariable)});
    }
    const std::string& interface = cluster->interface;
    if (!interface.empty() && comm::is_open_mpi())
      add({"--mca", "btl_tcp_if_include", interface, "--mca", "oob_tcp_if_include", interface});
    if (!interface.empty() && !comm::is_open_mpi()) add({"-iface", interface});
    if (cluster->ssh_port > 0 && comm::is_open_mpi())
      add({"--mca", "plm_rsh_args", agent_arguments(*cluster)});
  }
  if (comm::is_open_mpi() && (!cluster || lies_here(*cluster))) {
    // Starts ranks here and nowhere else, also in an allocation of several machines. The other ways
    // of Open MPI want ssh, or their scheduler, even for this.
    add({"--mca", "plm", "isolated"});
    // They share memory, and need no port that others can reach.
    prefer("btl", comm::reaches_cuda_memory() ? "self,vader,smcuda" : "self,vader");
  }
  command.push_back(own_file());
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

namespace {

/// Open MPI refuses to run as root unless told twice. Whoever started this program as root has
/// already decided.
void allow_root() {
  if (geteuid() != 0) return;
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
}

/// Tells what starts. Standard output belongs to the ranks, which may print JSON.
void announce(const std::vector<std::string>& command, int ranks,
              const std::optional<Cluster>& cluster, run::Verbosity verbosity) {
  if (verbosity == run::Verbosity::Quiet) return;
  print_error(fmt::format("Starting {} ranks on {} (--no-launch prevents this)", ranks,
                          cluster ? join(cluster->hosts, " ") : "this machine"));
  if (cluster)
    if (const std::vector<std::string> left = hosts_without_rank(*cluster, ranks); !left.empty())
      print_error(fmt::format("{}: no rank, as the run has only {}", join(left, ", "), ranks));
  if (verbosity != run::Verbosity::Verbose) return;
  std::vector<std::string> words(command.size());
  std::ranges::transform(command, words.begin(), shell_word);
  print_error(join(words, " "));
}

}  // namespace

std::vector<std::string> RanksToStart::hosts() const {
  return cluster ? hosts_by_rank(*cluster, plan.ranks.ranks) : std::vector<std::string>{};
}

LauncherEnd start_ranks(const RanksToStart& start, const std::function<int()>& received,
                        const Supervision& supervision) {
  const int ranks = start.plan.ranks.ranks;
  const std::optional<Cluster>& cluster = start.cluster;
  std::vector<std::string> command = launch_command(ranks, start.words, cluster);
  std::optional<LauncherPlace> place;
  if (comm::is_open_mpi()) place.emplace().enter(command, cluster.has_value());
  announce(command, ranks, cluster, start.verbosity);
  allow_root();
  setenv(kStartVariable, start_to_pass_on().c_str(), 1);
  setenv(kLaunchedVariable, "1", 1);
  if (const training::Terminal terminal = training::terminal_of(stderr); terminal.rewrites_lines)
    setenv(training::kTerminalVariable, training::terminal_text(terminal).c_str(), 1);
  return run_launcher(command, received, supervision, start.to_begin);
}

namespace {

/// Restricts this process to those of its cores whose index among them is `wanted`.
void keep_cores(const std::function<bool(int)>& wanted) {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  int place = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    if (wanted(place)) CPU_SET(cpu, &own);
    ++place;
  }
  sched_setaffinity(0, sizeof own, &own);
}

}  // namespace

int launch_ranks(const run::Run& config, const Invocation& invocation,
                 const std::function<int()>& received) {
  const pipeline::RankMap& map = config.pipeline.ranks;
  if (invocation.options.flag("no-launch"))
    fail(ErrorKind::Usage,
         "{} shards x {} replicas need {} processes, but --no-launch starts none: start them with "
         "mpirun or srun, or use --ranks 1",
         map.devices, map.replicas, map.ranks);
  const std::optional<Cluster> cluster = cluster_of(invocation.options, invocation.environment);
  if (cluster && cluster->task != 0) {
    fmt::print("Task {} has nothing to do: task 0 on {} starts all {} ranks.\n", cluster->task,
               printable(cluster->hosts.front()), map.ranks);
    return 0;
  }
  if (invocation.options.flag("elastic")) return supervise(config, invocation, cluster, received);
  if (cluster) check_room(*cluster, map.ranks);
  const RanksToStart start{config.pipeline, invocation.words, cluster, config.verbosity};
  return meaning_of(start_ranks(start, received), launcher(), start.plan, start.hosts());
}

StartupWatch::StartupWatch(const Patch& options) {
  if (!comm::started_by_launcher()) return;
  if (comm::launched_rank() == 0 && std::getenv(kLaunchedVariable) != nullptr)
    print_error(kRanksBegin);
  watchdog_.emplace(comm::launched_rank(),
                    static_cast<int>(options.value<std::int64_t>("hang-timeout")),
                    training::Watchdog::grace(options.flag("elastic")));
}

void report_error(const Error& raised, std::string_view place) {
  const Error error = respelled(raised, Patch(), {});  // fields that nothing has spelled so far
  print_error(fmt::format("millrace: error: {}{}", place, error.what()));
  if (error.table().empty()) return;
  for (const std::string& line : split_list(error.table(), '\n')) print_error(line);
}

namespace {

/// Only one of the tasks says so.
int refuse_separate_tasks(int tasks) {
  if (comm::launched_rank() == 0)
    report_error(
        Error(ErrorKind::Usage,
              fmt::format(
                  "srun started {} tasks, but did not join them by MPI, so that each would do all "
                  "of the work: use srun --mpi=pmix or SLURM_MPI_TYPE=pmix (srun --mpi=list shows "
                  "what there is), or mpirun instead of srun, or one task (srun -n 1)",
                  tasks)));
  return exit_code(ErrorKind::Usage);
}

}  // namespace

int run_on_all_ranks(const comm::World& world, const Invocation& invocation,
                     const std::function<int()>& body) {
  if (const int tasks = comm::separate_tasks(world); tasks > 0) return refuse_separate_tasks(tasks);
  const auto tell = [&](int code) {
    if (comm::started_by_launcher() && world.rank() == 0 &&
        std::getenv(kLaunchedVariable) != nullptr)
      print_error(fmt::format("{}{}", kRanksEnd, code));
    return code;
  };
  if (world.size() == 1) return tell(body());
  try {
    return tell(body());
  } catch (...) {
    const Error error = respelled(current_error(), invocation.options, invocation.spellings);
    if (!world.failing_together()) {
      report_error(error, fmt::format("rank {}: ", world.rank()));
      world.abort(exit_code(error.kind()));
    }
    if (world.rank() == 0) report_error(error);
    return tell(exit_code(error.kind()));
  }
}

void pin_rank(const comm::World& world, int threads) {
  // Where a control group limits time, not places, other processes have the cores as well.
  const auto cores = static_cast<int>(device::core_numbers().size());
  if (world.size() == 1 || usable_cores() < cores || cores < world.local_size() * threads) return;
  keep_cores([&](int place) { return place / threads == world.local_rank(); });
}

void pin_rank(const comm::World& world, const run::Run& config) {
  if (!device::computes_on_cores()) return;
  const std::vector<int> numbers = training::device_numbers_of(config, world.rank());
  if (numbers.empty()) return pin_rank(world, config.threads);
  keep_cores([&](int place) {
    return std::find(numbers.begin(), numbers.end(), place / config.threads) != numbers.end();
  });
}

}  // namespace millrace::cli
