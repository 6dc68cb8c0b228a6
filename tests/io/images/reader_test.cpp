// SPDX-License-Identifier: Apache-2.0
#include "io/images/reader.hpp"

#include <mutex>
#include <thread>

#include "io/images/header.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/images/test_images.hpp"

namespace millrace::io {
namespace {

constexpr std::int32_t kSide = 32;
using Square = std::vector<std::uint8_t>;

Square square() { return Square(std::size_t{3} * kSide * kSide, 0xcd); }

/// The window from the whole image.
Square from_whole(const Bytes& file, const ImageWindow& window, const Resampling& resampling) {
  ImageDecoder decoder;
  Resampler resampler;
  static_cast<void>(resampler.prepare(window, resampling, kSide));
  Square image = square();
  resampler.resample(decode(decoder, file).view, image);
  return image;
}

TEST(ImageReaderTest, EqualsDecodingTheWholeImage) {
  const Image photo = make_image(131, 97);
  const Bytes files[] = {encode_jpeg(photo, {.horizontal = 2, .vertical = 2}),
                         encode_jpeg(photo, {.horizontal = 2, .progressive = true}),
                         encode_png(photo)};
  ImageReader reader;
  for (const ImagePreset& preset : image_presets()) {
    for (const Bytes& file : files) {
      for (std::uint64_t i = 0; i < 8; ++i) {
        Square image = square();
        const DrawKey key{1, 2, i};
        const auto report = reader.read({.bytes = file}, preset, key, kSide, image);
        EXPECT_EQ(report.state, ImageState::Whole);
        EXPECT_EQ(report.window, draw_window(preset.crop, key, read_header(file), {}, kSide));
        EXPECT_EQ(image, from_whole(file, report.window, preset.training)) << preset.name;
      }
      Square image = square();
      const auto report = reader.read({.bytes = file}, preset, {}, kSide, image);
      EXPECT_EQ(report.window, evaluation_window(preset.evaluation, read_header(file), kSide));
      EXPECT_EQ(image, from_whole(file, report.window, preset.validation)) << preset.name;
    }
  }
}

TEST(ImageReaderTest, ReportsADamagedImage) {
  const Bytes file = encode_jpeg(make_image(131, 97));
  ImageReader reader;
  Square image = square();
  const auto report = reader.read({.bytes = std::span(file).first(file.size() / 2)},
                                  image_preset("torch"), {}, kSide, image);
  EXPECT_EQ(report.state, ImageState::Damaged);
  EXPECT_EQ(report.warning, "Premature end of JPEG file");
  expect_error(ErrorKind::Data, {"neither a JPEG nor a PNG"}, [&] {
    reader.read({.bytes = std::span(file).subspan(5)}, image_preset("torch"), {}, kSide, image);
  });
}

// With any number of threads, the memory is that of one large image.
TEST(ImageReaderTest, LargeImagesAreReadOneAtATime) {
  const Bytes large = encode_png(make_image(4000, 3000));
  const Bytes usual = encode_png(make_image(400, 300));
  std::mutex gate;
  ImageReader reader(gate);
  std::vector<std::uint8_t> image(std::size_t{3} * 32 * 32);
  const auto read = [&](const Bytes& file) {
    static_cast<void>(reader.read({.bytes = file}, image_preset("tf"), {}, 32, image));
  };
  std::unique_lock other(gate);
  read(usual);  // does not wait
  std::atomic<bool> begun = false;
  std::atomic<bool> done = false;
  std::jthread thread([&] {
    begun = true;
    read(large);
    done = true;
  });
  while (!begun) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_FALSE(done);
  other.unlock();
  thread.join();
  EXPECT_TRUE(done);
  EXPECT_EQ(reader.buffer_bytes(), 0u);
}

// ---- header -------------------------------------------------------------------------------------

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(ImageHeaderTest, ContentDecidesTheFormat) {
  EXPECT_EQ(format_of(encode_jpeg(make_image(9, 5))), ImageFormat::Jpeg);
  EXPECT_EQ(format_of(encode_png(make_image(9, 5))), ImageFormat::Png);
  EXPECT_EQ(format_of(bytes_of("<html>")), ImageFormat::Other);
  EXPECT_EQ(format_of(bytes_of("\xff\xd8")), ImageFormat::Other);
  EXPECT_EQ(format_of({}), ImageFormat::Other);
}

TEST(ImageHeaderTest, ReportsFormatSizeAndColors) {
  const Image image = make_image(37, 21);
  const auto header = [&](const JpegOptions& options) {
    return read_header(encode_jpeg(image, options));
  };
  EXPECT_EQ(header({}), (ImageHeader{ImageFormat::Jpeg, 37, 21, ColourSpace::YCbCr, false}));
  EXPECT_EQ(header({.progressive = true}),
            (ImageHeader{ImageFormat::Jpeg, 37, 21, ColourSpace::YCbCr, true}));
  EXPECT_EQ(header({.colours = JpegColours::Gray}).colours, ColourSpace::Gray);
  EXPECT_EQ(header({.colours = JpegColours::Rgb}).colours, ColourSpace::Rgb);
  EXPECT_EQ(header({.colours = JpegColours::Cmyk}).colours, ColourSpace::Cmyk);
  EXPECT_EQ(header({.colours = JpegColours::Ycck}).colours, ColourSpace::Ycck);
  EXPECT_EQ(read_header(encode_png(image)),
            (ImageHeader{ImageFormat::Png, 37, 21, ColourSpace::Rgb, false}));
  EXPECT_EQ(read_header(encode_png(image, {.colours = PngColours::Palette, .interlaced = true})),
            (ImageHeader{ImageFormat::Png, 37, 21, ColourSpace::Palette, true}));
}

TEST(ImageHeaderTest, FilesThatAreNotImagesAreNamed) {
  expect_error(ErrorKind::Data, {"neither a JPEG nor a PNG", "empty"},
               [] { static_cast<void>(read_header({})); });
  expect_error(ErrorKind::Data, {"neither a JPEG nor a PNG", "begins with the bytes 3c 68 74 6d"},
               [] { static_cast<void>(read_header(bytes_of("<html><body>"))); });
  const Bytes two = encode_jpeg(make_image(8, 8), {.colours = JpegColours::TwoChannels});
  expect_error(ErrorKind::Data, {"JPEG", "2 channels"},
               [&] { static_cast<void>(read_header(two)); });
}

TEST(ImageHeaderTest, HeadersCutAnywhereAreErrors) {
  for (const Bytes& file : {encode_jpeg(make_image(8, 8)), encode_png(make_image(8, 8))}) {
    // The pixels of both begin well after 60 bytes.
    const std::size_t whole = format_of(file) == ImageFormat::Png ? 33 : 500;
    ASSERT_GT(file.size(), whole);
    for (std::size_t size = 0; size < whole; ++size)
      expect_error(ErrorKind::Data, {},
                   [&] { static_cast<void>(read_header(std::span(file).first(size))); });
    EXPECT_EQ(read_header(file).width, 8);
  }
}

TEST(ImageHeaderTest, SizesBeyondTheLimitsAreRefused) {
  const Bytes file = encode_jpeg(make_image(8, 8));
  expect_error(ErrorKind::Data, {"65500 x 65500", "16384 per side"},
               [&] { static_cast<void>(read_header(with_jpeg_size(file, 65500, 65500))); });
  expect_error(ErrorKind::Data, {"16385 x 1", "16384 per side"},
               [&] { static_cast<void>(read_header(with_jpeg_size(file, 16385, 1))); });
  expect_error(ErrorKind::Data, {"16384 x 4097", "67108864"},
               [&] { static_cast<void>(read_header(with_jpeg_size(file, 16384, 4097))); });
  EXPECT_EQ(read_header(with_jpeg_size(file, 16384, 4096)).width, 16384);
  // The library's own limit is below 65535.
  expect_error(ErrorKind::Data, {"JPEG", "65500"},
               [&] { static_cast<void>(read_header(with_jpeg_size(file, 65535, 65535))); });
  ImageDecoder decoder;
  expect_error(ErrorKind::Data, {"16384 per side"},
               [&] { decode(decoder, with_jpeg_size(file, 65500, 65500)); });
  EXPECT_EQ(decoder.buffer_bytes(), 0u);
}

}  // namespace
}  // namespace millrace::io
