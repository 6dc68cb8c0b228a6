// SPDX-License-Identifier: Apache-2.0
#include "io/data/file_pool.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "io/atomic_file.hpp"
#include "io/data/byte_window.hpp"

namespace millrace::io {
namespace {

// Half of the process's limit: logs, sockets and checkpoints need descriptors, too.
std::int64_t descriptors_to_keep() {
  constexpr rlim_t kAtMost = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<std::int64_t>(std::min(limit.rlim_cur, kAtMost) / 2);
}

}  // namespace

FilePool::FilePool(std::vector<std::filesystem::path> paths)
    : paths_(std::move(paths)),
      open_(std::make_unique<std::atomic<int>[]>(paths_.size())),
      may_open_(descriptors_to_keep()) {
  for (std::size_t i = 0; i < paths_.size(); ++i) open_[i] = -1;
}

FilePool::~FilePool() {
  for (std::size_t i = 0; i < paths_.size(); ++i)
    if (const int descriptor = open_[i]; descriptor >= 0) ::close(descriptor);
}

bool FilePool::keep(std::size_t file, int descriptor) const noexcept {
  if (may_open_.fetch_sub(1) > 0) {
    int none = -1;
    if (open_[file].compare_exchange_strong(none, descriptor)) return true;
  }
  may_open_.fetch_add(1);
  return false;
}

void FilePool::read(std::size_t file, std::uint64_t offset, std::span<std::byte> out) const {
  if (const int descriptor = open_[file]; descriptor >= 0) {
    read_exactly(descriptor, offset, out, paths_[file].native());
    return;
  }
  UniqueFd opened = open_file(paths_[file], O_RDONLY);
  read_exactly(opened.get(), offset, out, paths_[file].native());
  const int kept = ::fcntl(opened.get(), F_DUPFD_CLOEXEC, 0);
  if (kept >= 0 && !keep(file, kept)) ::close(kept);
}

}  // namespace millrace::io
