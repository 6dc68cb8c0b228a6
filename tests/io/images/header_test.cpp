// SPDX-License-Identifier: Apache-2.0
#include "io/images/header.hpp"

#include "io/images/reader.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/images/test_images.hpp"

namespace millrace::io {
namespace {

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
