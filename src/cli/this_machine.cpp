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
