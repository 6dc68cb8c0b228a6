// SPDX-License-Identifier: Apache-2.0
//
// Images without a data set, prepared as a validation prepares its images.
#include "io/data/loose_images.hpp"

#include <fstream>

#include "core/error.hpp"
#include "io/data/cifar.hpp"
#include "io/data/dataset_kinds.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/io/samples.hpp"
#include "tests/support/test.hpp"

namespace millrace::io {
namespace {

void write_image(const fs::path& path, const Bytes& bytes) {
  write_bytes(path, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

run::Preparation by_image() { return {.by_image = true}; }
const Shape kSmall = {32, 32, 3};

TEST(LooseImagesTest, SmallImagesAreReadAsTheyAre) {
  const TemporaryDirectory folder;
  const Image image = make_image(32, 32);
  write_image(folder / "a.png", encode_png(image));
  const NamedImages files({folder / "a.png"}, by_image(), kSmall, 10);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kSmallPixels));
  PixelScaling scaling;
  EXPECT_EQ(files.read(0, {}, bytes, scaling), Sample::Own);
  EXPECT_EQ(bytes, image.bytes);
  EXPECT_EQ(files.problem(0), "");
  EXPECT_EQ(scaling.mean[1], scaling.mean[0]) << "by its own pixels, as SmallImagesTest has them";
}

TEST(LooseImagesTest, OthersAreScaledToTheShorterSideAndCropped) {
  const TemporaryDirectory folder;
  // Left and right of the center, which a square crop leaves out, are white.
  Image wide{.width = 192, .height = 64, .bytes = {}};
  for (int y = 0; y < 64; ++y)
    for (int x = 0; x < 192; ++x)
      wide.bytes.insert(wide.bytes.end(), 3, x < 60 || x >= 132 ? 255 : 100);
  write_image(folder / "a.png", encode_png(wide));
  const NamedImages files({folder / "a.png"}, by_image(), kSmall, 10);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kSmallPixels));
  PixelScaling scaling;
  (void)files.read(0, {}, bytes, scaling);
  EXPECT_EQ(bytes, std::vector<std::uint8_t>(bytes.size(), 100));
}

TEST(LooseImagesTest, PhotosArePreparedAsInAValidation) {
  const TemporaryDirectory folder;
  for (const char* name : {"train/n1/a.JPEG", "val/n1/a.JPEG"})
    write_image(folder / name, encode_jpeg(make_image(90, 61)));
  for (const ImagePreset& preset : image_presets()) {
    const auto set = open_image_dataset(folder.path(), Split::Validation, {});
    set->prepare_for({.preset = preset, .side = 48});
    const NamedImages files({folder / "val/n1/a.JPEG"}, set->preparation().value(),
                            set->image_shape(), 1);
    EXPECT_EQ(image_of(files, 0), image_of(*set, 0)) << preset.name;
    EXPECT_EQ(files.preparation()->shorter_side, 54) << preset.name;  // 48 x 256 / 224
  }
}

TEST(LooseImagesTest, BadFilesAreNamedAndBlack) {
  const TemporaryDirectory folder;
  write_bytes(folder / "empty.png", {});
  const NamedImages files({folder / "empty.png", folder / "none.jpg"}, by_image(), kSmall, 10);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kSmallPixels), 7);
  PixelScaling scaling;
  for (std::int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(files.read(i, {}, bytes, scaling), Sample::StandIn);
    EXPECT_EQ(bytes, std::vector<std::uint8_t>(bytes.size(), 0));
  }
  EXPECT_EQ(files.problem(0),
            (folder / "empty.png").string() + ": neither a JPEG nor a PNG: it is empty");
  test::expect_in(files.problem(1), {"none.jpg", "No such file"});
}

TEST(LooseImagesTest, MemoryHoldsFilesOrPixels) {
  const TemporaryDirectory folder;
  const Image image = make_image(90, 61);
  const Bytes png = encode_png(image);
  write_image(folder / "a.png", png);
  const NamedImages file({folder / "a.png"}, by_image(), kSmall, 10);
  const auto pixels = std::as_bytes(std::span(image.bytes));
  const ImagesInMemory memory({{.bytes = std::as_bytes(std::span(png))},
                               {.bytes = pixels, .height = image.height, .width = image.width},
                               {.bytes = pixels}},
                              by_image(), kSmall, 10);
  EXPECT_EQ(image_of(memory, 0), image_of(file, 0));
  EXPECT_EQ(image_of(memory, 1), image_of(file, 0));
  std::vector<std::uint8_t> black(static_cast<std::size_t>(kSmallPixels));
  PixelScaling scaling;
  EXPECT_EQ(memory.read(2, {}, black, scaling), Sample::StandIn);
  EXPECT_TRUE(memory.problem(2).starts_with("image 2: neither a JPEG nor a PNG"))
      << memory.problem(2);
}

TEST(LooseImagesTest, FoldersStandForTheirImages) {
  const TemporaryDirectory folder;
  for (const char* name :
       {"b.PNG", "sub/a.jpeg", "a.jpg", "c.jfif", "d.JPE", "notes.txt", ".hidden.png", "e.jpe.txt"})
    write_bytes(folder / name, {});
  fs::create_directory_symlink(folder.path(), folder / "sub/around");
  EXPECT_EQ(images_at(folder.path()),
            (std::vector<fs::path>{folder / "a.jpg", folder / "b.PNG", folder / "c.jfif",
                                   folder / "d.JPE", folder / "sub/a.jpeg"}));
  EXPECT_EQ(images_at(folder / "notes.txt"), std::vector<fs::path>{folder / "notes.txt"});
  fs::create_directories(folder / "none");
  expect_error(ErrorKind::Data, {"none: has no image"}, [&] { (void)images_at(folder / "none"); });
}

TEST(LooseImagesTest, PreparationsThatFitNoNetworkAreRefused) {
  expect_error(ErrorKind::Checkpoint, {"reads images of 64 x 64 pixels"}, [] {
    NamedImages({"a"}, by_image(), {64, 64, 3}, 10);
  });
  expect_error(ErrorKind::Config, {"squares of 3 channels"}, [] {
    NamedImages({"a"}, by_image(), {32, 16, 3}, 10);
  });
}

TEST(LooseImagesTest, WhatIsNoImageIsKnownByItsFirstBytes) {
  const TemporaryDirectory folder;
  write_image(folder / "a.png", encode_png(make_image(8, 8)));
  std::ofstream(folder / "text.png") << "this is text";
  EXPECT_EQ(problem_of(folder / "a.png"), "");
  EXPECT_NE(problem_of(folder / "text.png").find("text.png: neither a JPEG nor a PNG: it begins"),
            std::string::npos);
  EXPECT_NE(problem_of(folder / "none.png").find("none.png: cannot open"), std::string::npos);
}

}  // namespace
}  // namespace millrace::io
