// SPDX-License-Identifier: Apache-2.0
#include "io/tools/image_codec.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "io/images/header.hpp"
#include "tests/io/images/test_images.hpp"

namespace millrace::io {
namespace {

// At quality 100 only the color conversion rounds: a few levels at most.
TEST(EncoderTest, WhatIsWrittenIsReadBackAlmostEqual) {
  const Image image = make_image(61, 43);
  const std::vector<std::byte> file = encode_rgb_jpeg(image.view(), 100);
  const ImageHeader header = read_header(file);
  EXPECT_EQ(header.width, 61);
  EXPECT_EQ(header.height, 43);
  EXPECT_EQ(header.colours, ColourSpace::YCbCr);
  EXPECT_FALSE(header.progressive);
  ImageDecoder decoder;
  const Image back = copy_of(decode(decoder, file).view);
  ASSERT_EQ(back.bytes.size(), image.bytes.size());
  for (std::size_t i = 0; i < back.bytes.size(); ++i)
    ASSERT_LE(std::abs(back.bytes[i] - image.bytes[i]), 4) << i;
  EXPECT_EQ(encode_rgb_jpeg(image.view(), 100), file);
}

}  // namespace
}  // namespace millrace::io
