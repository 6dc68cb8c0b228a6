// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <system_error>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/hdf5.hpp"
#include "io/manifest.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "ckpt-";
constexpr std::string_view kTemporaryInfix = ".tmp.";

// Accepts only the shortest form: ckpt-007 must not be another name of ckpt-7.
std::optional<std::int64_t> as_number(std::string_view text) {
  const std::optional<std::int64_t> number = parse_number<std::int64_t>(text);
  if (!number || *number < 0 || std::to_string(*number) != text) return std::nullopt;
  return number;
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  if (error) fail_io("list", directory, error.value());
  return entries;
}

// Also true if the file system does not tell: reading the manifest then says why.
bool has_manifest(const fs::path& directory) {
  std::error_code error;
  return fs::exists(directory / kManifestName, error) || error;
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

// Temporary directories of this process or of dead ones, and replaced checkpoints whose successor
// exists.
bool is_leftover(const fs::path& path) {
  const auto process = process_in(path.filename().string());
  if (process) return *process == ::getpid() || !process_lives(*process);
  return is_replaced(path) && has_manifest(path) && has_manifest(successor_of(path));
}

// A reader, or the reason why the checkpoint cannot be used.
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

// Maximum listings of a directory whose checkpoints a running training replaces: a checkpoint may
// be removed before it is opened, and a listing may miss both the old and the new one.
constexpr int kListings = 10;

struct NewestAttempt {
  std::optional<CheckpointReader> reader;
  std::vector<std::string> complaints;  ///< about newer, damaged ones
  bool retired = false;                 ///< a checkpoint was removed before it could be read
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
  require_recorded_directory(directory);
  fail(ErrorKind::Checkpoint,
       "{}: contains no checkpoint: give a run directory with a saved checkpoint, or a checkpoint",
       directory.string());
}

}  // namespace

std::string checkpoint_name(std::int64_t iteration) { return fmt::format("ckpt-{}", iteration); }

std::string temporary_name(std::string_view name, std::int64_t process) {
  return fmt::format(".{}{}{}", name, kTemporaryInfix, process);
}

std::string part_name(int number) { return fmt::format("part-{:03}.h5", number); }

std::string dataset_path(const TensorInfo& info) {
  switch (info.role) {
    case TensorRole::Parameter:
      return "/parameters/" + info.name;
    case TensorRole::State:
      return "/state/" + info.name;
    case TensorRole::Slot:
      return "/slots/" + info.name;
  }
  return info.name;
}

std::optional<std::int64_t> iteration_in(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  if (name.ends_with(kReplacedSuffix)) name.remove_suffix(kReplacedSuffix.size());
  return as_number(name);
}

std::optional<std::int64_t> process_in(std::string_view name) {
  if (!name.starts_with('.')) return std::nullopt;
  name.remove_prefix(1);
  const std::size_t infix = name.find(kTemporaryInfix);
  if (infix == std::string_view::npos || !iteration_in(name.substr(0, infix))) return std::nullopt;
  return as_number(name.substr(infix + kTemporaryInfix.size()));
}

// Removes a directory that is a leftover by its name. Over NFS a file that a process of this
// machine has open stays in it under another name until it is closed: then a later call removes it.
void remove_leftover(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error && error != std::errc::directory_not_empty &&
      error != std::errc::device_or_resource_busy)
    fail_io("remove", path, error.value());
}

void remove_checkpoint(const fs::path& checkpoint) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(checkpoint, error))) return;
  const fs::path doomed =
      checkpoint.parent_path() / temporary_name(checkpoint.filename().string(), ::getpid());
  fs::remove_all(doomed, error);
  fs::rename(checkpoint, doomed, error);
  if (error) fail_io("remove", checkpoint, error.value());
  remove_leftover(doomed);
}

bool holds_leftovers_alone(const fs::path& checkpoints) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(checkpoints, error))) return false;
  const std::vector<fs::path> entries = entries_of(checkpoints);
  return std::ranges::all_of(entries, [](const fs::path& path) {
    return process_in(path.filename().string()).has_value();
  });
}

std::vector<fs::path> list_checkpoints(const fs::path& directory) {
  std::error_code ignored;
  if (has_manifest(directory)) return {directory};
  std::vector<fs::path> found;
  for (const fs::path& folder : {directory / "checkpoints", directory}) {
    if (!found.empty() || !fs::is_directory(folder, ignored)) continue;
    found = entries_of(folder);
    std::erase_if(found, [](const fs::path& path) { return !is_listed(path); });
  }
  std::ranges::sort(found, {},
                    [](const fs::path& path) { return iteration_in(path.filename().string()); });
  return found;
}

std::vector<fs::path> sound_checkpoints(std::vector<fs::path> paths,
                                        std::vector<std::string>& complaints) {
  std::erase_if(paths, [&](const fs::path& path) {
    Attempt attempt = try_open(path);
    if (!attempt.reader) complaints.push_back(std::move(attempt.complaint));
    return !attempt.reader;
  });
  return paths;
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
    fail(ErrorKind::Checkpoint, "{}; use another checkpoint of the run, or the run directory",
         newest.complaints.front());
  fail(ErrorKind::Checkpoint,
       "{}: all of its checkpoints ({}) are damaged: restore a copy, or start a new run. The "
       "newest: {}",
       directory.string(), newest.complaints.size(), newest.complaints.front());
}

std::optional<CheckpointReader> CheckpointWalk::next() {
  for (;;) {
    while (at_ < found_.size()) {
      const fs::path& path = found_[at_++];
      Attempt attempt = try_open(path);
      any_ = any_ || attempt.reader.has_value();
      if (attempt.reader) return std::move(attempt.reader);
      if (has_manifest(path)) complaints_ += (complaints_.empty() ? "" : "; ") + attempt.complaint;
    }
    if (!complaints_.empty()) throw Error(ErrorKind::Checkpoint, complaints_);
    if (any_) return std::nullopt;
    if (listings_++ == kListings) fail_without_checkpoint(directory_);
    found_ = list_checkpoints(directory_);
    at_ = 0;
  }
}

namespace {

void remove_dead_writes(const fs::path& checkpoints_directory) {
  for (const fs::path& path : entries_of(checkpoints_directory))
    if (is_leftover(path)) remove_leftover(path);
}

enum class State { Unknown, Damaged, Skipping, Healthy };

// A checkpoint that may be kept. It is read at most once, and only if that matters.
struct Candidate {
  fs::path path;
  std::int64_t iteration = *iteration_in(path.filename().string());
  State state = State::Unknown;
  bool stays = false;
};

State state_of(Candidate& candidate) {
  if (candidate.state != State::Unknown) return candidate.state;
  const Attempt attempt = try_open(candidate.path);
  if (!attempt.reader) return candidate.state = State::Damaged;
  const bool healthy = attempt.reader->header().skipped_in_row == 0;
  return candidate.state = healthy ? State::Healthy : State::Skipping;
}

bool is_sound(Candidate& candidate) { return state_of(candidate) != State::Damaged; }
bool is_healthy(Candidate& candidate) { return state_of(candidate) == State::Healthy; }

// Keeps the first `count` for which `holds` is true.
template <class Holds>
void keep_first(std::span<Candidate> candidates, int count, Holds holds) {
  for (Candidate& candidate : candidates) {
    if (count == 0) return;
    if (!holds(candidate)) continue;
    candidate.stays = true;
    --count;
  }
}

}  // namespace

void retire_checkpoints(const fs::path& checkpoints_directory, const Retention& retention) {
  remove_dead_writes(checkpoints_directory);
  if (retention.keep <= 0) return;
  std::vector<Candidate> candidates;
  for (fs::path& path : list_checkpoints(checkpoints_directory))
    candidates.push_back({.path = std::move(path)});
  std::ranges::reverse(candidates);  // the newest first
  const auto accuracy_of = [&](const Candidate& candidate) {
    const auto found = retention.validated.find(candidate.iteration);
    return found == retention.validated.end() ? std::optional<double>() : found->second;
  };
  const auto is_validated = [&](Candidate& candidate) {
    return accuracy_of(candidate) && is_sound(candidate);
  };
  keep_first(candidates, retention.keep, is_sound);
  keep_first(candidates, 1, is_healthy);
  keep_first(candidates, 1, is_validated);
  std::ranges::stable_sort(candidates, std::greater{}, accuracy_of);
  if (retention.keep_best) keep_first(candidates, 1, is_validated);
  // Damaged checkpoints do not count, but are never removed.
  for (const Candidate& candidate : candidates)
    if (!candidate.stays && candidate.state != State::Damaged) remove_checkpoint(candidate.path);
}

namespace {

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
