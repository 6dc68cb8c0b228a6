// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::cli {
namespace {

using train::TrainConfig;

std::vector<int> numbers_in(const Setting& given) {
  std::vector<int> numbers;
  for (const std::string& word : split_list(std::get<std::string>(given.value), ' ')) {
    const std::optional<int> number = parse_number<int>(word);
    if (!number || *number < 0)
      fail(ErrorKind::Usage, "{}: '{}' is neither AUTO nor a device number", given.where, word);
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
           "--threads-per-device {}, numbered from 0",
           where, number, machine.cores, sets, threads);
}

/// Scratch limits of the vendor library's kernels in bytes, from --available-memory-proportion:
/// empty when not given, one number, or two per stage. The memory of a device is --device-memory,
/// or else its own, or else the machine's: not a rank's share of it, as the limits choose kernels,
/// and every layout has the same bits.
std::vector<std::int64_t> scratch_caps(Reader& read, const MachineFacts& machine,
                                       const TrainConfig& config) {
  std::vector<std::int64_t> caps;
  const Setting* given = read.options().find("available-memory-proportion");
  if (given == nullptr) return caps;
  const std::int64_t told = device_memory(read);
  const std::int64_t memory = told > 0 ? told : machine.device_memory.value_or(machine.memory);
  for (const std::string& word : split_list(read.text("available-memory-proportion"), ' ')) {
    const std::optional<double> share = parse_number<double>(word);
    if (!share || !(*share > 0.0) || *share > 1.0)
      fail(ErrorKind::Usage, "{}: '{}' is not a number above 0 and at most 1", given->where, word);
    caps.push_back(static_cast<std::int64_t>(*share * static_cast<double>(memory)));
  }
  const std::size_t stages = config.pipeline.ranges.size();
  if (caps.size() != 1 && (stages < 2 || caps.size() != 2 * stages))
    fail(ErrorKind::Usage, "{}: {} numbers for {} stage(s); give one, or two per stage",
         given->where, caps.size(), stages);
  return caps;
}

/// The options about cuDNN's kernels. Where it does not compute they are neither read nor recorded,
/// so that a run which is restored on another machine does not need the file of its table there.
void resolve_kernels(Reader& read, const MachineFacts& machine, TrainConfig& config,
                     Notices& notices) {
  const Options& options = read.options();
  const std::string file = options.text("kernel-table").value_or("none");
  const bool varies = options.flag("allow-nondeterministic");
  read.use("kernel-table");
  read.use("allow-nondeterministic");
  if (!machine.has_cudnn) {
    constexpr std::string_view kNone = "has no effect here: cuDNN does not compute in this build";
    if (varies)
      notices.push_back(fmt::format("{} {}, whose kernels always sum in the same order",
                                    read.where("allow-nondeterministic"), kNone));
    if (file != "none") notices.push_back(fmt::format("{} {}", read.where("kernel-table"), kNone));
    return;
  }
  if (varies) config.kernels.allow_nondeterministic = read.note("allow-nondeterministic", true);
  if (file == "none") return;
  config.kernel_table = std::filesystem::absolute(file).lexically_normal();
  read.note("kernel-table", config.kernel_table.string());
  if (std::error_code error; !std::filesystem::exists(config.kernel_table, error))
    fail(ErrorKind::Usage,
         "{}: there is no file {}: give its new place, or --kernel-table none to let cuDNN choose "
         "its kernels",
         read.where("kernel-table"), config.kernel_table.string());
  config.kernels.table = std::make_shared<const KernelTable>(
      parse_kernel_table(io::read_text(config.kernel_table, kMaxTableBytes), file));
}

/// The devices that --select-ipus names, by replica and device of the pipeline; empty for AUTO.
/// They are not recorded, because the run may be restored on another machine.
std::vector<int> device_numbers(Reader& read, const MachineFacts& machine,
                                const TrainConfig& config, Notices& notices) {
  const Setting* given = read.options().find("select-ipus");
  if (given == nullptr) return {};
  read.use("select-ipus");
  if (to_lower(std::get<std::string>(given->value)) == "auto") return {};
  std::vector<int> numbers = numbers_in(*given);
  const pipeline::RankMap& map = config.pipeline.ranks;
  const auto devices =
      static_cast<std::size_t>(map.devices) * static_cast<std::size_t>(map.replicas);
  if (devices == 1 && numbers.size() == 2) {
    notices.push_back(fmt::format("{}: validation runs on the training device, {}", given->where,
                                  numbers.front()));
    numbers.pop_back();
  }
  if (numbers.size() == 1)
    while (numbers.size() < devices) numbers.push_back(numbers.back() + 1);
  if (numbers.size() != devices)
    fail(ErrorKind::Usage,
         "{}: {} numbers for {} device(s) ({} shards x {} replicas); give one per device, or the "
         "first of consecutive ones",
         given->where, numbers.size(), devices, map.devices, map.replicas);
  check_cores(numbers, machine, config.threads, given->where);
  return numbers;
}

/// First and last weight update of a trace.
void resolve_traced_steps(const Options& options, const std::string& steps, TrainConfig& config) {
  const std::string spelled = options.spelling("profile-steps");
  const std::vector<std::string> pieces = split_list(steps);
  const auto number = [](const std::string& text) {
    return parse_number<std::int64_t>(text).value_or(0);
  };
  const bool two = pieces.size() == 2;
  config.trace_first = two ? number(pieces[0]) : 0;
  config.trace_last = two ? number(pieces[1]) : 0;
  if (config.trace_first > config.iterations)
    fail(ErrorKind::Usage, "{}: the run has {} weight updates, but the trace would start at {}",
         spelled, config.iterations, config.trace_first);
  if (config.trace_first < 1 || config.trace_last < config.trace_first)
    fail(ErrorKind::Usage,
         "{}: '{}' is not the first and last weight update of a trace; example: 5,8", spelled,
         steps);
}

/// What the profiles of the IPU trainer contain, in the terms of our traces.
struct Profile {
  std::string_view name;
  train::TraceDetail detail;
  std::string_view shows;
};
constexpr std::array<Profile, 3> kProfiles = {{
    {"DEVICE_PROFILE", train::TraceDetail::Updates, "weight updates as a whole"},
    {"IPU_PROFILE", train::TraceDetail::Actions, "every action of each device"},
    {"TILE_PROFILE", train::TraceDetail::Kernels, "every action and every kernel of each device"},
}};

/// --gc-profile, if it asks for a profile.
const Profile* profile_of(const Options& options) {
  const std::string asked = options.text("gc-profile").value_or("NO_PROFILE");
  const auto* const found = std::ranges::find(kProfiles, asked, &Profile::name);
  return found == kProfiles.end() ? nullptr : found;
}

/// What asked for the profile. A hook of Habana's trainer stands for the value, too.
std::string profile_words(const Options& options) {
  const std::string spelled = options.spelling("gc-profile");
  return spelled == "--gc-profile" ? fmt::format("{} {}", spelled, *options.text("gc-profile"))
                                   : spelled;
}

void require_trace(const Options& options) {
  for (const char* name : {"profile-steps", "trace-kernels"})
    if (const Setting* const given = options.find(name))
      fail(ErrorKind::Usage, "{} has no effect here: it needs --trace FILE or --gc-profile",
           given->where);
}

void check_kernels(const TrainConfig& config) {
  if (config.trace_detail != train::TraceDetail::Kernels) return;
  if (config.check_exceptions)
    fail(ErrorKind::Usage,
         "kernels cannot be traced with --fp-exceptions, which checks the result of each and "
         "changes its time: leave one of them out");
  if (config.trace.extension() == ".svg")
    fail(ErrorKind::Usage,
         "--trace {}: drawings do not show kernels: give a file that does not end with .svg",
         config.trace.string());
}

/// The weight updates to trace and the file to write.
void resolve_trace(const Options& options, TrainConfig& config, Notices& notices) {
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
  if (options.flag("trace-kernels")) config.trace_detail = train::TraceDetail::Kernels;
  check_kernels(config);
  if (const std::optional<std::string> steps = options.text("profile-steps"))
    resolve_traced_steps(options, *steps, config);
}

/// Options for starting ranks do not affect the run itself. Errors: Usage for machines that a run
/// would leave out because it has one rank that nobody asked for.
void note_launching(Reader& read, const MachineFacts& machine, const TrainConfig& config,
                    Notices& notices) {
  for (const char* name : {"hosts", "ssh-port", "interface", "distributed"})
    if (read.given(name)) read.use(name);
  const Setting* const hosts = read.options().find("hosts");
  if (hosts == nullptr || machine.ranks > 0 || config.pipeline.ranks.ranks > 1) return;
  if (hosts->origin == Origin::CommandLine && !read.given("ranks"))
    fail(
        ErrorKind::Usage,
        "{} {}: the run has one rank, which stays on this machine: give --replicas or --shards for "
        "more, or leave {} out",
        hosts->where, to_string(hosts->value), hosts->where);
  notices.push_back(fmt::format(
      "{} has no effect here: the run has one rank, which stays on this machine", hosts->where));
}

}  // namespace

int ranks_here(const MachineFacts& machine, const TrainConfig& config) {
  return std::max(1, machine.ranks > 0 ? machine.local_ranks : config.pipeline.ranks.ranks);
}

void resolve_devices(Reader& read, const MachineFacts& machine, TrainConfig& config,
                     Notices& notices) {
  note_launching(read, machine, config, notices);
  resolve_trace(read.options(), config, notices);
  config.scratch_caps = scratch_caps(read, machine, config);
  resolve_kernels(read, machine, config, notices);
  config.device_numbers = device_numbers(read, machine, config, notices);
}

}  // namespace millrace::cli
