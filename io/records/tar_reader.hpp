// SPDX-License-Identifier: Apache-2.0
//
// Tar archives (POSIX ustar and pax, GNU): blocks of 512 bytes, a header and then the file's bytes.
// Read here are names, also long ones, and places of regular files; archives are not compressed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/records/byte_window.hpp"

namespace millrace::io {

/// A regular file in an archive: its bytes are those of the archive from `offset` on.
struct TarMember {
  std::string name;  ///< without folders
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const TarMember&, const TarMember&) = default;
};

struct TarListing {
  std::vector<TarMember> members;
  std::vector<std::string> links;  ///< names of links that lead to no member before them
};

/// The regular files of the archive in [begin, begin + bytes) of a file, in their order, hard links
/// among them as the files that they lead to. Errors: Data, naming file and offset, when a header
/// fails its checksum, a member is cut, or the end is missing; Io.
[[nodiscard]] TarListing list_tar(ByteWindow& file, std::uint64_t begin, std::uint64_t bytes);

}  // namespace millrace::io
