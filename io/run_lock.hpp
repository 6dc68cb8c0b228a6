// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

#include "io/atomic_file.hpp"

namespace millrace::io {

/// Exclusive use of a run directory, or of another that is written (`what`, for the message), for
/// as long as the object lives: an flock on `RUN_DIR/.lock`, which holds the owner's process
/// number. The kernel drops the lock when its owner dies, so nothing has to be cleaned up. Errors:
/// Usage, naming the holder, when the directory is in use; Io.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_directory,
                   std::string_view what = "run directory");

 private:
  UniqueFd file_;
};

}  // namespace millrace::io
