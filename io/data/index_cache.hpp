// SPDX-License-Identifier: Apache-2.0
//
// Indices of data sets. They can be rebuilt from the data, and are cached beside it, or in the
// user's cache if the data's folder is not writable or holds the images themselves. The file of an
// index is
//
//   8 bytes  magic     4 bytes  version     8 bytes  length of the content
//   content            4 bytes  CRC-32C of all before
//
// A file that is damaged, of another version or about other data is ignored and rebuilt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/data/dataset.hpp"
#include "io/data/parallel.hpp"

namespace millrace::io {

/// Where an index is kept: beside shards if their folder is writable; or always in the user's
/// cache, because the folder belongs to the images.
enum class IndexPlace : std::uint8_t { BesideData, Cache };

/// A kind of index: eight letters, the version of its content, the end of its file's name.
struct IndexKind {
  std::string_view magic;
  std::uint32_t version = 1;
  std::string_view extension = ".index";
  IndexPlace place = IndexPlace::BesideData;
};

struct IndexOptions {
  unsigned threads = 0;                ///< 0: one per core
  std::filesystem::path cache_folder;  ///< the user's cache; may be empty
  ProgressCallback progress;           ///< in bytes of files, or in class folders
  TellCallback tell;                   ///< called when another process builds the index
};

/// The file of an index with this content.
[[nodiscard]] std::vector<std::byte> seal(const IndexKind& kind,
                                          std::span<const std::byte> content);
/// The content of such a file (a view into `file`); empty if the file is invalid.
[[nodiscard]] std::optional<std::span<const std::byte>> unseal(const IndexKind& kind,
                                                               std::span<const std::byte> file);

/// Where the content of an index comes from.
struct IndexSource {
  bool made = false;                 ///< false: read from a cached file
  std::filesystem::path place;       ///< the cached file; empty if it could not be written
  std::vector<std::string> notices;  ///< why it could not be written, for the user
};

/// Passes the content of cached indices about `folder` to `accept` until it returns true. If none
/// is accepted, writes what `make` returns to the first place that is writable. Without any place
/// nothing is kept. Several processes may call it at the same time. `folder` may also be a file.
[[nodiscard]] IndexSource open_content(
    const IndexKind& kind, const std::filesystem::path& folder, Split split,
    const IndexOptions& options, const std::function<bool(std::span<const std::byte>)>& accept,
    const std::function<std::vector<std::byte>()>& make);

/// How an index becomes the content of its file and comes back; empty for bytes that are none.
template <class Index>
struct IndexFormat {
  IndexKind kind;
  std::vector<std::byte> (*write)(const Index&);
  std::optional<Index> (*parse)(std::span<const std::byte>);
};

template <class Index>
struct OpenedIndex : IndexSource {
  Index index;
};

/// The index of a folder: a cached one that `is_current`, or what `make` returns.
template <class Index, class IsCurrent, class Make>
[[nodiscard]] OpenedIndex<Index> open_index(const IndexFormat<Index>& format,
                                            const std::filesystem::path& folder, Split split,
                                            const IndexOptions& options,
                                            const IsCurrent& is_current, const Make& make) {
  Index index;
  const auto accept = [&](std::span<const std::byte> content) {
    std::optional<Index> cached = format.parse(content);
    if (!cached || !is_current(*cached)) return false;
    index = std::move(*cached);
    return true;
  };
  IndexSource source = open_content(format.kind, folder, split, options, accept, [&] {
    index = make();
    return format.write(index);
  });
  return {std::move(source), std::move(index)};
}

/// A lock that lets only one process per machine at a time build the index of a folder; the others
/// wait and then find it. After two seconds of waiting `tell` is called once. Never fails: if the
/// file system has no locks, the work is done twice.
[[nodiscard]] UniqueFd lock_folder(const std::filesystem::path& folder,
                                   const TellCallback& tell = {});

}  // namespace millrace::io
