// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

#include "io/atomic_file.hpp"

namespace millrace::io {

/// Exclusive use of a run directory, or of another output directory (`what`, for the message), for
/// the lifetime of the object: an flock on `RUN_DIR/.lock`, which contains the owner's process id
/// and the time. The kernel releases the lock when its owner dies, so no cleanup is needed. Errors:
/// Usage, naming the holder, if the directory is still in use after four seconds; Io.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_directory,
                   std::string_view what = "run directory");

 private:
  UniqueFd file_;
};

}  // namespace millrace::io
