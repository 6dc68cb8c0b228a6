// SPDX-License-Identifier: Apache-2.0
#include "io/images/reader.hpp"

#include <mutex>
#include <thread>

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

}  // namespace
}  // namespace millrace::io
