// SPDX-License-Identifier: Apache-2.0
#include "io/data/archive_set.hpp"

#include "io/data/dataset_kinds.hpp"
#include "shards.hpp"
#include "tar_writer.hpp"

namespace millrace::io {
namespace {

using Names = std::vector<std::string>;

/// An archive of the samples first, first + 1, .. with the class `class_of(i)`.
template <class ClassOf>
void write_archive(const fs::path& path, std::size_t first, std::size_t count,
                   const ClassOf& class_of) {
  Tar tar;
  for (std::size_t i = first; i < first + count; ++i) {
    tar.add(fmt::format("{:04}.jpg", i), fake_image(i));
    tar.add(fmt::format("{:04}.cls", i), bytes_of(class_of(i)));
  }
  store(path, tar.bytes());
}

std::string digit_of(std::size_t i) { return std::to_string(i % 5); }

struct ArchiveSetTest : testing::Test {
  [[nodiscard]] std::unique_ptr<ImageDataset> opened(Split split = Split::Train) {
    options.index.cache_folder = cache.path();
    return open_image_dataset(root.path(), split, options);
  }
  void refused(const std::vector<std::string>& parts, Split split = Split::Train) {
    expect_error(ErrorKind::Data, parts, [&] { (void)opened(split); });
  }
  const TemporaryDirectory root;
  const TemporaryDirectory cache;
  OpenOptions options;
};

TEST_F(ArchiveSetTest, SamplesOfAllArchivesInTheirOrder) {
  write_archive(root / "train-000001.tar", 3, 2, digit_of);
  write_archive(root / "train-000000.tar", 0, 3, digit_of);
  write_archive(root / "val-000000.tar", 7, 1, digit_of);
  const auto set = opened();
  EXPECT_EQ(set->name(), "WebDataset archives");
  ASSERT_EQ(set->size(), 5);
  EXPECT_EQ(set->classes(), 5);
  EXPECT_TRUE(set->class_names().empty());
  ReadBuffer buffer;
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(set->label(i), i);
    EXPECT_EQ(text_of(set->stored(i, buffer).bytes),
              text_of(fake_image(static_cast<std::size_t>(i))));
  }
  EXPECT_EQ(set->where(4), (root / "train-000001.tar").string() + ", record 1 at offset 2560");
  EXPECT_EQ(opened(Split::Validation)->label(0), 2);
  EXPECT_TRUE(fs::exists(root / "millrace-train.archives"));
  EXPECT_EQ(opened()->fingerprint(), set->fingerprint()) << "from the index";
  // Another archive of equal name.
  write_archive(root / "train-000000.tar", 10, 3, digit_of);
  EXPECT_NE(opened()->fingerprint(), set->fingerprint());
}

TEST_F(ArchiveSetTest, ClassesByNameAndInJson) {
  Tar tar;
  tar.add("n01/a.png", bytes_of("\x89PNG\r\n\x1a\n and more"));
  tar.add("n01/a.json", bytes_of(R"({"width": 3, "label": "emu"})"));
  tar.add("n02/a.jpeg", fake_image(1));
  tar.add("n02/a.cls", bytes_of("cat\n"));
  tar.add("n02/a.json", bytes_of(R"({"label": "dog"})"));
  tar.add("readme.txt", bytes_of("no sample"));
  tar.add("n03/a.left.JPG", fake_image(2));
  tar.add("n03/a.cls", bytes_of("emu"));
  store(root / "train/00.tar", tar.bytes());
  write_archive(root / "val/00.tar", 0, 1, [](std::size_t) { return "emu"; });
  const auto set = opened();
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->class_names(), (Names{"cat", "emu"}));
  EXPECT_EQ(set->label(0), 1);
  EXPECT_EQ(set->label(1), 0) << ".cls comes before .json";
  EXPECT_EQ(opened(Split::Validation)->label(0), 1);
  write_archive(root / "val/00.tar", 0, 1, [](std::size_t) { return "ewe"; });
  refused(
      {"val/00.tar, sample '0000': class 'ewe' is not one of the 2 classes of the training images"},
      Split::Validation);
  // Numbers in JSON.
  Tar numbers;
  numbers.add("a.jpg", fake_image(1));
  numbers.add("a.json", bytes_of(R"({"cls": 7})"));
  store(root / "train/00.tar", numbers.bytes());
  EXPECT_EQ(opened()->label(0), 7);
  options.classes_are_told = true;
  options.classes = 5;
  refused({"train/00.tar, sample 'a': class 7 is not one of 0 to 4 (`classes`)"});
}

TEST_F(ArchiveSetTest, ImagesByAllTheirEndings) {
  Tar tar;
  for (const char* name : {"a.JPG", "b.jpeg", "c.jpe", "d.jfif", "e.left.JFIF"}) {
    tar.add(name, fake_image(1));
    tar.add(std::string(1, name[0]) + ".cls", bytes_of("1"));
  }
  store(root / "train-0.tar", tar.bytes());
  EXPECT_EQ(opened()->size(), 5);
}

TEST_F(ArchiveSetTest, BadSamplesAreNamed) {
  Tar tar;
  for (std::size_t i = 0; i < 6; ++i) tar.add(fmt::format("{}.jpg", i), fake_image(i));
  tar.add("6.cls", bytes_of("3"));
  tar.add("7.jpg", fake_image(7));
  tar.add("7.cls", bytes_of(" \n"));
  tar.add("8.jpg", fake_image(8));
  tar.add("8.json", bytes_of("{\"label\": [1]}"));
  tar.add("9.jpg", fake_image(9));
  tar.add("9.jpeg", fake_image(9));
  tar.add("9.cls", bytes_of("1"));
  tar.add("a.jpg", fake_image(10));
  tar.add("a.cls", bytes_of("1"));
  store(root / "train-0.tar", tar.bytes());
  refused({"10 of 11 samples are bad", "the first:",
           "train-0.tar, record 0 at offset 512: '0': "
           "no .cls and no .json beside the image",
           "`max-bad-fraction`"});
  options.max_bad_fraction = 1.0;
  const auto set = opened();
  EXPECT_EQ(set->size(), 1);
  const auto& archives = dynamic_cast<const ArchiveSet&>(*set);
  ASSERT_EQ(archives.index().bad.size(), 10u);
  EXPECT_EQ(archives.index().bad[6].problem,
            "'6': no image (.jpg, .jpeg, .jpe, .jfif, .png) beside its .cls");
  EXPECT_EQ(archives.index().bad[7].problem, "'7': its .cls is empty");
  EXPECT_NE(archives.index().bad[8].problem.find("its .json has no class"), std::string::npos);
  EXPECT_EQ(archives.index().bad[9].problem, "'9': 2 images with the same name");
}

TEST_F(ArchiveSetTest, MissingDamagedAndForeignArchives) {
  write_archive(root / "train-0000.tar", 0, 2, digit_of);
  write_archive(root / "train-0002.tar", 2, 2, digit_of);
  refused({"1 of 3 shards is missing: train-0001.tar", "`allow-missing-shards`"});
  options.missing = MissingShards::Accepted;
  EXPECT_EQ(opened()->size(), 4);
  options.missing = MissingShards::Refused;
  write_archive(root / "train-0001.tar", 4, 2, digit_of);
  cut(root / "train-0001.tar", 700);
  refused({"train-0001.tar: a member longer than the rest of the archive", "fetch it again"});
  cut(root / "train-0001.tar", 0);
  refused({"1 of 3 shards is empty: train-0001.tar"});
  write_archive(root / "pets-train-0001.tar", 4, 2, digit_of);
  refused({"belong to different sets of archives"});
  fs::remove(root / "pets-train-0001.tar");
  fs::remove(root / "train-0001.tar");
  write_archive(root / "train-900000000.tar", 4, 2, digit_of);
  refused({"too far apart"});
}

TEST_F(ArchiveSetTest, ArchivesOfClassesAreNoShards) {
  write_archive(root / "train/n01440764.tar", 0, 2, digit_of);
  EXPECT_TRUE(find_archives(root.path(), Split::Train).files.empty());
  write_archive(root / "imagenet1k-train-0000-of-0002.tar", 0, 2, digit_of);
  const RecordFileSet set = find_archives(root.path(), Split::Train);
  EXPECT_EQ(set.files, Names{"imagenet1k-train-0000-of-0002.tar"});
  EXPECT_EQ(set.missing, Names{"imagenet1k-train-0001-of-0002.tar"});
}

}  // namespace
}  // namespace millrace::io
