// SPDX-License-Identifier: Apache-2.0
//
// Damaged files can crash the HDF5 library or keep it busy for ever (1.10.8). A file whose bytes
// were not compared with a checksum of ours is therefore read in a child process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/error.hpp"

namespace millrace::io {

/// What a child may use.
struct ChildLimits {
  std::uint64_t seconds = 0;  ///< of processor time; ten times as many on the clock
  std::uint64_t bytes = 0;    ///< of memory, besides what this process has mapped
};

/// Returns what `read` returns, which runs in a child process. The child is a fork: it has a copy
/// of all memory, but no other threads. So `read` may use the HDF5 library, read files and compute,
/// but not use MPI, devices or OpenMP, nor wait for a lock that another thread may hold. What it
/// prints is lost. The limits, unless given, are far above what a file of this size needs.
/// Errors: those of `read`; `kind`, naming the file, if the child crashes or needs more than its
/// limits; Io if no child can be started.
[[nodiscard]] std::string hdf5_in_child(const std::filesystem::path& file, ErrorKind kind,
                                        const std::function<std::string()>& read,
                                        std::optional<ChildLimits> limits = std::nullopt);

}  // namespace millrace::io
