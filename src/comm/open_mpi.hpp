// SPDX-License-Identifier: Apache-2.0
//
// What only Open MPI needs.
#pragma once

#include <chrono>
#include <cstdint>

namespace millrace::comm {

/// Messages to another machine of up to this many bytes leave at once. MPI would announce a larger
/// one, and send it when the receiver has answered; so nobody sends one.
inline constexpr std::int64_t kEagerBytes = 1 << 20;

/// Sets this limit for Open MPI's TCP, whose own is 64 KiB, in the environment of this process,
/// before MPI starts. Does nothing if one of the two variables that it needs is set.
void prefer_eager_messages();

/// If Open MPI's daemon started this process, ends the daemon `grace` after this call, unless it
/// has ended by then, and removes its files. On a host that is cut off it waits for its network for
/// a quarter of an hour and longer. Call it just before the process ends, from any thread; it
/// returns at once.
void end_daemon_after(std::chrono::seconds grace);

/// From now on, ends this process with code 124, and Open MPI's daemon that started it, if a signal
/// stops the daemon for half a minute: MPI_Finalize would wait for it for ever.
void watch_daemon() noexcept;

}  // namespace millrace::comm
