// SPDX-License-Identifier: Apache-2.0
//
// What a process may use of its machine. /proc/meminfo and the affinity mask describe the machine;
// a container, a scheduler or systemd gives a process less than that by control groups. A group's
// limits hold for all groups below it, so the tightest of all ancestors counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace millrace {

/// An amount of memory, and the control group that limits it: "/kubepods/pod7", or "" where nothing
/// but the machine does.
struct MemoryLimit {
  std::int64_t bytes = 0;  ///< 0: unknown
  std::string group;
};

/// Processor time in cores, and the control group that limits it.
struct CoreLimit {
  double cores = std::numeric_limits<double>::infinity();
  std::string group;
};

struct MachineLimits {
  std::int64_t machine_memory = 0;  ///< bytes; 0: unknown
  std::int64_t machine_free = 0;    ///< bytes that are free whatever control groups say; 0: unknown
  MemoryLimit memory;               ///< all that the process may have
  MemoryLimit free_memory;  ///< what of it is free; caches that can be dropped count as free
  CoreLimit cores;
};

/// Reads the limits of this process from the file system below `root`: proc/meminfo, and of control
/// groups version 1 and 2 proc/self/cgroup, proc/self/mountinfo and what is mounted. What is
/// missing there sets no limit.
[[nodiscard]] MachineLimits read_limits(const std::filesystem::path& root = "/");

/// How many of `cores` cores the limit leaves busy: whole ones, at least one.
[[nodiscard]] int whole_cores(int cores, const CoreLimit& limit);

/// What is free, out of what, and which control groups say so: "1.90 GB free in the control group
/// /kubepods/pod7, 2.00 GB in all; this machine has 24.0 GB".
[[nodiscard]] std::string describe_memory(const MachineLimits& limits);
/// "2 of this machine's 16: the control group /kubepods/pod7 has the time of 2.5". `cores`: those
/// that are used.
[[nodiscard]] std::string describe_cores(int cores, int of_machine, const CoreLimit& limit);

/// The machine's name in its network; "?" if it has none.
[[nodiscard]] std::string host_name();

/// Number of cores that the machine has, whoever may use them.
[[nodiscard]] int machine_cores();

/// Number of cores that this process may keep busy: those of its affinity mask, as far as its
/// control groups let it.
[[nodiscard]] int usable_cores();

}  // namespace millrace
