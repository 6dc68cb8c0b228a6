// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_files.hpp"

#include "shards.hpp"

namespace millrace::io {
namespace {

using Names = std::vector<std::string>;

void touch(const fs::path& path) { store(path, std::string_view("x")); }

struct NamingCase {
  std::string file;
  Split split;
};

struct RecordFilesTest : testing::Test {
  const TemporaryDirectory root;
};

TEST_F(RecordFilesTest, FindsEveryNamingOfTheTrainings) {
  const std::vector<NamingCase> cases = {
      {"train-00000-of-00001", Split::Train},
      {"train/train-00000-of-00001", Split::Train},
      {"img_train/img_train-00000-of-00001", Split::Train},
      {"imagenet_train_subset/train-00000-of-00001", Split::Train},
      {"imagenet_train_subset-00000-of-00001", Split::Train},
      {"imagenet_train_subset", Split::Train},
      {"train-part.tfrecord", Split::Train},
      {"validation-00000-of-00001", Split::Validation},
      {"validation/validation-00000-of-00001", Split::Validation},
      {"img_val/img_val-00000-of-00001", Split::Validation},
      {"imagenet_val_subset/validation-00000-of-00001", Split::Validation},
      {"imagenet_val_subset", Split::Validation},
      {"val/val-0", Split::Validation},
  };
  for (const NamingCase& one : cases) {
    const TemporaryDirectory place;
    write_shard(place / one.file, 0, 1);
    const RecordFileSet set = find_record_files(place.path(), one.split);
    ASSERT_EQ(set.files.size(), 1u) << one.file;
    EXPECT_EQ(set.folder / set.files[0], place / one.file);
    EXPECT_TRUE(set.missing.empty());
    const Split other = one.split == Split::Train ? Split::Validation : Split::Train;
    EXPECT_TRUE(find_record_files(place.path(), other).files.empty()) << one.file;
  }
}

TEST_F(RecordFilesTest, ShardsAreSortedByNumber) {
  for (const char* name : {"train-2-of-11", "train-10-of-11", "train-0-of-11"}) touch(root / name);
  const RecordFileSet set = find_record_files(root.path(), Split::Train);
  EXPECT_EQ(set.files, (Names{"train-0-of-11", "train-2-of-11", "train-10-of-11"}));
  EXPECT_EQ(set.missing.size(), 8u);
}

TEST_F(RecordFilesTest, HelperFilesAreNotShards) {
  for (const char* name : {"train-00000-of-00001", "train-00000-of-00001.idx",
                           "train-00000-of-00001.tmp.77", ".train-hidden", "train-x.index"})
    touch(root / name);
  fs::create_directories(root / "train-folder");
  EXPECT_EQ(find_record_files(root.path(), Split::Train).files, Names{"train-00000-of-00001"});
}

TEST_F(RecordFilesTest, NamesWhatIsMissing) {
  for (int i = 0; i < 20; ++i)
    if (i != 17) touch(root / fmt::format("train/train-{:05}-of-00020", i));
  const RecordFileSet set = find_record_files(root.path(), Split::Train);
  EXPECT_EQ(set.missing, Names{"train-00017-of-00020"});
  EXPECT_EQ(describe_missing(set),
            (root / "train").string() + ": 1 of 20 shards is missing: train-00017-of-00020");
  EXPECT_EQ(describe_missing({}), "");
}

TEST_F(RecordFilesTest, RefusesTwoSetsInOneFolder) {
  touch(root / "train-00000-of-00002");
  touch(root / "train-00000-of-00004");
  touch(root / "train-00000");  // sorted before both, part of neither
  expect_error(ErrorKind::Data, {"train-00000-of-00002", "train-00000-of-00004", "different sets"},
               [&] { (void)find_record_files(root.path(), Split::Train); });
  const TemporaryDirectory second;
  touch(second / "train-00003-of-00002");
  expect_error(ErrorKind::Data, {"train-00003-of-00002"},
               [&] { (void)find_record_files(second.path(), Split::Train); });
}

TEST_F(RecordFilesTest, NamesWithoutANumberBesideNumberedShardsAreLeftOut) {
  for (const char* name :
       {"train-00000-of-00003", "train-00002-of-00003", "train-00002-of-00003.bak", "train-notes"})
    touch(root / name);
  const RecordFileSet set = find_record_files(root.path(), Split::Train);
  EXPECT_EQ(set.files, (Names{"train-00000-of-00003", "train-00002-of-00003"}));
  EXPECT_EQ(set.missing, Names{"train-00001-of-00003"});
  EXPECT_EQ(set.left_out, (Names{"train-00002-of-00003.bak", "train-notes"}));
  EXPECT_EQ(describe_left_out(set),
            root.path().string() +
                ": 2 files of another form lie beside numbered shards and are left out: "
                "train-00002-of-00003.bak, train-notes");
}

TEST_F(RecordFilesTest, MissingShardsAreNoticedWhateverTheEnding) {
  for (const char* name : {"train-00000-of-00004.tfrecord", "train-00002-of-00004.tfrecord",
                           "train-00003-of-00004.tfrecord", "train-00003-of-00004.tfrecord.bak"})
    touch(root / name);
  const RecordFileSet set = find_record_files(root.path(), Split::Train);
  EXPECT_EQ(set.files, (Names{"train-00000-of-00004.tfrecord", "train-00002-of-00004.tfrecord",
                              "train-00003-of-00004.tfrecord"}));
  EXPECT_EQ(set.missing, Names{"train-00001-of-00004.tfrecord"});
  EXPECT_EQ(set.left_out, Names{"train-00003-of-00004.tfrecord.bak"});
  // Copies are not the set even if there are more of them.
  touch(root / "train-00000-of-00004");
  EXPECT_EQ(find_record_files(root.path(), Split::Train).files, Names{"train-00000-of-00004"});
}

TEST_F(RecordFilesTest, NotesDoNotHideShardsInOtherPlaces) {
  store(root / "train-labels.txt", std::string_view("tench, goldfish and other classes"));
  store(root / "train-README", std::string_view(""));
  EXPECT_TRUE(find_record_files(root.path(), Split::Train).files.empty());
  write_shard(root / "train/train-00000-of-00001", 0, 2);
  EXPECT_EQ(find_record_files(root.path(), Split::Train).folder, root / "train");
  // A shard only by its content.
  write_shard(root / "train-all", 0, 2);
  const RecordFileSet set = find_record_files(root.path(), Split::Train);
  EXPECT_EQ(set.folder, root.path());
}

TEST_F(RecordFilesTest, NamesShardsOfNoBytes) {
  touch(root / "train-00000-of-00002");
  store(root / "train-00001-of-00002", std::string_view(""));
  const RecordFileSet set = find_record_files(root.path(), Split::Train);
  EXPECT_EQ(set.files.size(), 2u);
  EXPECT_EQ(describe_empty(set),
            root.path().string() + ": 1 of 2 shards is empty: train-00001-of-00002");
}

TEST_F(RecordFilesTest, SaysWhereItLooked) {
  const std::string text = describe_record_places("/data", Split::Validation);
  for (const char* part : {"validation-*", "img_val-*", "imagenet_val_subset*", "/data,",
                           "/data/validation", "/data/img_val"})
    test::expect_in(text, {part});
}

}  // namespace
}  // namespace millrace::io
