// SPDX-License-Identifier: Apache-2.0
#include "core/error.hpp"

#include <fmt/format.h>

namespace millrace {

int exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::Internal:
      return 70;
    case ErrorKind::Usage:
    case ErrorKind::Config:
      return 2;
    case ErrorKind::Data:
      return 3;
    case ErrorKind::Numeric:
      return 4;
    case ErrorKind::Io:
      return 5;
    case ErrorKind::Checkpoint:
      return 6;
    case ErrorKind::Peer:
      return 7;
    case ErrorKind::Preempted:
      return 75;
    case ErrorKind::Watchdog:
      return 124;
    case ErrorKind::Interrupted:
      return 130;
  }
  return 70;
}

void fail_with(ErrorKind kind, fmt::string_view format, fmt::format_args args) {
  throw Error(kind, fmt::vformat(format, args));
}

}  // namespace millrace
