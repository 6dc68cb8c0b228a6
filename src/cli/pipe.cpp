// SPDX-License-Identifier: Apache-2.0
#include "cli/pipe.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "core/error.hpp"

namespace millrace::cli {

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    fail(ErrorKind::Io, "cannot create a pipe: {}", std::generic_category().message(errno));
  return {.read = io::UniqueFd(ends[0]), .write = io::UniqueFd(ends[1])};
}

}  // namespace millrace::cli
