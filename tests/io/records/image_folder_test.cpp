// SPDX-License-Identifier: Apache-2.0
#include "io/data/image_folder.hpp"

#include <gtest/gtest.h>

#include "core/image_format.hpp"
#include "io/data/imagenet.hpp"
#include "shards.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

const std::string kPng = "\x89PNG\r\n\x1a\n and more";

void write_folders(const fs::path& root) {
  store(root / "train/n02/b.JPEG", fake_image(1));
  store(root / "train/n02/a.JPEG", fake_image(2));
  store(root / "train/n01/disguised.JPEG", std::string_view(kPng));
  store(root / "train/n01/notes.txt", std::string_view("no image"));
  store(root / "train/n01/.hidden.JPEG", fake_image(9));
  store(root / "train/n03/c", fake_image(3));
  store(root / "val/n03/v.JPEG", fake_image(4));
}

TEST(ImageFolderTest, ClassesAreSortedFoldersAndImagesAreRecognizedByContent) {
  const TemporaryDirectory root;
  write_folders(root.path());
  const auto source = open_image_dataset(root.path(), Split::Train, {});
  EXPECT_EQ(source->name(), "image folder");
  ASSERT_EQ(source->size(), 4);
  EXPECT_EQ(source->classes(), 3);
  ReadBuffer buffer;
  EXPECT_EQ(source->label(0), 0);
  EXPECT_EQ(text_of(source->stored(0, buffer).bytes), kPng);
  EXPECT_EQ(source->label(1), 1);
  EXPECT_EQ(source->where(1), (root.path() / "train/n02/a.JPEG").string());
  EXPECT_EQ(text_of(source->stored(1, buffer).bytes), text_of(fake_image(2)));
  EXPECT_EQ(source->label(3), 2);
  ASSERT_EQ(source->notices().size(), 1u);
  EXPECT_NE(source->notices()[0].find("1 files are neither JPEG nor PNG"), std::string::npos);
  EXPECT_NE(source->notices()[0].find("n01/notes.txt"), std::string::npos);
}

TEST(ImageFolderTest, ValidationUsesTheClassNumbersOfTraining) {
  const TemporaryDirectory root;
  write_folders(root.path());
  const auto source = open_image_dataset(root.path(), Split::Validation, {});
  ASSERT_EQ(source->size(), 1);
  EXPECT_EQ(source->classes(), 3);
  EXPECT_EQ(source->label(0), 2);
  store(root.path() / "val/n04/x.JPEG", fake_image(5));
  expect_error(ErrorKind::Data, {"class n04"},
               [&] { (void)open_image_dataset(root.path(), Split::Validation, {}); });
}

TEST(ImageFolderTest, FoundUnderItsOtherNames) {
  for (const char* place : {"train", "img_train", "."}) {
    const TemporaryDirectory root;
    store(root.path() / place / "n01/a.JPEG", fake_image(1));
    EXPECT_EQ(open_image_dataset(root.path(), Split::Train, {})->size(), 1) << place;
  }
  for (const char* place : {"val", "validation", "img_val"}) {
    const TemporaryDirectory root;
    store(root.path() / place / "n01/a.JPEG", fake_image(1));
    EXPECT_EQ(open_image_dataset(root.path(), Split::Validation, {})->size(), 1) << place;
  }
}

TEST(ImageFolderTest, IndexIsKeptUntilAFolderChanges) {
  const TemporaryDirectory root;
  write_folders(root.path());
  const auto first = open_image_dataset(root.path(), Split::Train, {});
  const fs::path index = root.path() / "train/millrace-train.folders";
  ASSERT_TRUE(fs::exists(index));
  const auto written = fs::last_write_time(index);
  EXPECT_EQ(open_image_dataset(root.path(), Split::Train, {})->fingerprint(), first->fingerprint());
  EXPECT_EQ(fs::last_write_time(index), written);
  store(root.path() / "train/n02/c.JPEG", fake_image(6));
  const auto second = open_image_dataset(root.path(), Split::Train, {});
  EXPECT_EQ(second->size(), 5);
  // An image that was overwritten.
  store(root.path() / "train/n02/a.JPEG", fake_image(40));
  ReadBuffer buffer;
  expect_error(ErrorKind::Data, {"n02/a.JPEG", "when it was indexed"},
               [&] { (void)first->stored(1, buffer); });
  const auto third = open_image_dataset(root.path(), Split::Train, {});
  EXPECT_EQ(text_of(third->stored(1, buffer).bytes), text_of(fake_image(40)));
  EXPECT_NE(third->fingerprint(), second->fingerprint());
  // Repaired in place.
  store(root.path() / "train/n01/notes.txt", std::string_view(kPng));
  EXPECT_EQ(open_image_dataset(root.path(), Split::Train, {})->size(), 6);
}

TEST(ImageFolderTest, FilesThatShouldBeImagesAreBad) {
  const TemporaryDirectory root;
  for (std::size_t i = 0; i < 17; ++i)
    store(root.path() / fmt::format("train/n01/{}.JPEG", i), fake_image(i));
  store(root.path() / "train/n02/empty.jpg", std::string_view(""));
  store(root.path() / "train/n02/page.JPEG", std::string_view("<html>"));
  store(root.path() / "train/n02/large.png", std::string_view(kPng));
  fs::resize_file(root.path() / "train/n02/large.png", kMaxRecordBytes + 1);
  store(root.path() / "train/n02/notes.txt", std::string_view("no image"));
  const std::string folder = (root.path() / "train").string();
  expect_error(ErrorKind::Data,
               {folder + ": 3 of 20 files are bad",
                "the first: " + folder + "/n02/empty.jpg: is empty or not a regular file",
                "--max-bad-fraction"},
               [&] { (void)open_image_dataset(root.path(), Split::Train, {}); });
  OpenOptions options;
  options.max_bad_fraction = 0.15;
  for (int time = 0; time < 2; ++time) {
    const auto source = open_image_dataset(root.path(), Split::Train, options);
    EXPECT_EQ(source->size(), 17);
    ASSERT_EQ(source->notices().size(), 6u);
    EXPECT_NE(source->notices()[0].find("n02/notes.txt"), std::string::npos);
    EXPECT_TRUE(source->notices()[1].starts_with(folder + ": 3 of 20 files are bad"));
    EXPECT_EQ(source->notices()[2],
              "left out: " + folder + "/n02/empty.jpg: is empty or not a regular file");
    EXPECT_TRUE(source->notices()[3].starts_with(
        "left out: " + folder + "/n02/large.png: 67108865 bytes exceed the limit of 67108864"));
    EXPECT_EQ(source->notices()[4],
              "left out: " + folder + "/n02/page.JPEG: is neither JPEG nor PNG");
  }
}

TEST(ImageFolderTest, BrokenLinksAreBad) {
  const TemporaryDirectory root;
  for (std::size_t i = 0; i < 8; ++i)
    store(root.path() / fmt::format("train/n01/{}.JPEG", i), fake_image(i));
  const fs::path link = root.path() / "train/n01/9.JPEG";
  fs::create_symlink(root.path() / "elsewhere.JPEG", link);
  fs::create_symlink(root.path() / "nowhere", root.path() / "train/n01/notes");
  OpenOptions options;
  options.max_bad_fraction = 0.2;
  for (int time = 0; time < 2; ++time) {
    const auto source = open_image_dataset(root.path(), Split::Train, options);
    EXPECT_EQ(source->size(), 8);
    ASSERT_EQ(source->notices().size(), 2u);
    EXPECT_EQ(source->notices()[1], "left out: " + link.string() + ": is a broken link");
  }
  store(root.path() / "elsewhere.JPEG", fake_image(9));
  EXPECT_EQ(open_image_dataset(root.path(), Split::Train, options)->size(), 9);
}

TEST(ImageFolderTest, ARemovedImageIsABadOne) {
  const TemporaryDirectory root;
  write_folders(root.path());
  const auto source = open_image_dataset(root.path(), Split::Train, {});
  fs::remove(source->where(0));
  ReadBuffer buffer;
  expect_error(ErrorKind::Data, {source->where(0) + ": was removed"},
               [&] { (void)source->stored(0, buffer); });
}

// The path is short enough for images, but too long for an index beside them.
TEST(ImageFolderTest, AnIndexThatCannotBeCachedIsReported) {
  const TemporaryDirectory root;
  fs::path folder = root.path();
  constexpr std::size_t kLongest = 4095 - sizeof("/n01/a.JPEG");
  while (kLongest - folder.string().size() > 250) folder /= std::string(200, 'd');
  folder /= std::string(kLongest - folder.string().size() - 1, 'e');
  store(folder / "n01/a.JPEG", fake_image(1));
  IndexOptions options;
  options.cache_folder = "/dev/null/nowhere";
  const ImageFolder source({.folder = folder, .classes = {"n01"}}, Split::Train, options, 0.001);
  EXPECT_EQ(source.size(), 1);
  ASSERT_EQ(source.notices().size(), 1u);
  EXPECT_NE(source.notices()[0].find(" is rebuilt every time: "), std::string::npos);
}

TEST(ImageFolderTest, ClassesWithoutImagesAreNamed) {
  const TemporaryDirectory root;
  store(root.path() / "n01/a.JPEG", fake_image(1));
  fs::create_directory(root.path() / "_thumbs");
  const auto source = open_image_dataset(root.path(), Split::Train, {});
  EXPECT_EQ(source->label(0), 1);
  ASSERT_EQ(source->notices().size(), 1u);
  EXPECT_TRUE(source->notices()[0].starts_with(
      root.path().string() + ": 1 of 2 classes have no training images: _thumbs; "))
      << source->notices()[0];
}

TEST(ImageFolderTest, SplitsAreNotClasses) {
  const TemporaryDirectory root;
  store(root.path() / "val/a.JPEG", fake_image(1));
  store(root.path() / "test/a.JPEG", fake_image(1));
  EXPECT_TRUE(find_class_folders(root.path(), Split::Train).classes.empty());
  expect_error(ErrorKind::Data, {"no training images", "img_val, test, img_test are not classes"},
               [&] { (void)open_image_dataset(root.path(), Split::Train, {}); });
  store(root.path() / "cats/a.JPEG", fake_image(1));
  EXPECT_EQ(find_class_folders(root.path(), Split::Train).classes.size(), 3u);
}

TEST(ImageFolderTest, IndexRoundTripAndHostileBytes) {
  const FolderIndex index{.classes = {"a", "b"},
                          .modified_ns = {5, -1},
                          .images = {{0, {10, 7}, "x.JPEG"}, {0, {11, 8}, "y"}},
                          .bad = {{1, {0, 9}, "z.JPEG"}},
                          .others = {{0, {4, 1}, "text"}}};
  const Bytes content = write_folder_index(index);
  EXPECT_EQ(parse_folder_index(content), index);
  for (std::size_t size = 0; size < content.size(); ++size)
    EXPECT_FALSE(parse_folder_index(std::span(content).first(size))) << size;
  FolderIndex wrong = index;
  wrong.images[0].name = "../../etc/passwd";
  EXPECT_FALSE(parse_folder_index(write_folder_index(wrong)));
  wrong = index;
  wrong.images[0].stamp.bytes = kMaxRecordBytes + 1;
  EXPECT_FALSE(parse_folder_index(write_folder_index(wrong)));
  wrong = index;
  wrong.bad[0].label = 2;
  EXPECT_FALSE(parse_folder_index(write_folder_index(wrong)));
}

TEST(ImageFolderTest, RealImages) {
  const auto data = real_data("image_folder");
  if (!data) GTEST_SKIP() << "no class folders beside the project";
  const TemporaryDirectory copy;
  copy_writable(*data, copy.path() / "data");
  const auto source = open_image_dataset(copy.path() / "data", Split::Train, {});
  EXPECT_EQ(source->size(), 23);
  EXPECT_EQ(source->classes(), 23);
  ReadBuffer buffer;
  for (std::int64_t i = 0; i < 23; ++i) {
    EXPECT_EQ(source->label(i), i);
    EXPECT_EQ(format_of(source->stored(i, buffer).bytes), ImageFormat::Jpeg);
  }
}

TEST(ImageFolderTest, KindsOfOddFiles) {
  const auto data = real_data("odd_jpeg");
  if (!data) GTEST_SKIP() << "no odd images beside the project";
  const auto kind_of = [&](const char* name) { return format_of(load(*data / name)); };
  EXPECT_EQ(kind_of("derived_png_disguised.JPEG"), ImageFormat::Png);
  EXPECT_EQ(kind_of("derived_text_disguised.JPEG"), ImageFormat::Other);
  EXPECT_EQ(kind_of("derived_empty.JPEG"), ImageFormat::Other);
  EXPECT_EQ(kind_of("derived_ycck.jpg"), ImageFormat::Jpeg);
}

}  // namespace
}  // namespace millrace::io
