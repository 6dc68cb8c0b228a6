// SPDX-License-Identifier: Apache-2.0
#include "io/images/reader.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include "core/random.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/support/file_bytes.hpp"
#include "tests/support/sanitizers.hpp"

namespace millrace::io {
namespace {

/// Boxes at every border and some in between.
std::vector<PixelBox> boxes_in(std::int32_t width, std::int32_t height) {
  std::vector<PixelBox> boxes = {{0, 0, height, width},
                                 {0, 0, 1, 1},
                                 {height - 1, width - 1, height, width},
                                 {0, 0, height, 1},
                                 {0, 0, 1, width},
                                 {height - 1, 0, height, width},
                                 {0, width - 1, height, width}};
  const RandomStream stream(1, RandomPurpose::GeneratedData);
  for (std::uint64_t i = 0; i < 60; ++i) {
    const RandomBlock words = stream.block(7, i);
    const auto between = [](std::uint32_t word, std::int32_t from, std::int32_t to) {
      return from +
             static_cast<std::int32_t>(uniform_below(word, static_cast<std::uint32_t>(to - from)));
    };
    const std::int32_t top = between(words[0], 0, height);
    const std::int32_t left = between(words[1], 0, width);
    boxes.push_back(
        {top, left, between(words[2], top, height) + 1, between(words[3], left, width) + 1});
  }
  return boxes;
}

void expect_boxes_agree(const Bytes& file, const std::string& what) {
  ImageDecoder decoder;
  const Image whole = copy_of(decode(decoder, file).view);
  for (const PixelBox& box : boxes_in(whole.width, whole.height)) {
    const DecodedImage part = decode(decoder, file, box);
    ASSERT_EQ(part.view.box, box);
    ASSERT_EQ(part.state, ImageState::Whole);
    ASSERT_TRUE(copy_of(part.view).bytes == cut(whole, box).bytes)
        << what << ", rows " << box.top << " to " << box.bottom << ", columns " << box.left
        << " to " << box.right;
  }
}

struct Sampling {
  int horizontal;
  int vertical;
};
constexpr Sampling kSamplings[] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}};

TEST(ImageDecoderTest, BoxesOfJpegsEqualThoseOfTheWholeImage) {
  for (const auto& [width, height] : {std::pair{100, 70}, {67, 53}, {17, 9}, {3, 40}}) {
    const Image image = make_image(width, height);
    for (const Sampling& sampling : kSamplings) {
      for (const bool progressive : {false, true}) {
        const JpegOptions options{.horizontal = sampling.horizontal,
                                  .vertical = sampling.vertical,
                                  .progressive = progressive};
        expect_boxes_agree(encode_jpeg(image, options),
                           fmt::format("{} x {}, {} x {}, progressive {}", width, height,
                                       sampling.horizontal, sampling.vertical, progressive));
      }
    }
    expect_boxes_agree(encode_jpeg(image, {.colours = JpegColours::Gray}), "gray");
    expect_boxes_agree(encode_jpeg(image, {.colours = JpegColours::Cmyk}), "CMYK");
    expect_boxes_agree(encode_jpeg(image, {.horizontal = 2, .vertical = 2, .restart_rows = 1}),
                       "restarts");
  }
}

TEST(ImageDecoderTest, BoxesOfPhotosEqualThoseOfTheWholeImage) {
  const auto folder = real_data("image_folder");
  if (!folder) GTEST_SKIP() << "no real data: image_folder";
  std::size_t photos = 0;
  for (const auto& entry : fs::recursive_directory_iterator(*folder)) {
    if (!entry.is_regular_file()) continue;
    expect_boxes_agree(test::file_bytes(entry.path()), entry.path().filename().string());
    if (++photos == 4) return;
  }
}

TEST(ImageDecoderTest, JpegsKeepTheirColours) {
  const Image image = make_image(64, 48);
  ImageDecoder decoder;
  for (const JpegColours colours : {JpegColours::YCbCr, JpegColours::Rgb}) {
    const Image decoded =
        copy_of(decode(decoder, encode_jpeg(image, {.colours = colours, .quality = 100})).view);
    ASSERT_EQ(decoded.bytes.size(), image.bytes.size());
    for (std::size_t i = 0; i < decoded.bytes.size(); ++i)
      ASSERT_NEAR(decoded.bytes[i], image.bytes[i], 5) << i;
  }
  const Image gray = copy_of(
      decode(decoder, encode_jpeg(image, {.colours = JpegColours::Gray, .quality = 100})).view);
  for (std::size_t i = 0; i < gray.bytes.size(); ++i) {
    ASSERT_EQ(gray.bytes[i], gray.bytes[i - i % 3]);
    ASSERT_NEAR(gray.bytes[i], image.bytes[i - i % 3], 5);
  }
}

/// Conversion of ink to light, in double.
std::uint8_t light_of(double ink, double black) {
  return static_cast<std::uint8_t>(std::lround((255 - ink) * (255 - black) / 255));
}

TEST(ImageDecoderTest, CmykBecomesRgb) {
  const Image image = make_image(40, 30);
  // libjpeg writes Adobe's marker into both kinds, which means that 255 - ink is stored. A file
  // without it stores ink.
  for (const JpegColours colours : {JpegColours::Cmyk, JpegColours::Ycck}) {
    Bytes file = encode_jpeg(image, {.colours = colours});
    for (const bool adobe : {true, false}) {
      if (!adobe) {
        if (colours == JpegColours::Ycck) continue;  // only the marker distinguishes it from CMYK
        const std::string_view marker = "Adobe";
        const auto place = std::search(file.begin(), file.end(), marker.begin(), marker.end(),
                                       [](std::byte a, char b) { return a == std::byte(b); });
        ASSERT_NE(place, file.end());
        *place = std::byte{'B'};
      }
      ImageDecoder decoder;
      const std::vector<std::uint8_t> inks = stored_inks(file);
      ASSERT_EQ(inks.size(), 40u * 30u * 4u);
      const Image light = copy_of(decode(decoder, file).view);
      for (std::size_t i = 0; i < 40u * 30u; ++i) {
        const auto ink = [&](std::size_t c) {
          return adobe ? 255.0 - inks[4 * i + c] : static_cast<double>(inks[4 * i + c]);
        };
        for (std::size_t c = 0; c < 3; ++c)
          ASSERT_EQ(light.bytes[3 * i + c], light_of(ink(c), ink(3))) << adobe << " " << i;
      }
    }
  }
}

TEST(ImageDecoderTest, PngsAreExact) {
  const Image image = make_image(53, 31);
  ImageDecoder decoder;
  for (const bool interlaced : {false, true}) {
    for (const PngColours colours : {PngColours::Rgb, PngColours::Rgba, PngColours::Rgb16,
                                     PngColours::Gray, PngColours::Palette}) {
      Image expected = image;
      for (std::size_t i = 0; i < expected.bytes.size(); i += 3) {
        std::uint8_t* const pixel = expected.bytes.data() + i;
        if (colours == PngColours::Gray) pixel[1] = pixel[2] = pixel[0];
        if (colours == PngColours::Palette) {
          pixel[1] = static_cast<std::uint8_t>(255 - pixel[0]);
          pixel[2] = pixel[0] / 2;
        }
      }
      const Bytes file = encode_png(image, {.colours = colours, .interlaced = interlaced});
      EXPECT_EQ(copy_of(decode(decoder, file).view).bytes, expected.bytes);
      expect_boxes_agree(file, "PNG");
    }
  }
}

TEST(ImageDecoderTest, PngsCutAnywhereAreErrors) {
  const Bytes file = encode_png(make_image(40, 40));
  ImageDecoder decoder;
  for (std::size_t size = 0; size < file.size(); size += 7)
    expect_error(ErrorKind::Data, {}, [&] { decode(decoder, std::span(file).first(size)); });
  Bytes flipped = file;
  flipped[file.size() / 2] ^= std::byte{1};
  expect_error(ErrorKind::Data, {"PNG"}, [&] { decode(decoder, flipped); });
}

TEST(ImageDecoderTest, MissingPixelsAreReported) {
  const Image image = make_image(160, 120);
  for (const bool progressive : {false, true}) {
    const Bytes file =
        encode_jpeg(image, {.horizontal = 2, .vertical = 2, .progressive = progressive});
    ImageDecoder decoder;
    const Image whole = copy_of(decode(decoder, file).view);
    const DecodedImage half = decode(decoder, std::span(file).first(file.size() / 2));
    EXPECT_EQ(half.state, ImageState::Damaged);
    EXPECT_EQ(half.warning, "Premature end of JPEG file");
    EXPECT_NE(copy_of(half.view).bytes, whole.bytes);
    if (progressive) continue;
    // Existing data is decoded, and data after a box is not read.
    const PixelBox box{.top = 0, .left = 0, .bottom = 32, .right = 160};
    const DecodedImage top = decode(decoder, std::span(file).first(file.size() / 2), box);
    EXPECT_EQ(top.state, ImageState::Whole);
    EXPECT_EQ(top.warning, "");
    EXPECT_EQ(copy_of(top.view).bytes, cut(whole, box).bytes);
    // Without the end marker, all pixels are still there.
    const DecodedImage markerless = decode(decoder, std::span(file).first(file.size() - 2));
    EXPECT_EQ(markerless.state, ImageState::Whole);
    EXPECT_EQ(markerless.warning, "Premature end of JPEG file");
    EXPECT_EQ(copy_of(markerless.view).bytes, whole.bytes);
    EXPECT_EQ(decode(decoder, file).warning, "");
  }
}

// The arithmetic decoder invents missing data and only reports that the file ended.
TEST(ImageDecoderTest, MissingArithmeticCodesAreReported) {
  const Bytes file = encode_jpeg(make_image(160, 120), {.arithmetic = true});
  ImageDecoder decoder;
  EXPECT_EQ(decode(decoder, file).state, ImageState::Whole);
  for (const std::size_t size : {file.size() / 4, file.size() / 2, file.size() - 20})
    EXPECT_EQ(decode(decoder, std::span(file).first(size)).state, ImageState::Damaged) << size;
}

// If passes are missing, libjpeg may smooth blocks from their neighbors, including those outside a
// box.
TEST(ImageDecoderTest, BoxesOfCutProgressiveJpegsEqualThoseOfTheWholeImage) {
  const Bytes file =
      encode_jpeg(make_image(160, 120), {.horizontal = 2, .vertical = 2, .progressive = true});
  ImageDecoder decoder;
  for (const std::size_t tenths : {2u, 3u, 5u, 8u}) {
    const auto half = std::span(file).first(file.size() * tenths / 10);
    const Image whole = copy_of(decode(decoder, half).view);
    for (const PixelBox& box : boxes_in(whole.width, whole.height)) {
      const DecodedImage part = decode(decoder, half, box);
      EXPECT_EQ(part.state, ImageState::Damaged);
      ASSERT_TRUE(copy_of(part.view).bytes == cut(whole, box).bytes)
          << tenths << " tenths, rows " << box.top << " to " << box.bottom << ", columns "
          << box.left << " to " << box.right;
    }
  }
}

/// `file` without the segments of this marker.
Bytes without_segments(const Bytes& file, unsigned marker) {
  Bytes result(file.begin(), file.begin() + 2);
  std::size_t i = 2;
  const auto at = [&](std::size_t place) { return std::to_integer<unsigned>(file[place]); };
  while (at(i + 1) != 0xda) {
    const std::size_t length = 2 + 256 * at(i + 2) + at(i + 3);
    const auto begin = file.begin() + static_cast<std::ptrdiff_t>(i);
    if (at(i + 1) != marker)
      result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(length));
    i += length;
  }
  result.insert(result.end(), file.begin() + static_cast<std::ptrdiff_t>(i), file.end());
  return result;
}

TEST(ImageDecoderTest, TablesAreNotKeptForTheNextImage) {
  constexpr unsigned kQuantisation = 0xdb;
  const Bytes file = encode_jpeg(make_image(32, 32));
  const Bytes lacking = without_segments(file, kQuantisation);
  ASSERT_LT(lacking.size(), file.size());
  ImageDecoder decoder;
  decode(decoder, file);
  expect_error(ErrorKind::Data, {"JPEG", "uantization table"}, [&] { decode(decoder, lacking); });
}

// As TensorFlow's decoder and Pillow's Image.open do, unlike programs that show photos.
TEST(ImageDecoderTest, ExifOrientationChangesNothing) {
  // Its only entry: orientation (0x0112) 6, a quarter turn to the right.
  constexpr std::string_view kExif(
      "\xff\xe1\0\x22"
      "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
      36);
  const Bytes file = encode_jpeg(make_image(40, 24));
  Bytes turned(file.begin(), file.begin() + 2);
  const auto exif = std::as_bytes(std::span(kExif));
  turned.insert(turned.end(), exif.begin(), exif.end());
  turned.insert(turned.end(), file.begin() + 2, file.end());
  EXPECT_EQ(read_header(turned), read_header(file));
  EXPECT_EQ(read_header(turned).width, 40);
  ImageDecoder decoder;
  const Image plain = copy_of(decode(decoder, file).view);
  EXPECT_TRUE(copy_of(decode(decoder, turned).view).bytes == plain.bytes);
}

TEST(ImageDecoderTest, ManyPassesAreRefused) {
  const Image image = make_image(64, 64);
  const auto with_scans = [&](int scans) {
    return encode_jpeg(image, {.progressive = true, .colours = JpegColours::Gray, .scans = scans});
  };
  // The standard allows only 64 passes; the last one is repeated to get more.
  const Bytes file = with_scans(64);
  ImageDecoder decoder;
  EXPECT_EQ(decode(decoder, file).state, ImageState::Whole);
  const std::byte scan_marker[] = {std::byte{0xff}, std::byte{0xda}};
  const auto last =
      std::find_end(file.begin(), file.end(), std::begin(scan_marker), std::end(scan_marker));
  ASSERT_NE(last, file.end());
  const Bytes scan(last, file.end() - 2);
  Bytes bomb = file;
  for (int i = 0; i < 1000; ++i) bomb.insert(bomb.end() - 2, scan.begin(), scan.end());
  expect_error(ErrorKind::Data, {"JPEG", "more than 100 passes"}, [&] { decode(decoder, bomb); });
}

TEST(ImageDecoderTest, LargeImagesMayMakeFewerPasses) {
  // 30 passes over 8192 x 4096 pixels with hardly any data.
  const Bytes file = encode_jpeg(make_image(8, 8),
                                 {.progressive = true, .colours = JpegColours::Gray, .scans = 30});
  ImageDecoder decoder;
  expect_error(ErrorKind::Data, {"JPEG", "more than 12 passes"},
               [&] { decode(decoder, with_jpeg_size(file, 8192, 4096)); });
}

enum class Outcome { Refused, Decoded };

/// Additional peak memory, in MiB, of a child process in which a file is rejected or decoded; at
/// most 254, or 255 if the result is unexpected.
int peak_of(const Bytes& file, Outcome expected) {
  const auto field = [](const std::string& name) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
      if (word == name + ":" && status >> word) return std::stoll(word);
    return 0LL;
  };
  const pid_t child = fork();
  if (child == 0) {
    const long long before = field("VmRSS");
    Outcome outcome = Outcome::Decoded;
    try {
      ImageDecoder decoder;
      decode(decoder, file);
    } catch (const Error&) {
      outcome = Outcome::Refused;
    }
    if (outcome != expected) _exit(255);
    _exit(static_cast<int>(std::clamp((field("VmHWM") - before) >> 10, 0LL, 254LL)));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST(ImageDecoderTest, BombsTakeLittleMemory) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer's own memory would be measured";
  const Bytes passes = encode_jpeg(
      make_image(8, 8), {.progressive = true, .colours = JpegColours::Gray, .scans = 30});
  const Bytes coloured = encode_jpeg(make_image(8, 8), {.progressive = true});
  const std::vector<Bytes> bombs = {
      with_jpeg_size(passes, 65'535, 65'535), with_jpeg_size(passes, 8192, 4096),
      with_jpeg_size(passes, 16'384, 4096), with_jpeg_size(coloured, 8192, 8192)};
  for (const Bytes& bomb : bombs) EXPECT_LT(peak_of(bomb, Outcome::Refused), 100);
  expect_error(ErrorKind::Data, {"JPEG", "more than the limit of 96 MB"}, [&] {
    ImageDecoder decoder;
    decode(decoder, bombs.back());
  });
}

// A file of kilobytes that would expand to 70 MB of text.
TEST(ImageDecoderTest, CompressedTextsOfAPngAreSkipped) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer's own memory would be measured";
  const Image image = make_image(8, 8);
  const Bytes file = encode_png(image, {.texts = 10, .text_bytes = 7'000'000});
  ASSERT_LT(file.size(), std::size_t{1} << 20);
  ImageDecoder decoder;
  EXPECT_EQ(copy_of(decode(decoder, file).view).bytes, image.bytes);
  EXPECT_LT(peak_of(file, Outcome::Decoded), 5);
}

TEST(ImageDecoderTest, MemoryOfALargeImageIsFreed) {
  ImageDecoder decoder;
  decode(decoder, encode_jpeg(make_image(4096, 4096)));
  EXPECT_GE(decoder.buffer_bytes(), std::size_t{3} * 4096 * 4096);
  decode(decoder, encode_jpeg(make_image(640, 480)));
  EXPECT_LT(decoder.buffer_bytes(), std::size_t{2} << 20);
}

// ---- unusual JPEGs ------------------------------------------------------------------------------

struct OddJpeg {
  std::string file, size, colours, frame, outcome, digest;
};

std::vector<OddJpeg> read_manifest(const fs::path& folder) {
  std::ifstream manifest(folder / "MANIFEST.tsv");
  std::vector<OddJpeg> files;
  std::string line;
  std::getline(manifest, line);
  while (std::getline(manifest, line)) {
    std::vector<std::string> columns;
    std::istringstream stream(line);
    for (std::string column; std::getline(stream, column, '\t');) columns.push_back(column);
    columns.resize(10);
    files.push_back({columns[0], columns[3], columns[5], columns[6], columns[8], columns[9]});
  }
  return files;
}

ColourSpace colours_named(const std::string& name) {
  const std::map<std::string, ColourSpace> names = {
      {"YCbCr", ColourSpace::YCbCr}, {"Gray", ColourSpace::Gray}, {"YCCK", ColourSpace::Ycck}};
  return names.at(name);
}

void expect_as_listed(const OddJpeg& odd, const Bytes& file) {
  SCOPED_TRACE(odd.file);
  ImageDecoder decoder;
  if (odd.outcome.starts_with("header error") || odd.size == "0x0") {
    if (format_of(file) == ImageFormat::Png)  // a PNG by content, whatever its name
      EXPECT_EQ(decode(decoder, file).state, ImageState::Whole);
    else
      expect_error(ErrorKind::Data, {}, [&] { decode(decoder, file); });
    return;
  }
  const ImageHeader header = read_header(file);
  EXPECT_EQ(fmt::format("{}x{}", header.width, header.height), odd.size);
  EXPECT_EQ(header.colours, colours_named(odd.colours));
  EXPECT_EQ(header.progressive, odd.frame.starts_with("SOF2"));
  const DecodedImage decoded = decode(decoder, file);
  EXPECT_EQ(decoded.warning, odd.outcome == "ok" ? "" : odd.outcome.substr(8));
  const bool damaged = odd.file.find("truncated") != std::string::npos;
  EXPECT_EQ(decoded.state, damaged ? ImageState::Damaged : ImageState::Whole);
  const std::string digest = header.colours == ColourSpace::Ycck
                                 ? short_digest(stored_inks(file))
                                 : short_digest(copy_of(decoded.view).bytes);
  EXPECT_EQ(digest, odd.digest);
}

TEST(ImageDecoderTest, OddJpegsDecodeAsListed) {
  const auto folder = real_data("odd_jpeg");
  if (!folder) GTEST_SKIP() << "no real data: odd_jpeg";
  const std::vector<OddJpeg> files = read_manifest(*folder);
  EXPECT_EQ(files.size(), 23u);
  for (const OddJpeg& odd : files) expect_as_listed(odd, test::file_bytes(*folder / odd.file));
}

}  // namespace
}  // namespace millrace::io
