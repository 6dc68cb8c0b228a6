// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
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

// Temporary directories of this process or of dead ones, and checkpoints whose successor is in
// place.
bool is_leftover(const fs::path& path) {
  const auto process = process_in(path.filename().string());
  if (process) return *process == ::getpid() || !process_lives(*process);
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

// How often a directory is listed in which a training replaces the checkpoints that are being read:
// one may be gone before it is opened, and a listing may miss the old one and the new one.
constexpr int kListings = 10;

struct NewestAttempt {
  std::optional<CheckpointReader> reader;
  std::vector<std::string> complaints;  ///< of damaged ones that are newer
  bool retired = false;                 ///< one was gone before it could be read
};

NewestAttempt try_newest(const std::vector<fs::path>& ascending) {
  NewestAttempt newest;
  for (auto path = ascending.rbegin(); path != ascending.rend(); ++path) {
    Attempt attempt = try_open(*path);
    newest.reader = std::move(attempt.reader);
    if (newest.reader) return newest;
    if (!has_manifest(*path)) {
      newest.retired = true;
      return newest;
    }
    newest.complaints.push_back(std::move(attempt.complaint));
  }
  return newest;
}

[[noreturn]] void fail_without_checkpoint(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    fail(ErrorKind::Checkpoint,
         "{}: no such directory: give the directory of a run, or a checkpoint", directory.string());
  }
  fail(ErrorKind::Checkpoint,
       "{}: there is no checkpoint in it: give the directory of a run that has saved one, or a "
       "checkpoint",
       directory.string());
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
  NewestAttempt newest;
  for (int listing = 0; listing < kListings; ++listing) {
    newest = try_newest(list_checkpoints(directory));
    if (newest.reader || (!newest.retired && !newest.complaints.empty())) break;
  }
  complaints.insert(complaints.end(), newest.complaints.begin(), newest.complaints.end());
  if (newest.reader) return std::move(*newest.reader);
  if (newest.complaints.empty()) fail_without_checkpoint(directory);
  if (has_manifest(directory))
    fail(ErrorKind::Checkpoint, "{}; take another checkpoint of its run, or the run directory",
         newest.complaints.front());
  fail(
      ErrorKind::Checkpoint,
      "{}: nothing can be restored, as each of its checkpoints ({}) is damaged: bring back a copy, "
      "or begin a new run. The newest: {}",
      directory.string(), newest.complaints.size(), newest.complaints.front());
}

void visit_checkpoints(const fs::path& directory,
                       const std::function<void(const CheckpointReader&)>& visit) {
  for (int attempt = 0; attempt < kListings; ++attempt) {
    const std::vector<fs::path> found = list_checkpoints(directory);
    bool any = false;
    std::string complaint;  // the sound ones are shown first
    for (const fs::path& path : found) {
      const Attempt opened = try_open(path);
      if (opened.reader) {
        visit(*opened.reader);
        any = true;
      } else if (has_manifest(path)) {
        complaint += (complaint.empty() ? "" : "; ") + opened.complaint;
      }
    }
    if (!complaint.empty()) throw Error(ErrorKind::Checkpoint, complaint);
    if (any) return;
  }
  fail_without_checkpoint(directory);
}

void retire_checkpoints(const fs::path& checkpoints_directory, int keep) {
  for (const fs::path& path : entries_of(checkpoints_directory)) {
    if (!is_leftover(path)) continue;
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail_io("remove", path, error.value());
  }
  if (keep <= 0) return;
  const std::vector<fs::path> found = list_checkpoints(checkpoints_directory);
  int left = keep;
  bool healthy_kept = false;
  for (auto path = found.rbegin(); path != found.rend(); ++path) {
    if (left == 0 && healthy_kept) {
      remove_checkpoint(*path);
      continue;
    }
    const Attempt attempt = try_open(*path);
    if (!attempt.reader) continue;  // damaged: of no use, and none that counts
    const bool healthy = attempt.reader->header().skipped_in_row == 0;
    if (left == 0 && !healthy) {
      remove_checkpoint(*path);
      continue;
    }
    left = std::max(0, left - 1);
    healthy_kept = healthy_kept || healthy;
  }
}

}  // namespace millrace::io
