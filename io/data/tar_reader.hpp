// SPDX-License-Identifier: Apache-2.0
//
// Tar archives (POSIX ustar and pax, GNU): blocks of 512 bytes, a header and then the file's bytes.
// Reads names, including long ones, and offsets of regular files. Compressed archives are not
// supported.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/data/files.hpp"

namespace millrace::io {

/// A regular file in an archive; its bytes begin at `offset`.
struct TarMember {
  std::string name;  ///< without directories
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string folder = {};  ///< "a/b/", or "" at the top
  friend bool operator==(const TarMember&, const TarMember&) = default;
};

struct TarListing {
  std::vector<TarMember> members;
  std::vector<std::string> links;  ///< names of links without an earlier target in the archive
};

/// The regular files of an archive, in order. Links are listed with the offset of their target.
/// Errors: Data, naming file and offset, if a header fails its checksum, a member is truncated, the
/// end is missing, or the listed files have more than eight times the bytes of the archive; Io.
[[nodiscard]] TarListing list_tar(ByteWindow& file);

}  // namespace millrace::io
