// SPDX-License-Identifier: Apache-2.0
#include "core/machine_limits.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.hpp"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// The first word of a file as a number; nothing without a file, or for "max".
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::string word;
  std::ifstream(path) >> word;
  return parse_number<std::int64_t>(word);
}

/// The number after `key` in a file of lines "<key> <number>"; 0 without one.
std::int64_t number_after(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::int64_t number = 0;
  for (std::string word; file >> word;)
    if (word == key && file >> number) return number;
  return 0;
}

/// A place where control groups are mounted.
struct Mount {
  std::string group;        ///< the one that is seen at `place`: that of the container in one
  fs::path place;           ///< below the root that is read
  std::string controllers;  ///< "rw,cpu,cpuacct"; "" for version 2, which has all in one tree
};

/// A path of mountinfo, which writes spaces and the like as "\\040".
std::string unescaped(std::string_view text) {
  constexpr std::size_t kDigits = 3;
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1, kDigits);
    int code = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 8);
    const bool escaped = text[i] == '\\' && error == std::errc{} && end == digits.data() + kDigits;
    path += escaped ? static_cast<char>(code) : text[i];
    if (escaped) i += kDigits;
  }
  return path;
}

std::vector<Mount> mounts_in(const fs::path& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line);
    std::istringstream after(line.substr(dash + 3));
    std::string skipped;
    std::string group;
    std::string place;
    std::string type;
    std::string controllers;
    before >> skipped >> skipped >> skipped >> group >> place;
    after >> type >> skipped >> controllers;
    if (type != "cgroup" && type != "cgroup2") continue;
    mounts.push_back({.group = unescaped(group),
                      .place = root / fs::path(unescaped(place)).relative_path(),
                      .controllers = type == "cgroup2" ? "" : controllers});
  }
  return mounts;
}

bool has_controller(const std::string& list, std::string_view controller) {
  const std::vector<std::string> names = split_list(list);
  return std::ranges::find(names, controller) != names.end();
}

/// Calls `visit(folder, name)` with the process's group of a controller and all groups that hold
/// it, of both versions, as far as they are mounted.
using Visit = std::function<void(const fs::path&, const std::string&)>;
void visit_groups(const fs::path& root, std::string_view controller, const Visit& visit) {
  const std::vector<Mount> mounts = mounts_in(root);
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (!controllers.empty() && !has_controller(controllers, controller)) continue;
    // In a container the mount may begin at the container's group, and the path far above it.
    // Mounts of another namespace begin elsewhere: "/../..".
    const auto mount = std::ranges::find_if(mounts, [&](const Mount& m) {
      const bool same =
          controllers.empty() ? m.controllers.empty() : has_controller(m.controllers, controller);
      return same && (m.group == "/" || path == m.group || path.starts_with(m.group + "/"));
    });
    if (mount == mounts.end()) continue;
    const fs::path top = mount->group;
    fs::path rest = fs::path(path).lexically_relative(top);
    if (rest == ".") rest.clear();
    for (;; rest = rest.parent_path()) {
      visit(mount->place / rest, rest.empty() ? top.string() : (top / rest).string());
      if (rest.empty()) break;
    }
  }
}

/// The names of the files of one version.
struct MemoryFiles {
  const char* limit;
  const char* used;
  const char* cache;  ///< key in memory.stat of what is dropped first, of the groups below as well
};
constexpr MemoryFiles kMemoryFiles[] = {
    {"memory.max", "memory.current", "inactive_file"},
    {"memory.high", "memory.current", "inactive_file"},  // beyond it a process hardly moves
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
};

void lower_to(MemoryLimit& least, std::int64_t bytes, const std::string& group) {
  if (least.bytes == 0 || bytes < least.bytes) least = {.bytes = bytes, .group = group};
}

void limit_memory(MachineLimits& limits, const fs::path& folder, const std::string& group) {
  for (const MemoryFiles& files : kMemoryFiles) {
    const std::optional<std::int64_t> limit = number_in(folder / files.limit);
    if (!limit) continue;
    const std::int64_t used = number_in(folder / files.used).value_or(0) -
                              number_after(folder / "memory.stat", files.cache);
    lower_to(limits.memory, *limit, group);
    // Not 0, which would mean that it is unknown.
    lower_to(limits.free_memory,
             std::max<std::int64_t>(1, *limit - std::max<std::int64_t>(0, used)), group);
  }
}

void limit_cores(CoreLimit& limit, const fs::path& folder, const std::string& group) {
  std::optional<std::int64_t> quota = number_in(folder / "cpu.cfs_quota_us");
  std::optional<std::int64_t> period = number_in(folder / "cpu.cfs_period_us");
  if (std::ifstream file(folder / "cpu.max"); file) {  // "<quota> <period>", or "max <period>"
    std::string first;
    std::string second;
    file >> first >> second;
    quota = parse_number<std::int64_t>(first);
    period = parse_number<std::int64_t>(second);
  }
  if (!quota || *quota <= 0 || !period || *period <= 0) return;
  const double cores = static_cast<double>(*quota) / static_cast<double>(*period);
  if (cores < limit.cores) limit = {.cores = cores, .group = group};
}

}  // namespace

MachineLimits read_limits(const fs::path& root) {
  constexpr std::int64_t kUnit = 1024;
  MachineLimits limits;
  limits.machine_memory = kUnit * number_after(root / "proc/meminfo", "MemTotal:");
  limits.memory.bytes = limits.machine_memory;
  limits.machine_free = kUnit * number_after(root / "proc/meminfo", "MemAvailable:");
  limits.free_memory.bytes = limits.machine_free;
  visit_groups(root, "memory", [&](const fs::path& folder, const std::string& group) {
    limit_memory(limits, folder, group);
  });
  visit_groups(root, "cpu", [&](const fs::path& folder, const std::string& group) {
    limit_cores(limits.cores, folder, group);
  });
  return limits;
}

int whole_cores(int cores, const CoreLimit& limit) {
  return limit.cores < cores ? std::max(1, static_cast<int>(limit.cores)) : cores;
}

std::string describe_memory(const MachineLimits& limits) {
  const auto in = [](const std::string& group) {
    return group.empty() ? "" : fmt::format(" in the control group {}", group);
  };
  const std::string& free = limits.free_memory.group;
  const std::string& all = limits.memory.group;
  return fmt::format(
      "{} free{}, {} in all{}{}", human_bytes(limits.free_memory.bytes), in(free),
      human_bytes(limits.memory.bytes), all == free ? "" : in(all),
      all.empty() ? "" : fmt::format("; this machine has {}", human_bytes(limits.machine_memory)));
}

std::string describe_cores(int cores, int of_machine, const CoreLimit& limit) {
  const std::string some = fmt::format("{} of this machine's {}", cores, of_machine);
  if (limit.cores < cores + 1)
    return fmt::format("{}: the control group {} has the time of {:.4g}", some, limit.group,
                       limit.cores);
  return cores < of_machine ? some + ": the affinity mask has no others" : std::to_string(cores);
}

std::string host_name() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

int machine_cores() { return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }

int usable_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return whole_cores(CPU_COUNT(&mask), read_limits().cores);
}

}  // namespace millrace
