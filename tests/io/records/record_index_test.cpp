// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_index.hpp"

#include <sys/wait.h>
#include <unistd.h>
#include <thread>

#include "io/data/dataset_kinds.hpp"
#include "shards.hpp"
#include "tests/io/allocation_counter.hpp"

namespace millrace::io {
namespace {

using Opened = OpenedIndex<RecordIndex>;

/// Three shards of 20, 1 and 7 images.
RecordFileSet write_set(const fs::path& root) {
  write_shard(root / "train-00000-of-00003", 0, 20);
  write_shard(root / "train-00001-of-00003", 20, 1);
  write_shard(root / "train-00002-of-00003", 21, 7);
  return find_record_files(root, Split::Train);
}

Opened open(const RecordFileSet& set, const fs::path& cache = {}) {
  return open_record_index(set, Split::Train,
                           {.threads = 2, .cache_folder = cache, .progress = {}, .tell = {}});
}

struct RecordIndexTest : testing::Test {
  const TemporaryDirectory root;
};

TEST_F(RecordIndexTest, HasEveryRecordAndItsLabel) {
  const Opened opened = open(write_set(root.path()));
  const RecordIndex& index = opened.index;
  EXPECT_TRUE(opened.made);
  ASSERT_EQ(index.entries.size(), 28u);
  EXPECT_TRUE(index.bad.empty());
  for (std::size_t i = 0; i < 28; ++i)
    EXPECT_EQ(index.entries[i].label, 1 + static_cast<int>(i) % 10) << i;
  EXPECT_EQ(index.file_of(0), 0u);
  EXPECT_EQ(index.file_of(19), 0u);
  EXPECT_EQ(index.file_of(20), 1u);
  EXPECT_EQ(index.file_of(27), 2u);
  EXPECT_EQ(index.record_of(21), 0u);
  EXPECT_EQ(index.record_of(27), 6u);
}

// One file of several is enough: none of its images would be trained on.
TEST_F(RecordIndexTest, CompressedShardsAreRefusedByName) {
  OpenOptions options;
  options.max_bad_fraction = 1.0;
  Bytes gzip = bytes_of("\x1f\x8b\x08");  // as gzip begins, of the size of a small shard
  gzip.resize(2000, std::byte{0x55});
  for (const std::string ending : {"-of-00002", "-of-00002.tfrecord.gz", ".tfrecords.gz"}) {
    const TemporaryDirectory folder;
    write_shard(folder / ("train-00000" + ending), 0, 900);
    store(folder / ("train-00001" + ending), gzip);
    expect_error(ErrorKind::Data, {"train-00001" + ending, "is compressed with GZIP", "gunzip"},
                 [&] { (void)open_image_dataset(folder.path(), Split::Train, options); });
  }
}

TEST_F(RecordIndexTest, AnEmptyShardIsSkipped) {
  write_shard(root / "train-00000-of-00003", 0, 2);
  write_shard(root / "train-00001-of-00003", 2, 0);
  write_shard(root / "train-00002-of-00003", 2, 2);
  const Opened opened = open(find_record_files(root.path(), Split::Train));
  EXPECT_EQ(opened.index.file_of(1), 0u);
  EXPECT_EQ(opened.index.file_of(2), 2u);
}

TEST_F(RecordIndexTest, IsBuiltOnceForTheSameFiles) {
  const RecordFileSet set = write_set(root.path());
  const Opened first = open(set);
  EXPECT_EQ(first.place, root / "millrace-train.index");
  const Opened second = open(set);
  EXPECT_FALSE(second.made);
  EXPECT_EQ(second.index, first.index);
  flip_byte(first.place, 30);
  const Opened again = open(set);
  EXPECT_TRUE(again.made);
  EXPECT_EQ(again.index, first.index);
  // Another size, and another modification time.
  write_shard(root / "train-00001-of-00003", 20, 2);
  EXPECT_TRUE(open(set).made);
  EXPECT_FALSE(open(set).made);
  fs::last_write_time(set.folder / set.files[0], fs::file_time_type::clock::now());
  EXPECT_TRUE(open(set).made);
}

TEST_F(RecordIndexTest, IsCachedIfTheDataFolderIsNotWritable) {
  const TemporaryDirectory cache;
  const RecordFileSet set = write_set(root.path());
  fs::permissions(root.path(), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(open(set, cache.path()).place.parent_path(), cache.path()) << "even for root";
  fs::permissions(root.path(), fs::perms::owner_all);
  fs::create_directories(root / "millrace-train.index" / "in the way");
  const Opened first = open(set, cache / "deep");
  EXPECT_EQ(first.place.parent_path(), cache / "deep");
  EXPECT_TRUE(first.notices.empty());
  EXPECT_FALSE(open(set, cache / "deep").made);
  const Opened nowhere = open(set);
  EXPECT_TRUE(nowhere.made);
  ASSERT_EQ(nowhere.notices.size(), 1u);
  test::expect_in(nowhere.notices[0], {"is rebuilt every time"});
}

TEST_F(RecordIndexTest, ListsBadRecordsAndContinues) {
  const fs::path path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 10);
  flip_byte(path, places[3] + 2);  // of the length
  Bytes bytes = load(path);
  // Replaces record 7 by one with a valid frame that is not an Example.
  const std::size_t payload = places[8] - places[7] - kFrameBytes;
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(places[7] + kFrameHeadBytes), payload,
              std::byte{0xff});
  store(path, bytes);
  const RecordIndex index = open(find_record_files(root.path(), Split::Train)).index;
  EXPECT_EQ(index.entries.size(), 8u);
  ASSERT_EQ(index.bad.size(), 2u);
  EXPECT_EQ(index.bad[0], (BadRecord{0, 3, places[3], "record length checksum mismatch"}));
  EXPECT_EQ(index.bad[1], (BadRecord{0, 7, places[7], "the record is not a tf.Example"}));
  EXPECT_EQ(index.record_of(3), 4u);
  EXPECT_EQ(index.record_of(7), 9u);
}

TEST_F(RecordIndexTest, ReadsIndicesOfDali) {
  const auto lines = parse_offset_lines("0 116\n116 16\n132 19\n", "a.idx");
  EXPECT_EQ(lines, (std::vector<OffsetLine>{{0, 116}, {116, 16}, {132, 19}}));
  EXPECT_EQ(parse_offset_lines("0 20", "a.idx").size(), 1u);
  EXPECT_TRUE(parse_offset_lines("", "a.idx").empty());
  for (const char* text :
       {"0 116\n115 16\n", "0 116\n\n", "x", "0 -1\n", "0 15\n", "5 20\n", "0 20 3\n", "0 20\r\n",
        "0 99999999999\n", "0 99999999999999999999999\n"})
    expect_error(ErrorKind::Data, {"a.idx: line "},
                 [&] { (void)parse_offset_lines(text, "a.idx"); });
}

TEST_F(RecordIndexTest, ReportsAnIdxFileThatDoesNotMatchUntilItIsRepaired) {
  const fs::path path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 3);
  const RecordFileSet set = find_record_files(root.path(), Split::Train);
  const auto notices_with = [&](const std::string& text) {
    store(path.string() + ".idx", text);
    fs::remove(root / "millrace-train.index");
    const Opened opened = open(set);
    EXPECT_EQ(opened.index.entries.size(), 3u);
    return opened.notices;
  };
  const std::string good = fmt::format("0 {}\n{} {}\n{} {}\n", places[1], places[1],
                                       places[2] - places[1], places[2], places[3] - places[2]);
  EXPECT_TRUE(notices_with(good).empty());
  EXPECT_EQ(notices_with(fmt::format("0 {}\n", places[1])).size(), 1u);
  EXPECT_EQ(notices_with(fmt::format("0 {}\n", places[2])).size(), 1u);
  const std::vector<std::string> notices = notices_with("nonsense");
  EXPECT_EQ(notices.size(), 1u);
  const Opened again = open(set);
  EXPECT_FALSE(again.made);
  EXPECT_EQ(again.notices, notices);
  fs::remove(path.string() + ".idx");
  EXPECT_TRUE(open(set).notices.empty());
}

TEST_F(RecordIndexTest, RecordsListedBeyondTheEndAreBad) {
  const fs::path path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 4);
  std::string lines;
  for (std::size_t i = 0; i < 4; ++i)
    lines += fmt::format("{} {}\n", places[i], places[i + 1] - places[i]);
  store(path.string() + ".idx", lines);
  cut(path, places[2]);
  for (int time = 0; time < 2; ++time) {
    const Opened opened = open(find_record_files(root.path(), Split::Train));
    EXPECT_TRUE(opened.notices.empty());
    EXPECT_EQ(opened.index.entries.size(), 2u);
    ASSERT_EQ(opened.index.bad.size(), 2u);
    EXPECT_EQ(opened.index.bad[1].record, 3u);
    EXPECT_EQ(opened.index.bad[1].offset, places[3]);
    EXPECT_TRUE(opened.index.bad[1].problem.starts_with(fmt::format(
        "the shard ends at {}, but its .idx lists this record: the shard is truncated", places[2])))
        << opened.index.bad[1].problem;
  }
}

TEST_F(RecordIndexTest, SeveralProcessesAtOnce) {
  const RecordFileSet set = write_set(root.path());
  const RecordIndex expected = open(set).index;
  fs::remove(root / "millrace-train.index");
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(open(set).index == expected ? 0 : 1);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_FALSE(open(set).made);
  for (const auto& entry : fs::directory_iterator(root.path()))
    test::expect_not_in(entry.path().filename().string(), {".tmp."});
}

TEST_F(RecordIndexTest, ReadsRealShardsWithTheirIdxFiles) {
  const auto data = real_data("tfrecord_imagenet_format");
  if (!data) GTEST_SKIP() << "no shards of TensorFlow's beside the project";
  const TemporaryDirectory cache;
  const TemporaryDirectory copy;
  copy_writable(*data, copy / "data");
  std::uint64_t told = 0;
  const RecordFileSet set = find_record_files(copy / "data", Split::Train);
  IndexOptions options{.threads = 2, .cache_folder = cache.path(), .progress = {}, .tell = {}};
  options.progress = [&](const Progress& progress) {
    EXPECT_LE(told, progress.done);
    told = progress.done;
  };
  const Opened opened = open_record_index(set, Split::Train, options);
  EXPECT_EQ(opened.index.entries.size(), 512u);
  EXPECT_TRUE(opened.index.bad.empty());
  EXPECT_TRUE(opened.notices.empty());
  std::uint64_t bytes = 0;
  for (const IndexedFile& file : opened.index.files) bytes += file.bytes;
  EXPECT_EQ(told, bytes);
}

OpenOptions options_for(std::int64_t classes) {
  OpenOptions options;
  options.classes = classes;
  options.index.threads = 2;
  return options;
}

struct RecordSetTest : testing::Test {
  [[nodiscard]] std::unique_ptr<ImageDataset> opened(
      const OpenOptions& options = options_for(10)) const {
    return open_image_dataset(root.path(), Split::Train, options);
  }
  const TemporaryDirectory root;
};

TEST_F(RecordSetTest, ReadsEveryImageFromManyThreads) {
  const RecordSet source(write_set(root.path()), Split::Train, options_for(10));
  ASSERT_EQ(source.size(), 28);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      ReadBuffer buffer;
      for (std::int64_t i = 0; i < 28; ++i) {
        const StoredImage image = source.stored(i, buffer);
        if (text_of(image.bytes) != text_of(fake_image(static_cast<std::size_t>(i))) ||
            source.label(i) != i % 10)
          ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(source.where(21), (root / "train-00002-of-00003").string() + ", record 0 at offset 0");
}

TEST_F(RecordSetTest, ReadingAgainAllocatesNothing) {
  const std::vector<ObjectBox> boxes(5, {0.1f, 0.2f, 0.3f, 0.4f});
  Shard shard;
  for (std::size_t i = 0; i < 20; ++i) shard.append(payload_of(i, 1, boxes));
  shard.write(root / "train-00000-of-00001");
  const auto source = opened();
  ReadBuffer buffer;
  const auto read_all = [&] {
    for (std::int64_t i = 0; i < source->size(); ++i) (void)source->stored(i, buffer);
  };
  read_all();
  read_all();
  const std::int64_t before = allocation_count();
  read_all();
  EXPECT_EQ(allocation_count(), before);
}

TEST_F(RecordSetTest, OneFlippedByteIsNamedByFileRecordAndOffset) {
  const fs::path path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 5);
  const auto source = opened();
  flip_byte(path, places[2] + 40);
  ReadBuffer buffer;
  EXPECT_NO_THROW((void)source->stored(1, buffer));
  expect_error(ErrorKind::Data,
               {path.string() + fmt::format(", record 2 at offset {}: ", places[2]),
                "data checksum mismatch"},
               [&] { (void)source->stored(2, buffer); });
  EXPECT_NO_THROW((void)source->stored(3, buffer));
  cut(path, places[4] + 3);
  expect_error(ErrorKind::Data, {path.string(), "truncated"},
               [&] { (void)source->stored(4, buffer); });
}

// A valid record of equal size whose label differs from the index.
TEST_F(RecordSetTest, ALabelThatHasChangedSinceItWasIndexedIsNamed) {
  const fs::path path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 3);
  const auto source = opened();
  Shard changed;
  for (const auto& [number, label] : {std::pair{0u, 1}, {1u, 7}, {2u, 3}})
    changed.append(payload_of(number, label));
  ASSERT_EQ(changed.bytes(), places.back());
  changed.write(path);
  ReadBuffer buffer;
  EXPECT_NO_THROW((void)source->stored(0, buffer));
  expect_error(ErrorKind::Data,
               {path.string() + fmt::format(", record 1 at offset {}: ", places[1]),
                "label 7, but 2 when it was indexed"},
               [&] { (void)source->stored(1, buffer); });
  EXPECT_NO_THROW((void)source->stored(2, buffer));
}

TEST_F(RecordSetTest, LabelsOutOfRangeAreLeftOutUpToAShare) {
  write_shard(root / "train-00000-of-00002", 0, 10);
  write_shard(root / "train-00001-of-00002", 10, 10);
  OpenOptions options = options_for(9);  // of 10: two records hold label 10
  options.max_bad_fraction = 0.1;
  const auto source = opened(options);
  EXPECT_EQ(source->size(), 18);
  test::expect_in(source->where(9), {"train-00001-of-00002, record 0"});
  options.max_bad_fraction = 0.09;
  expect_error(ErrorKind::Data,
               {"2 of 20 records are bad", "the first: ",
                "train-00000-of-00002, record 9 at offset ", "label 10 is not one of 1 to 9",
                "`max-bad-fraction`", "is 1 the label of the first class (`label-offset`), and"},
               [&] { (void)opened(options); });
  OpenOptions from_zero = options_for(11);
  from_zero.label_offset = 0;
  EXPECT_EQ(open_image_dataset(root.path(), Split::Train, from_zero)->label(0), 1);
}

TEST_F(RecordSetTest, OnlyTheFirstFewLeftOutRecordsAreNamed) {
  const fs::path path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 20);
  for (std::size_t i = 0; i < 16; i += 2) flip_byte(path, places[i]);
  OpenOptions options = options_for(10);
  options.max_bad_fraction = 0.5;
  for (int time = 0; time < 2; ++time) {  // the second time from the cache
    const auto source = opened(options);
    EXPECT_EQ(source->size(), 12);
    ASSERT_EQ(source->notices().size(), 7u);
    EXPECT_EQ(source->notices()[0], root.path().string() +
                                        ": 8 of 20 records are bad (`millrace data check` lists "
                                        "them), and left out");
    EXPECT_EQ(source->notices()[5],
              fmt::format("left out: {}, record 8 at offset {}: record length checksum mismatch",
                          path.string(), places[8]));
    EXPECT_EQ(source->notices()[6], "and 3 more");
  }
}

TEST_F(RecordSetTest, RefusesMissingAndEmptyShardsByDefaultAndReportsWhatItLeavesOut) {
  OpenOptions options = options_for(10);
  options.missing = MissingShards::Accepted;
  write_shard(root / "train-00000-of-00002", 0, 10);
  expect_error(ErrorKind::Data, {"1 of 2 shards is missing: train-00001-of-00002"},
               [&] { (void)opened(); });
  EXPECT_EQ(opened(options)->size(), 10);
  EXPECT_EQ(opened(options)->notices().size(), 1u);
  write_shard(root / "train-00001-of-00002", 10, 0);
  write_shard(root / "train-00000-of-00002.bak", 0, 10);
  expect_error(ErrorKind::Data,
               {"1 of 2 shards is empty: train-00001-of-00002", "`allow-missing-shards`"},
               [&] { (void)opened(); });
  const auto source = opened(options);
  EXPECT_EQ(source->size(), 10);
  ASSERT_EQ(source->notices().size(), 2u);
  test::expect_in(source->notices()[0], {"1 of 2 shards is empty"});
  test::expect_in(source->notices()[1], {"train-00000-of-00002.bak"});
}

TEST_F(RecordSetTest, FingerprintDistinguishesSets) {
  const auto fingerprint = [&](std::size_t first, std::int64_t classes) {
    write_shard(root / "train-00000-of-00001", first, 10, classes);
    return opened(options_for(20))->fingerprint();
  };
  const std::uint32_t one = fingerprint(0, 10);
  EXPECT_EQ(fingerprint(0, 10), one);
  EXPECT_NE(fingerprint(1, 10), one);
  EXPECT_NE(fingerprint(0, 9), one);
}

TEST_F(RecordSetTest, NothingFoundListsThePlacesSearched) {
  for (const Split split : {Split::Train, Split::Validation})
    expect_error(ErrorKind::Data,
                 {split_name(split), "img_", "imagenet_", root.path().string(), "class folders"},
                 [&] { (void)open_image_dataset(root.path(), split, options_for(10)); });
  expect_error(ErrorKind::Data, {"(which does not exist)"},
               [&] { (void)open_image_dataset("/no/such", Split::Train, options_for(10)); });
  store(root / "train-00000-of-00001", std::string_view(""));
  OpenOptions options = options_for(10);
  options.missing = MissingShards::Accepted;
  expect_error(ErrorKind::Data, {"contain no records"}, [&] { (void)opened(options); });
}

}  // namespace
}  // namespace millrace::io
