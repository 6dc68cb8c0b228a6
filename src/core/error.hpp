// SPDX-License-Identifier: Apache-2.0
//
// src/core: basic types and functions for all other folders. Depends on the standard library, fmt
// and, inside json.cpp, nlohmann-json.
//
// error               one exception type; its kind determines the exit code of the process
// dtype, shape        storage types; the shape of one sample of an activation
// bfloat16, float16   the 16-bit storage types and their rounding
// random              counter-based random numbers and the keyed permutation, without hidden state
// crc32c, sha256      checksums of saved tensors; the digest of a model
// instruction_level   selects code for sse4.2, avx2 or avx512 at run time
// json                a JSON value with parser and writer
// clock               steady time, and the time since the command was started
// text                nearest match, human-readable sizes and durations, UTF-8, lists
//
// The other headers define small types that several folders share.
//
// Nothing here includes Kokkos, MPI or HDF5, so the tests of this folder take milliseconds and run
// under every sanitizer.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

/// Kind of an error: who has to act. Each kind has one exit code.
enum class ErrorKind {
  Internal,     ///< a bug in millrace (70)
  Usage,        ///< the command line (2)
  Config,       ///< a configuration file, or options that contradict each other (2)
  Data,         ///< a data set is missing or damaged (3)
  Numeric,      ///< the training diverged (4)
  Io,           ///< a file or directory cannot be read or written (5)
  Checkpoint,   ///< a checkpoint is incomplete or damaged (6)
  Peer,         ///< another rank failed (7)
  Preempted,    ///< stopped on request; can be restored (75)
  Watchdog,     ///< no progress (124)
  Interrupted,  ///< SIGINT (130)
};

/// Process exit code of a failure of this kind.
[[nodiscard]] int exit_code(ErrorKind kind) noexcept;

/// The project's only exception type. The message is one line: what failed, where, expected and
/// found value, what to do. A table of what is possible may follow, on lines of its own.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string table = {})
      : std::runtime_error(message), kind_(kind), table_(std::move(table)) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] const std::string& table() const noexcept { return table_; }

 private:
  ErrorKind kind_;
  std::string table_;
};

/// The exception that is being handled, as an Error: files that cannot be accessed are Io, lack of
/// memory is Config, anything unknown is Internal. Call it in a catch block.
[[nodiscard]] Error current_error();

/// Implementation of fail(), compiled once for all argument types.
[[noreturn]] void fail_with(ErrorKind kind, fmt::string_view format, fmt::format_args args);

/// Throws Error with a formatted message. Messages above 4,000 bytes lose their middle part.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  fail_with(kind, format, fmt::make_format_args(args...));
}

}  // namespace millrace

// ---- What follows is for the code of millrace itself, and is not installed.

namespace millrace {

/// Writes a line to standard error, with control characters as escapes: quoted input cannot steer
/// the terminal. Failures are ignored: they must not replace the error that is reported.
void print_error(std::string_view line) noexcept;

}  // namespace millrace

/// Throws an Internal error when an invariant of the program is broken; not for bad input. Active
/// in every build type, so keep it out of inner loops.
#define MILLRACE_ASSERT(condition)                                                               \
  do {                                                                                           \
    if (!(condition))                                                                            \
      ::millrace::fail(::millrace::ErrorKind::Internal, "{}:{}: broken invariant: {}", __FILE__, \
                       __LINE__, #condition);                                                    \
  } while (false)
