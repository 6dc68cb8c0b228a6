// SPDX-License-Identifier: Apache-2.0
//
// Open MPI keeps files while it runs: session files in the temporary directory, and memory shared
// by ranks in /dev/shm. Both remain if its processes are killed. They are therefore put into
// separate folders, which are removed when the launcher has ended, or, if this program was killed
// too, when the next launcher starts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"

namespace millrace::cli {

/// A folder that is removed with the object, or by remove_abandoned() once no process holds it.
class HeldFolder {
 public:
  /// Creates "<base>/millrace-mpi-<random>". Errors: Io, also if nothing can be written there.
  explicit HeldFolder(const std::filesystem::path& base);
  HeldFolder(HeldFolder&& other) noexcept;
  HeldFolder& operator=(HeldFolder&&) = delete;
  ~HeldFolder();
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Removes the folders below `base` that no process holds any more. Never fails.
  static void remove_abandoned(const std::filesystem::path& base);

 private:
  std::filesystem::path path_;
  io::UniqueFd lock_;  ///< also held by the started processes
};

class LauncherPlace {
 public:
  /// Errors: Io, naming TMPDIR.
  LauncherPlace();
  /// Makes a command of Open MPI's launcher use the folders. Other machines do not have them:
  /// `over_hosts`, only the launcher's own session is put there.
  void enter(std::vector<std::string>& command, bool over_hosts) const;

 private:
  std::vector<HeldFolder> folders_;  ///< for the session, and for shared memory if possible
};

}  // namespace millrace::cli
