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

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.hpp"

namespace millrace::io {

/// Content of a dataset's header.
struct StoredDataset {
  std::vector<std::byte> type;  ///< the message that describes an element
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> chunk;  ///< extents of a chunk; empty: not stored as Hdf5Writer does
  std::uint32_t element_bytes = 0;
  std::uint64_t chunks_at = 0;  ///< the root of the B-tree of the chunks
  std::string type_name;        ///< the attribute `dtype`, or ""
};

/// A chunk of a dataset: the indices of its first element, and the address of its bytes.
struct StoredChunk {
  std::span<const std::int64_t> begin;
  std::uint64_t address;
};

class Hdf5Structure {
 public:
  /// Opens a file, which stays open. Errors of all functions: Checkpoint.
  explicit Hdf5Structure(const std::filesystem::path& path);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// The dataset called `name`, e.g. "/parameters/b0/conv/kernel".
  [[nodiscard]] StoredDataset find(const std::string& name);
  /// Visits each chunk of the dataset that find() returned for `name`, in index order. A missing
  /// chunk is an error.
  void visit_chunks(const std::string& name, const StoredDataset& dataset,
                    const std::function<void(const StoredChunk&)>& visit);
  /// Fills `out` with the bytes at `address`.
  void read(std::uint64_t address, std::span<std::byte> out, std::string_view name) const;

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

  void count(std::uint64_t bytes, std::string_view name);
  void require_apart(std::string_view name) const;
  [[nodiscard]] std::vector<std::byte> bytes_at(std::uint64_t address, std::uint64_t count,
                                                std::string_view name) const;
  [[nodiscard]] Header header_at(std::uint64_t address, std::string_view name) const;
  [[nodiscard]] const Group& group_at(std::uint64_t address, std::string_view name);
  void read_links(std::uint64_t node, std::optional<unsigned> level, Links links,
                  std::string_view name);
  void read_symbols(std::uint64_t node, Links links, std::string_view name);

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
