// SPDX-License-Identifier: Apache-2.0
//
// Reads the structure of an HDF5 file written by Hdf5Writer without the HDF5 library, which
// manipulated files can crash. Only the oldest format is supported ("HDF5 File Format
// Specification", version 3.0):
//
//   superblock 0 -> root group -> B-tree of the group -> nodes of symbols -> next group ..
//                                                                         -> header of a dataset
//   header of a dataset: messages with type, extents, chunk, filter, and the B-tree of its chunks
//
// Every offset and length is checked against the file before it is used, and memory is bounded by
// limits. Structures of a valid file do not overlap. So the structures read so far may not have
// more bytes in total than the file; otherwise the file is rejected. This makes the time linear in
// the file size.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {

/// What is being read, for messages: a tensor of a file, or "the file".
struct Hdf5Place {
  const std::string& path;
  std::string_view name;

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::Checkpoint, "{}: {}: {}", path, name,
         fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) const {
    refuse("the structure of the file is damaged: {}",
           fmt::format(format, std::forward<Args>(args)...));
  }
};

/// Reads consecutive numbers and strings of a structure. Errors: Checkpoint.
class Hdf5Cursor {
 public:
  Hdf5Cursor(std::span<const std::byte> bytes, const Hdf5Place& place)
      : rest_(bytes), place_(place) {}

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take_bytes(std::size_t count) {
    if (count > rest_.size()) place_.damaged("a record ends early");
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  void skip(std::size_t count) { (void)take_bytes(count); }
  void expect(std::string_view signature);
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  const Hdf5Place& place_;
};

enum class Hdf5Tree : std::uint8_t { Group = 0, Chunks = 1 };

/// The head of a node of a B-tree.
struct Hdf5Node {
  static constexpr std::size_t kHeadBytes = 24;
  unsigned level = 0;  ///< 0: leaf
  std::size_t entries = 0;
};

/// Content of a dataset's header.
struct StoredDataset {
  std::vector<std::byte> type;  ///< the message that describes an element
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> chunk;  ///< extents of a chunk; empty: not stored as Hdf5Writer does
  std::uint32_t element_bytes = 0;
  std::uint64_t chunks_at = 0;  ///< the root of the B-tree of the chunks
  std::string type_name;        ///< the attribute `dtype`, or ""
};

/// The structure of a file, which stays open. Errors of all functions: Checkpoint.
class Hdf5Structure {
 public:
  explicit Hdf5Structure(const std::filesystem::path& path);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// The dataset called `place.name`, e.g. "/parameters/b0/conv/kernel".
  [[nodiscard]] StoredDataset find(const Hdf5Place& place);
  /// Counts the bytes of the tree of this dataset's chunks, when it is read for the first time.
  void count_chunks(std::uint64_t tree_bytes, const Hdf5Place& place);
  /// Fills `out` with the bytes at `address`.
  void read(std::uint64_t address, std::span<std::byte> out, const Hdf5Place& place) const;
  /// The head of a B-tree's node, which must have `level`, if one is given.
  [[nodiscard]] Hdf5Node node_at(std::uint64_t address, Hdf5Tree tree,
                                 std::optional<unsigned> level, const Hdf5Place& place) const;

 private:
  enum class Link { Hard, Soft };
  struct Target {
    Link link = Link::Hard;
    std::uint64_t header = 0;
  };
  using Group = std::map<std::string, Target, std::less<>>;
  struct Message {
    std::uint16_t type;
    std::vector<std::byte> body;
  };
  struct Header {
    std::vector<Message> messages;
    std::uint64_t bytes = 0;
  };
  struct Links {
    Group& group;
    std::span<const std::byte> names;
  };

  void count(std::uint64_t bytes, const Hdf5Place& place);
  void require_apart(const Hdf5Place& place) const;
  [[nodiscard]] std::vector<std::byte> bytes_at(std::uint64_t address, std::uint64_t count,
                                                const Hdf5Place& place) const;
  [[nodiscard]] Header header_at(std::uint64_t address, const Hdf5Place& place) const;
  [[nodiscard]] const Group& group_at(std::uint64_t address, const Hdf5Place& place);
  void read_links(std::uint64_t node, std::optional<unsigned> wanted_level, Links links,
                  const Hdf5Place& place);
  void read_symbols(std::uint64_t node, Links links, const Hdf5Place& place);

  std::string path_;
  UniqueFd file_;
  std::uint64_t size_ = 0;
  std::uint64_t root_ = 0;                     ///< header of the root group
  std::map<std::uint64_t, Group> groups_;      ///< by their headers
  std::uint64_t links_ = 0;                    ///< in all groups so far
  std::set<std::string, std::less<>> found_;   ///< datasets whose header was read
  std::set<std::string, std::less<>> walked_;  ///< datasets whose chunks were read
  std::uint64_t counted_ = 0;                  ///< bytes of all structures so far
};

}  // namespace millrace::io
