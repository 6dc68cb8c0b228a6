// SPDX-License-Identifier: Apache-2.0
//
// Indices and other files beside the data. The first byte of an input selects the reader of the
// rest: an index's content, an index's file, a folder's index, lines of a DALI .idx file, a tar
// archive.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "io/data/image_folder.hpp"
#include "io/data/record_index.hpp"
#include "io/tools/tar_reader.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace millrace::fuzz {
namespace {

using namespace io;

constexpr IndexKind kKind = {.magic = "MLRFUZZ1", .version = 1};

void read_index(std::span<const std::byte> content) {
  const auto index = parse_index(content);
  if (!index) return;
  require(parse_index(write_index(*index)) == index, "an index reads back as written");
  for (std::size_t i = 0; i < index->entries.size(); ++i)
    require(index->file_of(i) < index->files.size(), "every entry has its file");
}

void read_folder_index(std::span<const std::byte> content) {
  const auto index = parse_folder_index(content);
  if (index)
    require(parse_folder_index(write_folder_index(*index)) == index,
            "an index reads back as written");
}

void read_tar(std::span<const std::byte> bytes) {
  ByteWindow file(bytes, "input");
  for (const TarMember& member : list_tar(file).members)
    require(member.offset <= bytes.size() && member.bytes <= bytes.size() - member.offset,
            "members lie in the archive");
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto rest = input.subspan(1);
  try {
    switch (std::to_integer<int>(input[0]) % 5) {
      case 0:
        return read_index(rest);
      case 1:
        return static_cast<void>(unseal(kKind, rest));
      case 2:
        return read_folder_index(rest);
      case 3:
        return static_cast<void>(
            parse_offset_lines({reinterpret_cast<const char*>(rest.data()), rest.size()}, "input"));
      default:
        return read_tar(rest);
    }
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::Data, "bad bytes are bad data");
  }
}

std::vector<Bytes> seeds() {
  const RecordIndex index{.files = {{"a", 200, 5, -1, 0}, {"b", 100, 6, 7, 2}},
                          .entries = {{0, 20, 3}, {50, 9, 4}, {0, 84, 5}},
                          .bad = {{0, 1, 36, "bad"}},
                          .notices = {"said before"}};
  const FolderIndex folder{.classes = {"a", "b"},
                           .modified_ns = {5, -1},
                           .images = {{0, {10, 3}, "x.JPEG"}, {1, {11, 4}, "y"}},
                           .bad = {{1, {0, 5}, "z.JPEG"}},
                           .others = {{0, {4, 6}, "text"}}};
  const std::string lines = "0 116\n116 16\n132 19\n";
  Bytes tar(2048);
  const std::string head = "a.JPEG";
  std::ranges::copy(std::as_bytes(std::span(head)), tar.begin());
  const std::string size = "00000000017";
  std::ranges::copy(std::as_bytes(std::span(size)), tar.begin() + 124);
  unsigned sum = 8 * ' ';
  for (std::size_t i = 0; i < 512; ++i) sum += std::to_integer<unsigned>(tar[i]);
  const std::string octal = fmt::format("{:06o}", sum);
  std::ranges::copy(std::as_bytes(std::span(octal)), tar.begin() + 148);
  return {tagged(0, write_index(index)), tagged(1, seal(kKind, write_index(index))),
          tagged(2, write_folder_index(folder)), tagged(3, std::as_bytes(std::span(lines))),
          tagged(4, tar)};
}

}  // namespace millrace::fuzz
