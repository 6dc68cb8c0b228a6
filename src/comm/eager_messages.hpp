// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::comm {

/// Messages to another machine of up to this many bytes leave at once. MPI announces a larger one,
/// and sends it when the receiver has answered.
inline constexpr std::int64_t kEagerBytes = 1 << 20;

/// Sets this limit for Open MPI's TCP, whose own is 64 KiB, in the environment of this process,
/// before MPI starts. Does nothing if one of the two variables that it needs is set.
void prefer_eager_messages();

}  // namespace millrace::comm
