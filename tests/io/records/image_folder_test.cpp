// SPDX-License-Identifier: Apache-2.0
#include "io/data/class_folders.hpp"

#include "core/image_format.hpp"
#include "io/data/dataset_kinds.hpp"
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

struct ImageFolderTest : testing::Test {
  [[nodiscard]] std::unique_ptr<ImageDataset> opened(OpenOptions options = {}) const {
    options.index.cache_folder = cache.path();
    return open_image_dataset(root.path(), Split::Train, options);
  }
  const TemporaryDirectory root;
  const TemporaryDirectory cache;
};

/// Names of all files below a folder.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) names.push_back(fs::relative(entry.path(), folder).string());
  std::ranges::sort(names);
  return names;
}

TEST_F(ImageFolderTest, ClassesAreSortedFoldersAndImagesAreRecognizedByContent) {
  write_folders(root.path());
  const auto source = opened();
  EXPECT_EQ(source->name(), "image folder");
  ASSERT_EQ(source->size(), 4);
  EXPECT_EQ(source->classes(), 3);
  EXPECT_EQ(source->class_names(), (std::vector<std::string>{"n01", "n02", "n03"}));
  ReadBuffer buffer;
  EXPECT_EQ(source->label(0), 0);
  EXPECT_EQ(text_of(source->stored(0, buffer).bytes), kPng);
  EXPECT_EQ(source->label(1), 1);
  EXPECT_EQ(source->where(1), (root / "train/n02/a.JPEG").string());
  EXPECT_EQ(text_of(source->stored(1, buffer).bytes), text_of(fake_image(2)));
  EXPECT_EQ(source->label(3), 2);
  ASSERT_EQ(source->notices().size(), 1u);
  test::expect_in(source->notices()[0], {"1 file left out, neither JPEG nor PNG", "n01/notes.txt"});
  // An image is the example of what is left out.
  store(root / "train/n01/Thumbs.db", std::string_view("no image"));
  store(root / "train/n03/tabby.WEBP", std::string_view("another"));
  test::expect_in(opened()->notices()[0], {"3 files left out", "n03/tabby.WEBP"});
}

TEST_F(ImageFolderTest, ValidationUsesTheClassNumbersOfTraining) {
  write_folders(root.path());
  const auto source = open_image_dataset(root.path(), Split::Validation, {});
  ASSERT_EQ(source->size(), 1);
  EXPECT_EQ(source->classes(), 3);
  EXPECT_EQ(source->label(0), 2);
  // The folders of the training images are the classes, with or without images here.
  ASSERT_EQ(source->notices().size(), 1u);
  EXPECT_EQ(source->notices()[0],
            (root / "val").string() + ": 2 of 3 classes have no validation images: n01, n02");
}

TEST_F(ImageFolderTest, FoundUnderItsOtherNames) {
  for (const char* place : {"train", "img_train", "."}) {
    const TemporaryDirectory other;
    store(other / place / "n01/a.JPEG", fake_image(1));
    EXPECT_EQ(open_image_dataset(other.path(), Split::Train, {})->size(), 1) << place;
  }
  for (const char* place : {"val", "validation", "img_val"}) {
    const TemporaryDirectory other;
    store(other / place / "n01/a.JPEG", fake_image(1));
    EXPECT_EQ(open_image_dataset(other.path(), Split::Validation, {})->size(), 1) << place;
  }
}

TEST_F(ImageFolderTest, IndexIsKeptUntilAFolderChanges) {
  write_folders(root.path());
  const auto first = opened();
  const std::vector<std::string> kept = files_below(cache.path());
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_TRUE(kept[0].ends_with("-millrace-train.folders")) << kept[0];
  const fs::path index = cache / kept[0].c_str();
  const auto written = fs::last_write_time(index);
  EXPECT_EQ(opened()->fingerprint(), first->fingerprint());
  EXPECT_EQ(fs::last_write_time(index), written);
  store(root / "train/n02/c.JPEG", fake_image(6));
  const auto second = opened();
  EXPECT_EQ(second->size(), 5);
  // An image that was overwritten.
  store(root / "train/n02/a.JPEG", fake_image(40));
  ReadBuffer buffer;
  expect_error(ErrorKind::Data, {"n02/a.JPEG", "when it was indexed"},
               [&] { (void)first->stored(1, buffer); });
  const auto third = opened();
  EXPECT_EQ(text_of(third->stored(1, buffer).bytes), text_of(fake_image(40)));
  for (const std::string& name : files_below(root.path()))
    EXPECT_EQ(name.find("millrace"), std::string::npos) << "indices never lie among images";
  EXPECT_NE(third->fingerprint(), second->fingerprint());
  // Repaired in place.
  store(root / "train/n01/notes.txt", std::string_view(kPng));
  EXPECT_EQ(opened()->size(), 6);
  OpenOptions nowhere;
  nowhere.index.cache_folder = "/dev/null/nowhere";
  const auto rebuilt = open_image_dataset(root.path(), Split::Train, nowhere);
  ASSERT_EQ(rebuilt->notices().size(), 1u);
  test::expect_in(rebuilt->notices()[0], {" is rebuilt every time: "});
}

TEST_F(ImageFolderTest, FilesThatShouldBeImagesAreBad) {
  for (std::size_t i = 0; i < 17; ++i)
    store(root / fmt::format("train/n0{}/{}.JPEG", 1 + i % 2, i), fake_image(i));
  store(root / "train/n02/empty.jpg", std::string_view(""));
  store(root / "train/n02/page.JPEG", std::string_view("<html>"));
  store(root / "train/n02/large.png", std::string_view(kPng));
  fs::resize_file(root / "train/n02/large.png", kMaxRecordBytes + 1);
  store(root / "train/n02/notes.txt", std::string_view("no image"));
  fs::create_symlink(root / "nowhere", root / "train/n02/notes");
  fs::create_symlink(root / "elsewhere.JPEG", root / "train/n02/link.JPEG");
  const std::string folder = (root / "train").string();
  expect_error(ErrorKind::Data,
               {folder + ": 4 of 21 files are bad",
                "the first: " + folder + "/n02/link.JPEG: does not exist, or is a broken link",
                "`max-bad-fraction`"},
               [&] { (void)opened(); });
  OpenOptions options;
  options.max_bad_fraction = 0.2;
  const std::string left_out = "left out: " + folder + "/n02/";
  const std::vector<std::string> expected = {
      folder + ": 1 file left out, neither JPEG nor PNG, for example " + folder + "/n02/notes.txt",
      folder + ": 4 of 21 files are bad (`millrace data check` lists them), and left out",
      left_out + "link.JPEG: does not exist, or is a broken link",
      left_out + "empty.jpg: is empty or not a regular file",
      left_out + "large.png: 67108865 bytes exceed the limit of 67108864",
      left_out + "page.JPEG: is neither JPEG nor PNG"};
  for (int time = 0; time < 2; ++time) {  // the second time from the cache
    const auto source = opened(options);
    EXPECT_EQ(source->size(), 17);
    EXPECT_EQ(std::vector(source->notices().begin(), source->notices().end()), expected);
  }
  store(root / "elsewhere.JPEG", fake_image(9));
  const auto repaired = opened(options);
  EXPECT_EQ(repaired->size(), 18);
  fs::remove(repaired->where(0));
  ReadBuffer buffer;
  expect_error(ErrorKind::Data, {repaired->where(0) + ": was removed"},
               [&] { (void)repaired->stored(0, buffer); });
}

TEST_F(ImageFolderTest, ClassesWithoutImagesAreNamed) {
  store(root / "n01/a.JPEG", fake_image(1));
  fs::create_directory(root / "_thumbs");
  const auto source = opened();
  EXPECT_EQ(source->label(0), 1);
  ASSERT_EQ(source->notices().size(), 1u);
  EXPECT_TRUE(source->notices()[0].starts_with(
      root.path().string() + ": 1 of 2 classes have no training images: _thumbs; "))
      << source->notices()[0];
}

TEST_F(ImageFolderTest, SplitsAreNotClasses) {
  store(root / "val/a.JPEG", fake_image(1));
  store(root / "test/a.JPEG", fake_image(1));
  EXPECT_TRUE(find_class_folders(root.path(), Split::Train).classes.empty());
  expect_error(ErrorKind::Data, {"no training images", "img_val, test, img_test are not classes"},
               [&] { (void)opened(); });
  store(root / "cats/a.JPEG", fake_image(1));
  EXPECT_EQ(find_class_folders(root.path(), Split::Train).classes,
            std::vector<std::string>{"cats"});
}

TEST_F(ImageFolderTest, AFolderAboveASetNamesTheSet) {
  store(root / "pets/train/cats/a.JPEG", fake_image(1));
  store(root / "pets/notes.txt", std::string_view("a file beside the splits"));
  expect_error(ErrorKind::Data,
               {"no training images", "/pets holds images: name it with `data-dir`"},
               [&] { (void)opened(); });
}

TEST_F(ImageFolderTest, ImagesMayLieInFoldersOfTheirClass) {
  store(root / "train/n02/images/b.JPEG", fake_image(1));
  store(root / "train/n02/n02_boxes.txt", std::string_view("b.JPEG 0 0 9 9"));
  store(root / "train/n01/images/a.JPEG", fake_image(2));
  store(root / "train/n01/more/deep/c.JPEG", fake_image(3));
  const auto first = opened();
  ASSERT_EQ(first->size(), 3);
  EXPECT_EQ(first->where(0), (root / "train/n01/images/a.JPEG").string());
  EXPECT_EQ(first->where(1), (root / "train/n01/more/deep/c.JPEG").string());
  EXPECT_EQ(first->where(2), (root / "train/n02/images/b.JPEG").string());
  EXPECT_EQ(first->label(2), 1);
  EXPECT_EQ(first->class_names(), (std::vector<std::string>{"n01", "n02"}));
  // A new file in a folder of a folder.
  store(root / "train/n01/more/deep/d.JPEG", fake_image(4));
  EXPECT_EQ(opened()->size(), 4);
  // A link to a folder above it never ends.
  fs::create_directory_symlink(root / "train/n01", root / "train/n01/more/again");
  expect_error(ErrorKind::Data, {"more than 8 folders within a class"}, [&] { (void)opened(); });
}

// As tiny-imagenet is shipped (https://cs231n.stanford.edu/tiny-imagenet-200.zip), with its
// validation images in class folders.
TEST_F(ImageFolderTest, TinyImageNet) {
  for (const char* name : {"n02", "n01"})
    for (std::size_t i = 0; i < 2; ++i)
      store(root / fmt::format("train/{0}/images/{0}_{1}.JPEG", name, i), fake_image(i));
  store(root / "train/n01/n01_boxes.txt", std::string_view("n01_0.JPEG\t0\t32\t44\t62\n"));
  store(root / "val/images/val_0.JPEG", fake_image(5));
  store(root / "test/images/test_0.JPEG", fake_image(7));
  store(root / "wnids.txt", std::string_view("n02\nn01\n"));
  store(root / "words.txt", std::string_view("n00\tentity\nn01\tgoldfish, Carassius\n"));
  const auto train = opened();
  EXPECT_EQ(train->size(), 4);
  EXPECT_EQ(train->class_names(), (std::vector<std::string>{"n01 (goldfish, Carassius)", "n02"}));
  expect_error(ErrorKind::Data,
               {"class images has validation images, but is not one of the 2 classes of the "
                "training images, so it has no number"},
               [&] { (void)open_image_dataset(root.path(), Split::Validation, {}); });
  std::filesystem::rename(root / "val/images", root / "val/n02");
  const auto validation = open_image_dataset(root.path(), Split::Validation, {});
  ASSERT_EQ(validation->size(), 1);
  EXPECT_EQ(validation->label(0), 1);
  EXPECT_EQ(validation->classes(), 2);
}

TEST_F(ImageFolderTest, RealImages) {
  const auto data = real_data("image_folder");
  if (!data) GTEST_SKIP() << "no class folders beside the project";
  const TemporaryDirectory copy;
  copy_writable(*data, copy / "data");
  const auto source = open_image_dataset(copy / "data", Split::Train, {});
  EXPECT_EQ(source->size(), 23);
  EXPECT_EQ(source->classes(), 23);
  ReadBuffer buffer;
  for (std::int64_t i = 0; i < 23; ++i) {
    EXPECT_EQ(source->label(i), i);
    EXPECT_EQ(format_of(source->stored(i, buffer).bytes), ImageFormat::Jpeg);
  }
}

}  // namespace
}  // namespace millrace::io
