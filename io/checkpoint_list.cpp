// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/checkpoint_layout.hpp"
#include "io/manifest.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) fail_io("list", directory, error.value());
  return entries;
}

bool has_manifest(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(directory / kManifestName, ignored);
}

bool is_replaced(const fs::path& path) {
  return path.filename().string().ends_with(kReplacedSuffix);
}

// The name that a `.replaced` checkpoint had.
fs::path successor_of(const fs::path& replaced) { return fs::path(replaced).replace_extension(); }

bool is_listed(const fs::path& path) {
  if (!iteration_in(path.filename().string()) || !has_manifest(path)) return false;
  return !is_replaced(path) || !has_manifest(successor_of(path));
}

bool is_alive(std::int64_t process) {
  return ::kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH;
}

// Temporary directories of this process or of dead ones, and checkpoints whose successor is in
// place.
bool is_leftover(const fs::path& path) {
  const auto process = process_in(path.filename().string());
  if (process) return *process == ::getpid() || !is_alive(*process);
  return is_replaced(path) && has_manifest(path) && has_manifest(successor_of(path));
}

// Why a checkpoint cannot be used, or the reader.
struct Attempt {
  std::optional<CheckpointReader> reader;
  std::string complaint;
};

Attempt try_open(const fs::path& path) {
  try {
    return {CheckpointReader(path), ""};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Checkpoint) throw;
    return {std::nullopt, error.what()};
  }
}

}  // namespace

std::vector<fs::path> list_checkpoints(const fs::path& directory) {
  std::error_code ignored;
  if (has_manifest(directory)) return {directory};
  const fs::path inner = directory / "checkpoints";
  const fs::path& folder = fs::is_directory(inner, ignored) ? inner : directory;
  if (!fs::is_directory(folder, ignored)) return {};
  std::vector<fs::path> found = entries_of(folder);
  std::erase_if(found, [](const fs::path& path) { return !is_listed(path); });
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return iteration_in(a.filename().string()) < iteration_in(b.filename().string());
  });
  return found;
}

CheckpointReader open_newest(const fs::path& directory, std::vector<std::string>& complaints) {
  std::vector<fs::path> candidates = list_checkpoints(directory);
  std::reverse(candidates.begin(), candidates.end());
  const std::size_t earlier = complaints.size();
  for (const fs::path& path : candidates) {
    Attempt attempt = try_open(path);
    if (attempt.reader) return std::move(*attempt.reader);
    complaints.push_back(std::move(attempt.complaint));
  }
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    fail(ErrorKind::Checkpoint, "{}: no such directory", directory.string());
  }
  if (candidates.empty()) {
    fail(ErrorKind::Checkpoint, "{}: there is no checkpoint in it", directory.string());
  }
  fail(ErrorKind::Checkpoint, "{}: none of {} checkpoints can be used; the newest: {}",
       directory.string(), candidates.size(), complaints[earlier]);
}

void retire_checkpoints(const fs::path& checkpoints_directory, int keep) {
  for (const fs::path& path : entries_of(checkpoints_directory)) {
    if (!is_leftover(path)) continue;
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail_io("remove", path, error.value());
  }
  if (keep <= 0) return;
  std::vector<fs::path> found = list_checkpoints(checkpoints_directory);
  const auto newest_sound = std::find_if(found.rbegin(), found.rend(), [](const fs::path& path) {
    return try_open(path).reader.has_value();
  });
  const auto kept = std::min<std::ptrdiff_t>(keep, found.rend() - newest_sound);
  for (auto it = newest_sound + kept; it != found.rend(); ++it) remove_checkpoint(*it);
}

}  // namespace millrace::io
