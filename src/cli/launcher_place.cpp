// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher_place.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "millrace-mpi-";
constexpr const char* kSharedMemory = "/dev/shm";

[[noreturn]] void fail_place(const fs::path& base, int error) {
  fail(ErrorKind::Io,
       "{}: cannot write MPI's temporary files: {}: free space, or set TMPDIR to another directory",
       base.string(), std::generic_category().message(error));
}

/// Same order as in Open MPI.
fs::path temporary_base() {
  for (const char* const name : {"TMPDIR", "TEMP", "TMP"})
    if (const char* const value = std::getenv(name); value != nullptr && *value != '\0')
      return value;
  return "/tmp";
}

/// On a full disk folders can be created, but nothing can be written into them.
void require_room(const fs::path& folder, const fs::path& base) {
  const std::vector<std::byte> bytes(65536);
  const fs::path file = folder / "room";
  const io::UniqueFd handle(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const int error = handle.valid() ? io::write_at(handle.get(), bytes, 0) : errno;
  ::unlink(file.c_str());
  if (error == 0) return;
  ::rmdir(folder.c_str());
  fail_place(base, error);
}

/// Whether a folder is old enough that its creator must have locked it.
bool is_old(const fs::path& folder) {
  constexpr std::time_t kSeconds = 60;
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 && std::time(nullptr) - status.st_mtime > kSeconds;
}

}  // namespace

HeldFolder::HeldFolder(const fs::path& base) {
  std::string name = (base / fmt::format("{}XXXXXX", kPrefix)).string();
  if (::mkdtemp(name.data()) == nullptr) fail_place(base, errno);
  path_ = name;
  require_room(path_, base);
  // Inherited by the started processes, which hold it as long as they live.
  lock_ = io::UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY));
  if (lock_.valid()) (void)::flock(lock_.get(), LOCK_SH | LOCK_NB);
}

HeldFolder::HeldFolder(HeldFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

HeldFolder::~HeldFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void HeldFolder::remove_abandoned(const fs::path& base) {
  std::vector<fs::path> abandoned;
  std::error_code error;
  for (fs::directory_iterator entry(base, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    if (!path.filename().string().starts_with(kPrefix) || !is_old(path)) continue;
    const io::UniqueFd folder(
        ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder.valid() && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) abandoned.push_back(path);
  }
  for (const fs::path& path : abandoned) fs::remove_all(path, error);
}

LauncherPlace::LauncherPlace() {
  const fs::path base = temporary_base();
  HeldFolder::remove_abandoned(base);
  folders_.emplace_back(base);
  std::error_code ignored;
  if (!fs::is_directory(kSharedMemory, ignored)) return;
  HeldFolder::remove_abandoned(kSharedMemory);
  try {
    folders_.emplace_back(kSharedMemory);
  } catch (const Error&) {  // MPI uses another place, or reports why it cannot
  }
}

void LauncherPlace::enter(std::vector<std::string>& command, bool over_hosts) const {
  const std::string session = folders_.front().path().string();
  // Open MPI refuses its own setting for one machine, as its ranks there get that for all.
  if (over_hosts) {
    command.insert(command.begin(), {"env", "TMPDIR=" + session});
    return;
  }
  std::vector<std::string> words = {"--mca", "orte_tmpdir_base", session};
  if (folders_.size() > 1)
    words.insert(words.end(),
                 {"--mca", "btl_vader_backing_directory", folders_[1].path().string()});
  command.insert(command.begin() + 1, words.begin(), words.end());
}

}  // namespace millrace::cli
