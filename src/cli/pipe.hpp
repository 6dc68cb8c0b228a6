// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/atomic_file.hpp"

namespace millrace::cli {

/// Two ends that programs started by this one do not inherit.
struct Pipe {
  io::UniqueFd read;
  io::UniqueFd write;
};

/// Errors: Io.
[[nodiscard]] Pipe make_pipe();

}  // namespace millrace::cli
