// SPDX-License-Identifier: Apache-2.0
#include "io/data/index_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/random.hpp"
#include "io/data/little_endian.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeadBytes = 20;
constexpr std::size_t kTailBytes = 4;
constexpr std::chrono::seconds kSilence{2};  // waiting time for a lock before a message
constexpr std::chrono::milliseconds kBetweenTries{20};
constexpr std::uint64_t kMaxCachedBytes = std::uint64_t{4} << 30;

// Root may write everywhere, but should not write to folders that are read-only for everybody.
bool is_read_only(const fs::path& folder) {
  constexpr fs::perms kWrite =
      fs::perms::owner_write | fs::perms::group_write | fs::perms::others_write;
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  return !error && fs::exists(status) && (status.permissions() & kWrite) == fs::perms::none;
}

// The folder itself unless it belongs to images, then the cache under a name with a hash of the
// folder's full path.
std::vector<fs::path> places_of(const IndexKind& kind, const fs::path& folder, Split split,
                                const fs::path& cache_folder) {
  const std::string name =
      fmt::format("millrace-{}{}", split == Split::Train ? "train" : "validation", kind.extension);
  std::vector<fs::path> places;
  if (kind.place == IndexPlace::BesideData) places.push_back(folder / name);
  if (cache_folder.empty()) return places;
  std::error_code error;
  fs::path full = fs::canonical(folder, error);
  if (error) full = fs::absolute(folder, error);
  const std::string last = full.filename().string();
  places.push_back(cache_folder / fmt::format("{}-{:016x}-{}", last.empty() ? "root" : last,
                                              hash_name(full.string()), name));
  return places;
}

std::vector<std::byte> read_if_possible(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return {};
  try {
    return read_file(path, kMaxCachedBytes);
  } catch (const Error&) {
    return {};
  }
}

// Whether the lock is acquired, or turns out to be impossible, within kSilence.
bool is_soon_locked(int directory) noexcept {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + kSilence;
  while (::flock(directory, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return true;
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(kBetweenTries);
  }
  return true;
}

// Writes the file to the first place that is writable.
IndexSource write_to_one(std::span<const fs::path> places, std::span<const std::byte> file,
                         const fs::path& folder) {
  std::string problem;
  for (const fs::path& place : places) {
    if (is_read_only(place.parent_path())) {
      problem = fmt::format("{} is read-only", place.parent_path().string());
      continue;
    }
    try {
      std::error_code ignored;
      fs::create_directories(place.parent_path(), ignored);
      write_file_atomically(place, std::array{file});
      return {.made = true, .place = place, .notices = {}};
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  IndexSource source{.made = true, .place = {}, .notices = {}};
  if (!problem.empty())
    source.notices.push_back(
        fmt::format("the index of {} is rebuilt every time: {}", folder.string(), problem));
  return source;
}

}  // namespace

std::vector<std::byte> seal(const IndexKind& kind, std::span<const std::byte> content) {
  MILLRACE_ASSERT(kind.magic.size() == 8);
  ByteWriter out;
  out.bytes().reserve(kHeadBytes + content.size() + kTailBytes);
  out.put_bytes(std::as_bytes(std::span(kind.magic)));
  out(kind.version, content.size());
  out.put_bytes(content);
  out.put(crc32c(out.bytes()));
  return std::move(out.bytes());
}

std::optional<std::span<const std::byte>> unseal(const IndexKind& kind,
                                                 std::span<const std::byte> file) {
  if (file.size() < kHeadBytes + kTailBytes) return {};
  ByteReader in(file);
  const auto magic = in.get_bytes(8);
  std::uint32_t version = 0;
  std::uint64_t length = 0;
  in(version, length);
  const bool ours = std::ranges::equal(magic, std::as_bytes(std::span(kind.magic)));
  if (!ours || version != kind.version || length != file.size() - kHeadBytes - kTailBytes)
    return {};
  const std::size_t end = file.size() - kTailBytes;
  if (load_little<std::uint32_t>(file.data() + end) != crc32c(file.first(end))) return {};
  return file.subspan(kHeadBytes, end - kHeadBytes);
}

IndexSource open_content(const IndexKind& kind, const fs::path& folder, Split split,
                         const IndexOptions& options,
                         const std::function<bool(std::span<const std::byte>)>& accept,
                         const std::function<std::vector<std::byte>()>& make) {
  const std::vector<fs::path> places = places_of(kind, folder, split, options.cache_folder);
  IndexSource source;
  const auto is_cached_at = [&](const fs::path& place) {
    const std::vector<std::byte> file = read_if_possible(place);
    const auto content = unseal(kind, file);
    if (!content || !accept(*content)) return false;
    source.place = place;
    return true;
  };
  if (std::ranges::any_of(places, is_cached_at)) return source;
  const UniqueFd lock = lock_folder(folder, options.tell);
  if (std::ranges::any_of(places, is_cached_at)) return source;
  return write_to_one(places, seal(kind, make()), folder);
}

UniqueFd lock_folder(const fs::path& folder, const TellCallback& tell) {
  UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || is_soon_locked(directory.get())) return directory;
  if (tell)
    tell(fmt::format(
        "waiting for another process that holds a lock on {}: it builds the index of this folder",
        folder.string()));
  while (::flock(directory.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  return directory;
}

}  // namespace millrace::io
