// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/complete_parts.hpp"

namespace millrace::run {
namespace {

std::vector<int> numbers_in(const std::string& text, const std::string& where) {
  std::vector<int> numbers;
  for (const std::string& word : split_list(text, ' ')) {
    const std::optional<int> number = parse_number<int>(word);
    if (!number || *number < 0)
      fail(ErrorKind::Usage, "{}: '{}' is neither AUTO nor a device number", where, word);
    numbers.push_back(*number);
  }
  return numbers;
}

/// Checks that the numbered sets of cores exist. The driver checks the number of a GPU.
void check_cores(const std::vector<int>& numbers, const MachineFacts& machine, int threads,
                 const std::string& where) {
  if (machine.has_gpu) return;
  const int sets = machine.cores / threads;
  for (const int number : numbers)
    if (number >= sets)
      fail(ErrorKind::Usage,
           "{}: there is no device {}: the {} cores that this process may use form {} set(s) of "
           "`threads-per-device` {}, numbered from 0",
           where, number, machine.cores, sets, threads);
}

/// Scratch limits of the vendor library's kernels in bytes, from `available-memory-proportion`:
/// empty when not given, one number, or two per stage. The memory of a device is `device-memory`,
/// or else its own, or else the machine's: not a rank's share of it, as the limits choose kernels,
/// and every layout has the same bits.
std::vector<std::int64_t> scratch_caps(const MachineFacts& machine, const Run& config) {
  std::vector<std::int64_t> caps;
  const std::int64_t memory = config.device_memory > 0
                                  ? config.device_memory
                                  : machine.device_memory.value_or(machine.memory);
  for (const double share : config.layout.scratch_shares)
    caps.push_back(static_cast<std::int64_t>(share * static_cast<double>(memory)));
  const std::size_t stages = config.pipeline.ranges.size();
  if (caps.size() > 1 && (stages < 2 || caps.size() != 2 * stages))
    fail(ErrorKind::Usage,
         "`available-memory-proportion`: {} numbers for {} stage(s); give one, or two per stage",
         caps.size(), stages);
  return caps;
}

/// Where cuDNN does not compute, the option is not recorded.
void complete_kernels(const MachineFacts& machine, Run& config, Notices& notices) {
  if (machine.has_cudnn || !config.allow_nondeterministic) return;
  notices.emplace_back(
      "`allow-nondeterministic` has no effect here: cuDNN does not compute in this build, whose "
      "kernels always sum in the same order");
  config.allow_nondeterministic = false;
}

/// The devices that `select-ipus` names, by replica and device of the pipeline; empty for AUTO.
/// They are not recorded, because the run may be restored on another machine.
std::vector<int> device_numbers(const MachineFacts& machine, const Run& config, Notices& notices) {
  if (config.layout.devices.empty() || to_lower(config.layout.devices) == "auto") return {};
  const std::string where = "`select-ipus`";
  std::vector<int> numbers = numbers_in(config.layout.devices, where);
  const pipeline::RankMap& map = config.pipeline.ranks;
  const auto devices =
      static_cast<std::size_t>(map.devices) * static_cast<std::size_t>(map.replicas);
  if (devices == 1 && numbers.size() == 2) {
    notices.push_back(
        fmt::format("{}: validation runs on the training device, {}", where, numbers.front()));
    numbers.pop_back();
  }
  if (numbers.size() == 1)
    while (numbers.size() < devices) numbers.push_back(numbers.back() + 1);
  if (numbers.size() != devices)
    fail(ErrorKind::Usage,
         "{}: {} numbers for {} device(s) ({} shards x {} replicas); give one per device, or the "
         "first of consecutive ones",
         where, numbers.size(), devices, map.devices, map.replicas);
  check_cores(numbers, machine, config.threads, where);
  return numbers;
}

/// First and last weight update of a trace.
void complete_traced_steps(const std::string& steps, Run& config) {
  const std::vector<std::string> pieces = split_list(steps);
  const auto number = [](const std::string& text) {
    return parse_number<std::int64_t>(text).value_or(0);
  };
  const bool two = pieces.size() == 2;
  config.trace_first = two ? number(pieces[0]) : 0;
  config.trace_last = two ? number(pieces[1]) : 0;
  if (config.trace_first > config.iterations)
    fail(ErrorKind::Usage,
         "`profile-steps`: the run has {} weight updates, but the trace would start at {}",
         config.iterations, config.trace_first);
  if (config.trace_first < 1 || config.trace_last < config.trace_first)
    fail(ErrorKind::Usage,
         "`profile-steps`: '{}' is not the first and last weight update of a trace; example: 5,8",
         steps);
}

/// What the profiles of the IPU trainer contain, in the terms of our traces.
struct Profile {
  std::string_view name;
  TraceDetail detail;
  std::string_view shows;
};
constexpr std::array<Profile, 3> kProfiles = {{
    {"DEVICE_PROFILE", TraceDetail::Updates, "weight updates as a whole"},
    {"IPU_PROFILE", TraceDetail::Actions, "every action of each device"},
    {"TILE_PROFILE", TraceDetail::Kernels, "every action and every kernel of each device"},
}};

/// `gc-profile`, if it asks for a profile.
const Profile* profile_of(const Patch& options) {
  const std::string asked = options.text("gc-profile").value_or("NO_PROFILE");
  const auto* const found = std::ranges::find(kProfiles, asked, &Profile::name);
  return found == kProfiles.end() ? nullptr : found;
}

/// What asked for the profile. A hook of Habana's trainer, which is not spelled like the field,
/// stands for the value, too.
std::string profile_words(const Patch& options) {
  const bool own = options.find("gc-profile")->where.find('(') == std::string::npos;
  return own ? fmt::format("`gc-profile` {}", *options.text("gc-profile")) : "`gc-profile`";
}

void require_trace(const Patch& options) {
  for (const char* name : {"profile-steps", "trace-kernels"})
    if (const Setting* const given = options.find(name))
      fail(ErrorKind::Usage, "{} has no effect here: it needs `trace` FILE or `gc-profile`",
           given->where);
}

void check_kernels(const Run& config) {
  if (config.trace_detail != TraceDetail::Kernels) return;
  if (config.check_exceptions)
    fail(ErrorKind::Usage,
         "kernels cannot be traced with `fp-exceptions`, which checks the result of each and "
         "changes its time: leave one of them out");
  if (config.trace.extension() == ".svg")
    fail(ErrorKind::Usage,
         "`trace` {}: drawings do not show kernels: give a file that does not end with .svg",
         config.trace.string());
}

std::string cores_of(const MachineFacts& machine) {
  return machine.cores == 1 ? "only core" : fmt::format("{} cores", machine.cores);
}

/// Tells if the `local` ranks of this machine, or their threads, share its cores.
void note_turns(const MachineFacts& machine, const Run& config, int local, Notices& notices) {
  if (local > machine.cores)
    notices.push_back(fmt::format("{} ranks share the {} of this machine and take turns", local,
                                  cores_of(machine)));
  else if (const std::int64_t threads = std::int64_t{local} * config.threads;
           threads > machine.cores && !machine.has_gpu)
    notices.push_back(
        fmt::format("{} threads share the {} of this machine and take turns, which is much slower: "
                    "`threads-per-device` {} gives each thread a core",
                    threads, cores_of(machine), std::max(1, machine.cores / local)));
}

/// What gives something to do to all processes that a launcher started.
std::string replicas_remedy(const MachineFacts& machine, const pipeline::RankMap& map) {
  if (machine.ranks % map.devices != 0) return "";
  return fmt::format(
      "; `replicas` {} gives all of them work, as `distributed` does for the workers in TF_CONFIG",
      machine.ranks / map.devices);
}

}  // namespace

void check_hosts(const Patch& given, const MachineFacts& machine, const Run& config,
                 Notices& notices) {
  const Setting* const hosts = given.find("hosts");
  if (hosts == nullptr || machine.ranks > 0 || config.pipeline.ranks.ranks > 1) return;
  if (hosts->origin == Origin::CommandLine && !config.layout.ranks)
    fail(
        ErrorKind::Usage,
        "{} {}: the run has one rank, which stays on this machine: give `replicas` or `shards` for "
        "more, or leave {} out",
        hosts->where, to_string(hosts->value), hosts->where);
  notices.push_back(fmt::format(
      "{} has no effect here: the run has one rank, which stays on this machine", hosts->where));
}

int ranks_here(const MachineFacts& machine, const Run& config) {
  return std::max(1, machine.ranks > 0 ? machine.local_ranks : config.pipeline.ranks.ranks);
}

void complete_trace(const Patch& options, Run& config, Notices& notices) {
  const Profile* const profile = profile_of(options);
  std::optional<std::string> file = options.text("trace");
  // A name without a directory is placed in the run directory, which is not known yet.
  if (!file && profile != nullptr) file = "trace.json";
  if (!file) return require_trace(options);
  config.trace = *file;
  // The first updates of this process, which may continue a run.
  config.trace_first = 0;
  config.trace_last = 10;
  if (profile != nullptr) {
    config.trace_detail = profile->detail;
    config.trace_last = 1;
    notices.push_back(fmt::format("{}: {} shows {}, for Perfetto", profile_words(options), *file,
                                  profile->shows));
  }
  if (options.flag("trace-kernels")) config.trace_detail = TraceDetail::Kernels;
  check_kernels(config);
  if (const std::optional<std::string> steps = options.text("profile-steps"))
    complete_traced_steps(*steps, config);
}

void complete_devices(const MachineFacts& machine, Run& config, Notices& notices) {
  config.scratch_caps = scratch_caps(machine, config);
  complete_kernels(machine, config, notices);
  config.device_numbers = device_numbers(machine, config, notices);
}

void complete_ranks(const MachineFacts& machine, Run& config, Notices& notices) {
  pipeline::RankMap& map = config.pipeline.ranks;
  const std::int32_t devices = map.all_devices();
  std::vector<std::int32_t>& shares = config.layout.rank_shares;
  std::vector<double>& speeds = config.layout.rank_speeds;
  // A supervisor starts as many as there is room for.
  if (config.layout.elastic && machine.ranks > 0) {
    config.layout.ranks.reset();
    if (std::ssize(shares) != machine.ranks) shares.clear();
    if (std::ssize(speeds) != machine.ranks) speeds.clear();
  }
  // Recorded only when given: a restored run may have another number of processes.
  const std::int64_t wanted = config.layout.ranks.value_or(machine.ranks > 0 ? machine.ranks
                                                           : shares.empty()  ? devices
                                                                             : std::ssize(shares));
  if (machine.ranks > 0 && wanted != machine.ranks)
    fail(ErrorKind::Config,
         "{} processes were started, but `ranks` is {}: start that number, or leave `ranks` out",
         machine.ranks, wanted);
  if (wanted > devices)
    fail(ErrorKind::Config,
         "{} ranks, but only {} device(s) ({} shards x {} replicas): at most one rank for each{}",
         wanted, devices, map.devices, map.replicas, replicas_remedy(machine, map));
  if (!shares.empty() &&
      (std::ssize(shares) != wanted || std::accumulate(shares.begin(), shares.end(), 0) != devices))
    fail(ErrorKind::Config,
         "`devices-of-ranks` {} are {} devices of {} ranks, but the run has {} ({} shards x {} "
         "replicas) of {}",
         join(shares, " "), std::accumulate(shares.begin(), shares.end(), 0), shares.size(),
         devices, map.devices, map.replicas, wanted);
  if (!speeds.empty() && std::ssize(speeds) != wanted)
    fail(ErrorKind::Config, "`speeds-of-ranks` {}: {} numbers for {} rank(s); give one for each",
         join(speeds, " "), speeds.size(), wanted);
  map.shares = shares;
  map.ranks = static_cast<std::int32_t>(wanted);
  const int local = ranks_here(machine, config);
  config.threads = config.layout.threads.value_or(threads_of_rank(machine, local));
  note_turns(machine, config, local, notices);
}

}  // namespace millrace::run
