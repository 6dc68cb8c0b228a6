// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_index.hpp"

#include "io/data/class_names.hpp"
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

TEST_F(RecordFilesTest, NumberedNamesAreShardsAndTheOthersAreNot) {
  struct Row {
    Names names, files, missing, left_out;
  };
  for (const auto& [names, files, missing, left_out] : {
           // Sorted by number.
           Row{{"train-2-of-11", "train-10-of-11", "train-0-of-11", "train-9-of-11",
                "train-8-of-11", "train-1-of-11"},
               {"train-0-of-11", "train-1-of-11", "train-2-of-11", "train-8-of-11", "train-9-of-11",
                "train-10-of-11"},
               {"train-3-of-11", "train-4-of-11", "train-5-of-11", "train-6-of-11",
                "train-7-of-11"},
               {}},
           // Helpers of shards are not seen.
           Row{{"train-00000-of-00001", "train-00000-of-00001.idx", "train-00000-of-00001.tmp.77",
                ".train-hidden", "train-x.index"},
               {"train-00000-of-00001"},
               {},
               {}},
           Row{{"train-00000-of-00003", "train-00002-of-00003", "train-00002-of-00003.bak",
                "train-notes"},
               {"train-00000-of-00003", "train-00002-of-00003"},
               {"train-00001-of-00003"},
               {"train-00002-of-00003.bak", "train-notes"}},
           // Of several endings, the most frequent one.
           Row{{"train-00000-of-00004.tfrecord", "train-00002-of-00004.tfrecord",
                "train-00003-of-00004.tfrecord", "train-00003-of-00004.tfrecord.bak"},
               {"train-00000-of-00004.tfrecord", "train-00002-of-00004.tfrecord",
                "train-00003-of-00004.tfrecord"},
               {"train-00001-of-00004.tfrecord"},
               {"train-00003-of-00004.tfrecord.bak"}},
           // Copies are not the set even if there are more of them.
           Row{{"train-00000-of-00001", "train-00000-of-00001.bak", "train-00000-of-00001.old"},
               {"train-00000-of-00001"},
               {},
               {"train-00000-of-00001.bak", "train-00000-of-00001.old"}},
       }) {
    const TemporaryDirectory place;
    for (const std::string& name : names) touch(place / name);
    fs::create_directories(place / "train-folder");
    const RecordFileSet set = find_record_files(place.path(), Split::Train);
    EXPECT_EQ(set.files, files);
    EXPECT_EQ(set.missing, missing);
    EXPECT_EQ(set.left_out, left_out);
  }
}

TEST_F(RecordFilesTest, SaysWhatIsMissingEmptyAndLeftOut) {
  const RecordFileSet set{.folder = "d",
                          .files = {"a", "b"},
                          .missing = {"c"},
                          .empty = {"a", "b"},
                          .left_out = {"b.bak", "notes"}};
  EXPECT_EQ(describe_missing(set), "d: 1 of 3 shards is missing: c");
  EXPECT_EQ(describe_empty(set), "d: 2 of 3 shards are empty: a, b");
  EXPECT_EQ(describe_left_out(set),
            "d: 2 files of another form lie beside numbered shards and are left out: b.bak, notes");
  for (const auto& describe : {describe_missing, describe_empty, describe_left_out})
    EXPECT_EQ(describe({}), "");
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

TEST_F(RecordFilesTest, SaysWhereItLooked) {
  const std::string text = describe_record_places("/data", Split::Validation);
  for (const char* part : {"validation-*", "img_val-*", "imagenet_val_subset*", "/data,",
                           "/data/validation", "/data/img_val"})
    test::expect_in(text, {part});
}

// ---- class names --------------------------------------------------------------------------------

using Numbers = std::vector<std::int32_t>;

NumberedClasses number(const Names& texts, const KnownClasses& known = {}) {
  return number_classes(
      {.texts = texts, .place_of = [](std::size_t i) { return fmt::format("line {}", i + 1); }},
      known);
}

TEST(ClassNumbersTest, NamesAreSorted) {
  const NumberedClasses result = number({"dog", "cat", "emu"});
  EXPECT_EQ(result.numbers, (Numbers{1, 0, 2}));
  EXPECT_EQ(result.known.names, (Names{"cat", "dog", "emu"}));
  EXPECT_EQ(result.known.count, 3);
  EXPECT_TRUE(result.known.complete);
}

TEST(ClassNumbersTest, NumbersAreNumbers) {
  const NumberedClasses result = number({"7", "0", "3"});
  EXPECT_EQ(result.numbers, (Numbers{7, 0, 3}));
  EXPECT_EQ(result.known.count, 8);
  EXPECT_TRUE(result.known.names.empty());
  EXPECT_EQ(number({"7", "0"}, {.names = {}, .count = 10}).known.count, 10);
  expect_error(ErrorKind::Data, {"line 2: class 10 is not one of 0 to 9 (`classes`)"}, [&] {
    (void)number({"7", "10"}, {.names = {}, .count = 10});
  });
  expect_error(ErrorKind::Data, {"line 1: class 8 is not one of 0 to 7, the classes of the set"},
               [&] { (void)number({"8"}, result.known); });
  expect_error(ErrorKind::Data, {"class 1000000 is not one of 0 to 999999"},
               [&] { (void)number({"1000000"}); });
  expect_error(ErrorKind::Data,
               {"line 2: class 'cat' is a name, but the training images have numbers from 0 to 7"},
               [&] {
                 (void)number({"7", "cat"}, result.known);
               });
}

TEST(ClassNumbersTest, KnownNamesComeFirst) {
  const KnownClasses known{.names = {"b", "a", "2"}, .count = 3, .complete = true};
  EXPECT_EQ(number({"a", "2"}, known).numbers, (Numbers{1, 2}));
  EXPECT_EQ(number({"1", "0"}, known).numbers, (Numbers{1, 0})) << "numbers of known names";
  expect_error(ErrorKind::Data,
               {"line 2: class 'bb' is not one of the 3 classes of the training images",
                "did you mean 'b'?"},
               [&] {
                 (void)number({"a", "bb"}, known);
               });
  expect_error(ErrorKind::Data, {"class 3 is not one of 0 to 2"},
               [&] { (void)number({"3"}, known); });
  // Folders "0", "1", "10": names, although they look like numbers.
  const KnownClasses folders{.names = {"0", "1", "10"}, .count = 3, .complete = true};
  EXPECT_EQ(number({"10", "1"}, folders).numbers, (Numbers{2, 1}));
}

TEST(ClassWordsTest, StandBehindATab) {
  EXPECT_EQ(parse_class_words("n01\tgoldfish, Carassius\r\nn02 \nn03\t\n\n", "names"),
            (ClassWords{{"n01", "goldfish, Carassius"}, {"n02", ""}, {"n03", ""}}));
  expect_error(ErrorKind::Data, {"names: line 2 has no name"},
               [] { (void)parse_class_words("a\n\nb\n", "names"); });
  expect_error(ErrorKind::Data, {"names: lines 1 and 3 have the same name 'a'"},
               [] { (void)parse_class_words("a\nb\na", "names"); });
  expect_error(ErrorKind::Data, {"names: holds no class names"},
               [] { (void)parse_class_words("\n\n", "names"); });
  expect_error(ErrorKind::Data, {"line 1 has a name of 1025 bytes"},
               [] { (void)parse_class_words(std::string(1025, 'x'), "names"); });
}

}  // namespace
}  // namespace millrace::io
