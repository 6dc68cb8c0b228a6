// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace millrace::comm {

/// If Open MPI's daemon started this process, ends the daemon `grace` after this call, unless it
/// has ended by then. On a host that is cut off it waits for its network for a quarter of an hour
/// and longer. Call it just before the process ends, from any thread; it returns at once.
void end_daemon_after(std::chrono::seconds grace) noexcept;

}  // namespace millrace::comm
