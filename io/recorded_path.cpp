// SPDX-License-Identifier: Apache-2.0
#include "io/recorded_path.hpp"

#include <fmt/format.h>

#include <string>
#include <system_error>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/checkpoint.hpp"
#include "io/hdf5.hpp"
#include "io/hdf5_in_child.hpp"
#include "io/manifest.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

/// Whether the file is an export of millrace to HDF5 or a part of a checkpoint.
bool is_own_hdf5(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return false;
  try {
    const std::string answer = hdf5_in_child(file, ErrorKind::Checkpoint, [&file] {
      return std::string(Hdf5Reader(file).has("parameters") ? "own" : "");
    });
    return !answer.empty();
  } catch (const Error&) {  // of another program, or no HDF5 at all
    return false;
  }
}

std::string remedy_for(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name != "config.toml" && name != kManifestName && !is_own_hdf5(file))
    return fmt::format("millrace import {} RUN_DIR makes a run of the weights in it; give that run",
                       shell_word(file.string()));
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  return list_checkpoints(folder).empty()
             ? "give the run that millrace wrote it from"
             : fmt::format("give {}, where it lies", shell_word(folder.string()));
}

}  // namespace

void require_recorded_directory(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return;
  if (path.empty())
    fail(ErrorKind::Usage, "the path of the run is empty: give a run directory or a checkpoint");
  if (!fs::exists(path, ignored))
    fail(ErrorKind::Usage, "{}: no such directory: give a run directory or a checkpoint",
         path.string());
  fail(ErrorKind::Usage, "{}: is a file, not a run: {}", path.string(), remedy_for(path));
}

}  // namespace millrace::io
