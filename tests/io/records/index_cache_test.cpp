// SPDX-License-Identifier: Apache-2.0
#include "io/data/index_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include "core/crc32c.hpp"
#include "io/data/archive_set.hpp"
#include "io/data/class_folders.hpp"
#include "shards.hpp"

namespace millrace::io {
namespace {

TEST(IndexCacheTest, WaitingForALockIsReportedOnce) {
  const TemporaryDirectory root;
  std::vector<std::string> told;
  UniqueFd held = lock_folder(root.path(), [&](const std::string& what) { told.push_back(what); });
  EXPECT_TRUE(told.empty());
  // Only the callback releases the lock: without the message the test never ends.
  const UniqueFd waited = lock_folder(root.path(), [&](const std::string& what) {
    told.push_back(what);
    held = UniqueFd();
  });
  ASSERT_EQ(told.size(), 1u);
  test::expect_in(told[0], {root.path().string()});
  const UniqueFd other = open_file(root.path(), O_RDONLY | O_DIRECTORY);
  EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
}

TEST(IndexCacheTest, AnyChangeIsFound) {
  const IndexKind ours = {.magic = "MLRTEST1", .version = 3};
  const Bytes content = bytes_of("content");
  const Bytes file = seal(ours, content);
  ASSERT_TRUE(unseal(ours, file));
  EXPECT_EQ(text_of(*unseal(ours, file)), "content");
  EXPECT_FALSE(unseal({.magic = "MLRTEST2", .version = 3}, file));
  EXPECT_FALSE(unseal({.magic = "MLRTEST1", .version = 4}, file));
  for (std::size_t i = 0; i < file.size(); ++i) {
    Bytes bad = file;
    bad[i] ^= std::byte{1};
    EXPECT_FALSE(unseal(ours, bad)) << i;
    EXPECT_FALSE(unseal(ours, std::span(file).first(i))) << i;
  }
}

/// The content of an index reads back; cut, longer, with a count beyond memory or with a fault it
/// is none. `crc` is that of the content, whose bytes stay from version to version.
template <class Index>
void expect_format(const Index& index, std::vector<std::byte> (*write)(const Index&),
                   std::optional<Index> (*parse)(std::span<const std::byte>), std::uint32_t crc,
                   std::size_t counts, const std::vector<std::function<void(Index&)>>& faults) {
  const Bytes content = write(index);
  EXPECT_EQ(crc32c(content), crc);
  EXPECT_EQ(parse(content), index);
  for (std::size_t size = 0; size < content.size(); ++size)
    EXPECT_FALSE(parse(std::span(content).first(size))) << size;
  Bytes longer = content;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse(longer));
  for (std::size_t count = 0; count < counts; ++count) {
    Bytes huge = content;
    huge[8 * count + 7] = std::byte{0x7f};
    EXPECT_FALSE(parse(huge)) << count;
  }
  for (std::size_t i = 0; i < faults.size(); ++i) {
    Index wrong = index;
    faults[i](wrong);
    EXPECT_FALSE(parse(write(wrong))) << i;
  }
}

const RecordIndex kRecords{.files = {{"a", 200, 5, -1, 0}, {"b", 100, 6, 7, 2}},
                           .entries = {{0, 20, 3}, {50, 9, 4}, {0, 84, 5}},
                           .bad = {{0, 1, 36, "bad"}},
                           .notices = {"said before", ""}};

TEST(IndexFormatTest, OfRecords) {
  expect_format<RecordIndex>(
      kRecords, write_index, parse_index, 0xb7fb5ffe, 4,
      {[](RecordIndex& i) { i.entries.back().offset += 1; },
       [](RecordIndex& i) { i.entries[1].offset = 35; },
       [](RecordIndex& i) { i.files[1].first = 100; }, [](RecordIndex& i) { i.bad[0].file = 2; }});
}

TEST(IndexFormatTest, OfArchives) {
  const ArchiveIndex index{.records = {.files = {{"a.tar", 4096, 5, -1, 0}},
                                       .entries = {{512, 20, 1}, {1536, 9, 0}},
                                       .bad = {{0, 1, 36, "bad"}},
                                       .notices = {}},
                           .texts = {"cat", "dog"},
                           .places = {"a.tar, sample 'x'", "a.tar, sample 'y'"}};
  expect_format<ArchiveIndex>(index, write_archive_index, parse_archive_index, 0x8b1101f6, 2,
                              {[](ArchiveIndex& i) { i.records.entries[0].label = 2; },
                               [](ArchiveIndex& i) { i.records.entries[0].label = -1; }});
}

TEST(IndexFormatTest, OfClassFolders) {
  const FolderIndex index{.classes = {"a", "b"},
                          .folders = {{"a/", 5}, {"b/", -1}},
                          .images = {{0, {10, 7}, "x.JPEG"}, {0, {11, 8}, "y"}},
                          .bad = {{1, {0, 9}, "z.JPEG"}},
                          .others = {{0, {4, 1}, "text"}}};
  expect_format<FolderIndex>(index, write_folder_index, parse_folder_index, 0x359d8575, 5,
                             {[](FolderIndex& i) { i.images[0].name = "../../etc/passwd"; },
                              [](FolderIndex& i) { i.images[0].stamp.bytes = kMaxRecordBytes + 1; },
                              [](FolderIndex& i) { i.images[1].name = "x/../../y"; },
                              [](FolderIndex& i) { i.others[0].name = "/etc/passwd"; },
                              [](FolderIndex& i) { i.folders[0].name = "../"; },
                              [](FolderIndex& i) { i.bad[0].label = 2; }});
}

}  // namespace
}  // namespace millrace::io
