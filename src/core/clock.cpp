// SPDX-License-Identifier: Apache-2.0
#include "core/clock.hpp"

#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace millrace {
namespace {

/// Seconds since the machine was started, also while it was asleep.
double seconds_since_boot() {
  timespec now{};
  if (::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0.0;
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// On the same clock, when this process was started; now, if the system does not say.
double start_of_process() {
  constexpr int kFieldsBefore = 19;  // between the name, which may contain spaces, and the time
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name = text.rfind(')');
  if (name == std::string::npos) return seconds_since_boot();
  std::istringstream fields(text.substr(name + 1));
  std::string skipped;
  for (int i = 0; i < kFieldsBefore; ++i) fields >> skipped;
  double ticks = 0.0;
  return fields >> ticks ? ticks / static_cast<double>(::sysconf(_SC_CLK_TCK))
                         : seconds_since_boot();
}

/// The start that the process which started this one has passed on, or that of this process.
double start_of_command() {
  const double own = start_of_process();
  const char* const passed = std::getenv(kStartVariable);
  char* end = nullptr;
  const double earlier = passed != nullptr ? std::strtod(passed, &end) : own;
  const bool valid = passed == nullptr || (end != passed && *end == '\0');
  return valid && earlier > 0.0 && earlier < own ? earlier : own;
}

}  // namespace

std::int64_t processor_nanoseconds() {
  timespec used{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0) return steady_nanoseconds();
  return std::int64_t{1'000'000'000} * used.tv_sec + used.tv_nsec;
}

double process_seconds() {
  static const double start = start_of_command();
  return seconds_since_boot() - start;
}

std::string start_to_pass_on() { return std::to_string(start_of_command()); }

}  // namespace millrace
