// SPDX-License-Identifier: Apache-2.0
#include "cli/this_machine.hpp"

#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "core/machine_limits.hpp"
#include "device/environment.hpp"
#include "ops/backend.hpp"

namespace millrace::cli {

bool may_use_threads(std::span<const std::string> words) {
  constexpr std::string_view kThreads = "threads-per-device";
  const auto command = std::ranges::find_if(command_table(), [&](const CommandSpec& spec) {
    return !words.empty() && spec.name == words.front();
  });
  if (command == command_table().end() || !find_field(kThreads)->taken_by(command->id) ||
      usable_cores() == 1)
    return false;
  const std::string option = "--" + std::string(kThreads);
  const auto given = std::ranges::find(words, option);
  const bool one = given != words.end() && given + 1 != words.end() && given[1] == "1";
  return !one && std::ranges::find(words, option + "=1") == words.end();
}

void wait_briefly(char** argv) {
  constexpr const char* kSpins = "GOMP_SPINCOUNT";
  if (std::getenv(kSpins) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  // Where a loader was asked to run this program, /proc/self/exe is the loader.
  if (::getauxval(AT_BASE) == 0) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || ::setenv(kSpins, "5000", 1) != 0) return;
  ::execv(program.c_str(), argv);
}

MachineFacts this_machine() {
  return {.cores = usable_cores(),
          .memory = read_limits().memory.bytes,
          .device_memory = device::total_memory(),
          .has_gpu = !device::computes_on_cores(),
          .copies_images = device::has_own_memory(),
          .has_cudnn = ops::has_nondeterministic()};
}

MachineFacts this_machine(const comm::World& world) {
  MachineFacts facts = this_machine();
  if (!comm::started_by_launcher()) return facts;
  // A launcher may have bound each rank to its own cores; otherwise the ranks share them.
  std::vector<int> cores = world.gather_here(device::core_numbers());
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  facts.cores = whole_cores(std::max(1, static_cast<int>(cores.size())), read_limits().cores);
  facts.ranks = world.size();
  facts.local_ranks = world.local_size();
  if (facts.local_ranks > facts.cores) world.share_cores();
  // Results depend on this number, so all machines use that of the one with the fewest cores.
  facts.threads =
      static_cast<int>(-world.maximum(-std::int64_t{std::max(1, facts.cores / facts.local_ranks)}));
  return facts;
}

std::string load_notice(double load, int cores) {
  if (load <= cores) return {};
  return fmt::format("{} {:.1f} on {} core(s): other programs slow what runs here", kLoadNotice,
                     load, cores);
}

std::string load_notice() {
  double load = 0.0;
  return ::getloadavg(&load, 1) == 1 ? load_notice(load, machine_cores()) : "";
}

void warn_of_load() {
  if (const std::string notice = load_notice(); !notice.empty()) print_error(notice);
}

}  // namespace millrace::cli
