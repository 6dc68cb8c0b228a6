// SPDX-License-Identifier: Apache-2.0
//
// Indices and other files beside the data. The first byte of an input selects the reader of the
// rest: an index's content, an index's file, a folder's index, lines of a DALI .idx file, a tar
// archive, its samples, the index of archives, a file of class names.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "io/data/archive_set.hpp"
#include "io/data/class_folders.hpp"
#include "io/data/class_names.hpp"
#include "io/data/record_index.hpp"
#include "io/data/tar_reader.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/io/records/tar_writer.hpp"

namespace millrace::fuzz {
namespace {

using namespace io;

/// First bytes from here on select the last readers.
constexpr int kNewer = 0xf0;

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

void read_samples(std::span<const std::byte> bytes) {
  ByteWindow file(bytes, "input");
  const ArchiveSamples found = scan_archive(file);
  require(found.texts.size() == found.keys.size(), "every class text has its first sample");
  for (const RecordEntry& entry : found.samples.entries) {
    require(entry.offset <= bytes.size() && entry.bytes <= bytes.size() - entry.offset,
            "images lie in the archive");
    require(entry.label >= 0 && static_cast<std::size_t>(entry.label) < found.texts.size(),
            "labels are texts");
  }
}

void read_archive_index(std::span<const std::byte> content) {
  const auto index = parse_archive_index(content);
  if (index)
    require(parse_archive_index(write_archive_index(*index)) == index,
            "an index reads back as written");
}

void read_class_names(std::string_view text) {
  const ClassWords words = parse_class_words(text, "input");
  require(!words.empty(), "there are names");
  std::vector<std::string> names;
  for (const auto& [name, word] : words) names.push_back(name);
  const auto place_of = [](std::size_t) { return std::string("input"); };
  const NumberedClasses numbered = number_classes({.texts = names, .place_of = place_of}, {});
  for (const std::int32_t number : numbered.numbers)
    require(number >= 0 && number < numbered.known.count, "numbers are classes");
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto rest = input.subspan(1);
  fails_only_as(ErrorKind::Data, [&] {
    // The known inputs that are older than the last readers keep theirs.
    const int tag = std::to_integer<int>(input[0]);
    switch (tag < kNewer ? tag % 5 : 5 + tag % 4) {
      case 0:
        return read_index(rest);
      case 1:
        return static_cast<void>(unseal(kKind, rest));
      case 2:
        return read_folder_index(rest);
      case 3:
        return static_cast<void>(parse_offset_lines(text_of(rest), "input"));
      case 4:
        return read_tar(rest);
      case 5:
        return read_samples(rest);
      case 6:
        return read_archive_index(rest);
      default:
        return read_class_names(text_of(rest));
    }
  });
}

std::vector<Bytes> seeds() {
  const RecordIndex index{.files = {{"a", 200, 5, -1, 0}, {"b", 100, 6, 7, 2}},
                          .entries = {{0, 20, 3}, {50, 9, 4}, {0, 84, 5}},
                          .bad = {{0, 1, 36, "bad"}},
                          .notices = {"said before"}};
  const FolderIndex folder{.classes = {"a", "b"},
                           .folders = {{"a/", 5}, {"b/", -1}},
                           .images = {{0, {10, 3}, "x.JPEG"}, {1, {11, 4}, "y"}},
                           .bad = {{1, {0, 5}, "z.JPEG"}},
                           .others = {{0, {4, 6}, "text"}}};
  const std::string lines = "0 116\n116 16\n132 19\n";
  io::Tar tar;
  tar.add("a.JPEG", bytes_of("\xff\xd8\xff"));
  tar.add("a.cls", bytes_of("7\n"));
  tar.add("b.png", bytes_of("\x89PNG"));
  tar.add("b.json", bytes_of("{\"label\": \"cat\"}"));
  const ArchiveIndex archives{.records = {.files = {{"a.tar", 4096, 5, -1, 0}},
                                          .entries = {{512, 20, 1}, {1536, 9, 0}},
                                          .bad = {},
                                          .notices = {}},
                              .texts = {"cat", "7"},
                              .places = {"a.tar, sample 'x'", "a.tar, sample 'y'"}};
  return {tagged(0, write_index(index)),
          tagged(1, seal(kKind, write_index(index))),
          tagged(2, write_folder_index(folder)),
          tagged(3, std::as_bytes(std::span(lines))),
          tagged(4, tar.bytes()),
          tagged(kNewer, tar.bytes()),
          tagged(kNewer + 1, write_archive_index(archives)),
          tagged(kNewer + 3, bytes_of("n01\tgoldfish\nn02\n"))};
}

}  // namespace millrace::fuzz
