// SPDX-License-Identifier: Apache-2.0
#include "io/data/annotations.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/data/image_folder.hpp"
#include "io/data/imagenet.hpp"
#include "shards.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<Annotation>;

Lines parse(std::string_view text) { return parse_annotations(text, "list"); }

TEST(AnnotationsTest, CommasTabsAndBlanks) {
  EXPECT_EQ(parse("a.jpg,cat\nb/c.jpg,dog\n"), (Lines{{"a.jpg", "cat", 1}, {"b/c.jpg", "dog", 2}}));
  EXPECT_EQ(parse("val_0.JPEG\tn01\t0\t32\t44\t62\r\n\r\nval 1.JPEG\tn02\t1\t2\t3\t4"),
            (Lines{{"val_0.JPEG", "n01", 1}, {"val 1.JPEG", "n02", 3}}));
  EXPECT_EQ(parse("n01/a b.JPEG 0\nn02/c.JPEG   12 \n"),
            (Lines{{"n01/a b.JPEG", "0", 1}, {"n02/c.JPEG", "12", 2}}));
}

TEST(AnnotationsTest, QuotesAndHeaders) {
  EXPECT_EQ(parse("\"a, \"\"b\"\".jpg\",\"two words\"\n"),
            (Lines{{"a, \"b\".jpg", "two words", 1}}));
  EXPECT_EQ(parse("\xef\xbb\xbfLabel,width,FileName\ncat,3,a.jpg\n"), (Lines{{"a.jpg", "cat", 2}}));
  EXPECT_EQ(parse("path\tclass\na.jpg\t1\n"), (Lines{{"a.jpg", "1", 2}}));
  EXPECT_EQ(parse("file,dog\n").front().label, "dog") << "a line about an image";
}

TEST(AnnotationsTest, BadLinesAreNamed) {
  expect_error(ErrorKind::Data,
               {"list: line 2 is 'b.jpg': expected the path of an image and its "
                "class, separated by a comma"},
               [] { (void)parse("a.jpg,cat\nb.jpg\n"); });
  expect_error(ErrorKind::Data, {"list: line 1 is ',cat'"}, [] { (void)parse(",cat\n"); });
  expect_error(ErrorKind::Data, {"list: line 3 is 'a.jpg,'"},
               [] { (void)parse("path,label\nb,x\na.jpg,\n"); });
  expect_error(ErrorKind::Data, {"list: line 1 is 'alone'", "a comma, a tab or a blank"},
               [] { (void)parse("alone\n"); });
  expect_error(ErrorKind::Data, {"list: lists no images"}, [] { (void)parse("path,label\n\n"); });
  expect_error(ErrorKind::Data, {"list: line 1 holds a zero byte"},
               [] { (void)parse(std::string_view("\x89PNG\0,1\n", 8)); });
  expect_error(ErrorKind::Data, {"list: line 1 has 70000 bytes"},
               [] { (void)parse(std::string(70000, 'x')); });
}

struct AnnotatedImagesTest : testing::Test {
  [[nodiscard]] std::unique_ptr<ImageDataset> opened(Split split = Split::Train) {
    options.index.cache_folder = cache.path();
    return open_image_dataset(root.path(), split, options);
  }
  void store_images(std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i)
      store(root / fmt::format("pictures/{}.jpg", i), fake_image(i));
  }
  const TemporaryDirectory root;
  const TemporaryDirectory cache;
  OpenOptions options;
};

TEST_F(AnnotatedImagesTest, ListsBesideThePicturesAreFound) {
  store_images(4);
  store(root / "train.csv",
        std::string_view("path,label\npictures/2.jpg,dog\npictures/0.jpg,cat\n"));
  store(root / "val.tsv", std::string_view("pictures/3.jpg\tdog\npictures/1.jpg\tdog\n"));
  const auto train = opened();
  EXPECT_EQ(train->name(), "annotated images");
  ASSERT_EQ(train->size(), 2);
  EXPECT_EQ(train->label(0), 1);
  EXPECT_EQ(train->label(1), 0);
  EXPECT_EQ(train->class_names(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(train->where(0), (root / "pictures/2.jpg").string());
  ReadBuffer buffer;
  EXPECT_EQ(text_of(train->stored(1, buffer).bytes), text_of(fake_image(0)));
  const auto validation = opened(Split::Validation);
  EXPECT_EQ(validation->label(0), 1) << "numbered as in training";
  EXPECT_EQ(validation->classes(), 2);
  store(root / "val.tsv", std::string_view("pictures/3.jpg\tdog\npictures/1.jpg\tdug\n"));
  expect_error(ErrorKind::Data,
               {"val.tsv, line 2: class 'dug' is not one of the 2 classes of the training images "
                "(did you mean 'dog'"},
               [&] { (void)opened(Split::Validation); });
}

TEST_F(AnnotatedImagesTest, FilesThatAreGivenComeFirst) {
  store_images(3);
  store(root / "train/n01/a.JPEG", fake_image(8));
  store(root / "train.csv", std::string_view("pictures/0.jpg,0\n"));
  EXPECT_EQ(opened()->name(), "image folder") << "class folders come before train.csv";
  options.given.train_annotations = root / "train.csv";
  EXPECT_EQ(opened()->name(), "annotated images");
  const TemporaryDirectory elsewhere;
  store(elsewhere / "list", std::string_view("1.jpg,4\n2.jpg,0\n"));
  store(root / "train/1.jpg", fake_image(1));
  store(root / "train/2.jpg", fake_image(2));
  options.given.train_annotations = elsewhere / "list";
  const auto set = opened();
  EXPECT_EQ(set->size(), 2);
  EXPECT_EQ(set->classes(), 5);
  EXPECT_TRUE(set->class_names().empty());
  EXPECT_EQ(set->where(0), (root / "train/1.jpg").string());
}

TEST_F(AnnotatedImagesTest, FoldersDoNotGuessTheNumbersOfAList) {
  store_images(2);
  store(root / "train.csv", std::string_view("pictures/0.jpg,0\npictures/1.jpg,1\n"));
  store(root / "val/one/a.JPEG", fake_image(8));
  expect_error(ErrorKind::Data, {"classes of the training images are numbers", "`class-list`"},
               [&] { (void)opened(Split::Validation); });
  store(root / "names", std::string_view("none\none\n"));
  options.given.class_list = root / "names";
  EXPECT_EQ(opened(Split::Validation)->label(0), 1);
}

TEST_F(AnnotatedImagesTest, TheIndexFollowsListAndImages) {
  store_images(3);
  store(root / "train.csv", std::string_view("pictures/0.jpg,a\npictures/1.jpg,b\n"));
  const auto first = opened();
  EXPECT_EQ(opened()->fingerprint(), first->fingerprint());
  const auto entries = [](const fs::path& folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  EXPECT_EQ(entries(cache.path()), 1);
  EXPECT_EQ(entries(root.path()), 2) << "nothing is left beside the images";
  store(root / "train.csv",
        std::string_view("pictures/0.jpg,a\npictures/1.jpg,b\npictures/2.jpg,b\n"));
  EXPECT_EQ(opened()->size(), 3);
  store(root / "pictures/2.jpg", fake_image(30));
  EXPECT_EQ(opened()->stored_bytes(2), fake_image(30).size());
}

TEST_F(AnnotatedImagesTest, BadFilesAndContradictions) {
  store_images(3);
  store(root / "pictures/text.jpg", std::string_view("<html>"));
  fs::create_directory(root / "pictures/folder.jpg");
  const std::string list = "pictures/0.jpg,a\npictures/none.jpg,a\npictures/text.jpg,b\n";
  store(root / "train.csv", list + "pictures/folder.jpg,b\n");
  expect_error(
      ErrorKind::Data,
      {"train.csv: 3 of 4 files are bad", "none.jpg: does not exist", "`max-bad-fraction`"},
      [&] { (void)opened(); });
  options.max_bad_fraction = 0.8;
  EXPECT_EQ(opened()->size(), 1);
  EXPECT_EQ(opened()->classes(), 2) << "a class whose images are all bad keeps its number";
  store(root / "train.csv",
        std::string_view("pictures/0.jpg,a\npictures/1.jpg,b\n./pictures/0.jpg,b\n"));
  expect_error(ErrorKind::Data,
               {"line 1 gives 'pictures/0.jpg' the class 'a', but line 3 the class 'b'"},
               [&] { (void)opened(); });
  store(root / "train.csv", std::string_view("images/0.jpg,a\n"));
  expect_error(ErrorKind::Data,
               {"train.csv: line 1 lists 'images/0.jpg', which is not in " + root.path().string()},
               [&] { (void)opened(); });
}

}  // namespace
}  // namespace millrace::io
