// SPDX-License-Identifier: Apache-2.0
//
// Open MPI keeps files while it runs: those of its session in the temporary directory, and those of
// the memory that ranks share in /dev/shm. Both stay when its processes are killed. So they get
// folders of their own here, which go when the launcher has ended, or with the next launcher's
// start when this program was killed, too.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"

namespace millrace::cli {

/// A folder that is removed with the object, and, once no process holds it any more, by
/// remove_abandoned().
class HeldFolder {
 public:
  /// Makes "<base>/millrace-mpi-<random>". Errors: Io, when nothing can be written there, too.
  explicit HeldFolder(const std::filesystem::path& base);
  HeldFolder(HeldFolder&& other) noexcept;
  HeldFolder& operator=(HeldFolder&&) = delete;
  ~HeldFolder();
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Removes the folders below `base` whose processes have all ended. Never fails.
  static void remove_abandoned(const std::filesystem::path& base);

 private:
  std::filesystem::path path_;
  io::UniqueFd lock_;  ///< held by the processes that are started, too
};

class LauncherPlace {
 public:
  /// Errors: Io, naming TMPDIR.
  LauncherPlace();
  /// What tells Open MPI's launcher of it.
  [[nodiscard]] std::vector<std::string> words() const;

 private:
  std::vector<HeldFolder>
      folders_;  ///< of the session, and of shared memory where there is a place
};

}  // namespace millrace::cli
