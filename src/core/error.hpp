// SPDX-License-Identifier: Apache-2.0
//
// src/core: what every other folder may rely on, written with the standard library and fmt alone.
//
// error      one exception type; its kind decides the exit code of the process
// dtype      storage types, and `shape` the per-sample extent of an activation
// bfloat16   the 16-bit storage type, rounding to nearest even
// random     counter-based random numbers and the keyed permutation: values, never hidden state
// crc32c, sha256   checksums of saved tensors and the digest of a model
// json       JSON as a value
// text       nearest match, human-readable bytes and durations
//
// Nothing here includes Kokkos, MPI or HDF5, so all of it is tested in milliseconds and under every
// sanitizer.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace millrace {

/// What went wrong, in the terms that decide who has to act; each kind has one exit code.
enum class ErrorKind {
  Internal,     ///< a broken promise of ours (70)
  Usage,        ///< the command line (2)
  Config,       ///< a configuration file, or options that contradict each other (2)
  Data,         ///< a data set is missing or damaged (3)
  Numeric,      ///< the training diverged (4)
  Io,           ///< a file or directory cannot be read or written (5)
  Checkpoint,   ///< a checkpoint is incomplete or damaged (6)
  Peer,         ///< another rank failed (7)
  Preempted,    ///< stopped on request, to be restored later (75)
  Watchdog,     ///< no progress (124)
  Interrupted,  ///< SIGINT (130)
};

/// Process exit code of a failure of this kind.
[[nodiscard]] int exit_code(ErrorKind kind) noexcept;

/// The one exception of the project. The message is one line: what failed, where, both values, what
/// to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// What fail does, once for all types of arguments.
[[noreturn]] void fail_with(ErrorKind kind, fmt::string_view format, fmt::format_args args);

/// Throws Error with a formatted message; of one beyond 4,000 bytes the middle is left out.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  fail_with(kind, format, fmt::make_format_args(args...));
}

}  // namespace millrace

/// Stops on a broken invariant of ours (never on bad input); kept in every build type, so it must
/// not stand in an inner loop.
#define MILLRACE_ASSERT(condition)                                                               \
  do {                                                                                           \
    if (!(condition))                                                                            \
      ::millrace::fail(::millrace::ErrorKind::Internal, "{}:{}: broken invariant: {}", __FILE__, \
                       __LINE__, #condition);                                                    \
  } while (false)
