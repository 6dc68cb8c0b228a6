// SPDX-License-Identifier: Apache-2.0
//
// Uses only integers, and floats with + - x /, which IEEE 754 defines exactly. It calls no library
// function whose rounding could differ between machines.
#include "tools/data/generate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/random.hpp"
#include "io/atomic_file.hpp"
#include "io/data/cifar.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSide = 32;
constexpr std::size_t kPlane = kSide * kSide;

/// Position of pixel i of a plane.
float row_of(std::size_t i) {
  const std::size_t row = i / kSide;
  return static_cast<float>(row);
}
float column_of(std::size_t i) { return static_cast<float>(i % kSide); }
constexpr std::size_t kChannels = 3;
constexpr std::int64_t kRecordsPerFile = 10'000;

using Colour = std::array<float, kChannels>;

/// Random numbers of one record, in the order of the calls.
class Dice {
 public:
  Dice(const RandomStream& stream, std::uint64_t record) : stream_(stream), record_(record) {}

  std::uint32_t word() {
    if (used_ == block_.size()) {
      block_ = stream_.block(record_, next_block_++);
      used_ = 0;
    }
    return block_[used_++];
  }
  float between(float low, float high) { return low + (high - low) * uniform01(word()); }
  /// Mean 0, deviation 1, nearly normal: the sum of four uniform bytes, scaled.
  float noise() {
    constexpr float kMean = 4.0f * 127.5f;
    constexpr float kInverseDeviation = 1.0f / 147.8f;  // sqrt(4 (256^2 - 1) / 12)
    const std::uint32_t w = word();
    const std::uint32_t sum = (w & 255u) + ((w >> 8) & 255u) + ((w >> 16) & 255u) + (w >> 24);
    return (static_cast<float>(sum) - kMean) * kInverseDeviation;
  }

 private:
  RandomStream stream_;
  std::uint64_t record_;
  std::uint64_t next_block_ = 0;
  RandomBlock block_{};
  std::size_t used_ = block_.size();
};

/// Figures in the order of kGeneratedClasses.
enum class Figure : std::uint8_t {
  Disc,
  Ring,
  Square,
  Frame,
  Triangle,
  Cross,
  Plus,
  Rows,
  Columns,
  Checkers
};

/// Whether the band of width `width`, counted from the edge at -0.9, is even.
bool in_even_band(float x, float width) { return static_cast<int>((x + 0.9f) / width) % 2 == 0; }

/// Whether the figure covers the point (u, v); figures fill about -0.9 .. 0.9, v points down.
bool covers(Figure figure, float u, float v) {
  const float across = std::abs(u);
  const float down = std::abs(v);
  const float outer = std::max(across, down);
  const float radius2 = u * u + v * v;
  switch (figure) {
    case Figure::Disc:
      return radius2 <= 0.81f;
    case Figure::Ring:
      return radius2 <= 0.92f && radius2 >= 0.34f;
    case Figure::Square:
      return outer <= 0.8f;
    case Figure::Frame:
      return outer <= 0.88f && outer >= 0.5f;
    case Figure::Triangle:
      return v <= 0.75f && across <= (v + 0.95f) * 0.58f;
    case Figure::Cross:
      return outer <= 0.8f && std::abs(across - down) <= 0.3f;
    case Figure::Plus:
      return outer <= 0.95f && std::min(across, down) <= 0.25f;
    case Figure::Rows:
      return outer <= 0.9f && in_even_band(v, 0.36f);
    case Figure::Columns:
      return outer <= 0.9f && in_even_band(u, 0.36f);
    case Figure::Checkers:
      return outer <= 0.9f && in_even_band(u, 0.45f) == in_even_band(v, 0.45f);
  }
  return false;
}

/// Position, size and angle of a figure.
struct Pose {
  float x, y;          ///< center in pixels
  float cosine, sine;  ///< of the angle, divided by the size: converts pixels to figure coordinates
};

Pose draw_pose(Dice& dice) {
  const float x = dice.between(11.0f, 21.0f);
  const float y = dice.between(11.0f, 21.0f);
  const float radius = dice.between(7.0f, 12.0f);
  // tan of half the angle gives both without a trigonometric function; up to +-15 degrees.
  const float t = dice.between(-0.13f, 0.13f);
  const float scale = 1.0f / ((1.0f + t * t) * radius);
  return {.x = x, .y = y, .cosine = (1.0f - t * t) * scale, .sine = 2.0f * t * scale};
}

Colour draw_colour(Dice& dice) {
  Colour colour;
  for (float& channel : colour) channel = dice.between(20.0f, 235.0f);
  return colour;
}

/// A color that differs from `other` enough to be visible despite the noise.
Colour draw_contrasting(Dice& dice, const Colour& other) {
  constexpr float kLeastContrast = 160.0f;
  for (;;) {
    const Colour colour = draw_colour(dice);
    float contrast = 0.0f;
    for (std::size_t c = 0; c < kChannels; ++c) contrast += std::abs(colour[c] - other[c]);
    if (contrast >= kLeastContrast) return colour;
  }
}

/// Share of each pixel that the figure covers, from 2 x 2 points.
std::array<float, kPlane> draw_coverage(Figure figure, const Pose& pose) {
  std::array<float, kPlane> coverage;
  for (std::size_t i = 0; i < kPlane; ++i) {
    float covered = 0.0f;
    for (const float y_offset : {0.25f, 0.75f}) {
      for (const float x_offset : {0.25f, 0.75f}) {
        const float dx = column_of(i) + x_offset - pose.x;
        const float dy = row_of(i) + y_offset - pose.y;
        const float u = pose.cosine * dx + pose.sine * dy;
        const float v = pose.cosine * dy - pose.sine * dx;
        covered += covers(figure, u, v) ? 0.25f : 0.0f;
      }
    }
    coverage[i] = covered;
  }
  return coverage;
}

std::byte to_byte(float value) {
  return static_cast<std::byte>(std::lround(std::clamp(value, 0.0f, 255.0f)));
}

/// Colors of a figure.
struct Colours {
  Colour ground, ink;
};

Colours draw_colours(Dice& dice) {
  const Colour ground = draw_colour(dice);
  return {ground, draw_contrasting(dice, ground)};
}

/// A random color close to a tint, in the order of kGeneratedTints.
Colours draw_colours(Dice& dice, std::size_t tint) {
  constexpr std::array<Colour, kGeneratedTints.size()> kInks = {{{220, 40, 40},
                                                                 {40, 170, 60},
                                                                 {50, 80, 220},
                                                                 {225, 215, 50},
                                                                 {210, 60, 200},
                                                                 {60, 205, 215},
                                                                 {230, 230, 230},
                                                                 {25, 25, 25},
                                                                 {235, 135, 30},
                                                                 {120, 75, 40}}};
  Colour ink = kInks[tint];
  for (float& channel : ink) channel += dice.between(-18.0f, 18.0f);
  return {draw_contrasting(dice, ink), ink};
}

void draw_pixels(Figure figure, const Pose& pose, const Colours& colours, Dice& dice,
                 std::byte* pixels) {
  const auto coverage = draw_coverage(figure, pose);
  const auto& [ground, ink] = colours;
  const float deviation = dice.between(5.0f, 30.0f);
  const float slope_x = dice.between(-1.5f, 1.5f);  // uneven light, in gray levels per pixel
  const float slope_y = dice.between(-1.5f, 1.5f);
  for (std::size_t c = 0; c < kChannels; ++c) {
    const float difference = ink[c] - ground[c];
    for (std::size_t i = 0; i < kPlane; ++i) {
      const float light = slope_x * (column_of(i) - 15.5f) + slope_y * (row_of(i) - 15.5f);
      const float value = ground[c] + light + coverage[i] * difference + deviation * dice.noise();
      pixels[c * kPlane + i] = to_byte(value);
    }
  }
}

/// Differences between the two layouts.
struct Kind {
  CifarKind kind;
  std::uint64_t classes;
  std::string_view test;
  std::string_view names;
  std::int64_t max_train_files;
  [[nodiscard]] std::size_t record_bytes() const { return layout_of(kind).record_bytes(); }
  [[nodiscard]] fs::path train(const fs::path& directory, std::int64_t number) const {
    return directory /
           (kind == CifarKind::Cifar10 ? fmt::format("data_batch_{}.bin", number) : "train.bin");
  }
};
constexpr std::uint64_t kTints = kGeneratedTints.size();
constexpr Kind kTen{CifarKind::Cifar10, kGeneratedClasses.size(), "test_batch.bin",
                    "batches.meta.txt", 5};
constexpr Kind kHundred{CifarKind::Cifar100, kGeneratedClasses.size() * kTints, "test.bin",
                        "fine_label_names.txt", 1};

/// One record of class `label` at `record`.
void draw_record(CifarKind kind, std::uint64_t label, Dice& dice, std::byte* record) {
  constexpr std::uint64_t kFineInCoarse = 5;
  const bool ten = kind == CifarKind::Cifar10;
  if (!ten) *record++ = static_cast<std::byte>(label / kFineInCoarse);
  *record++ = static_cast<std::byte>(label);
  const Pose pose = draw_pose(dice);
  const Colours colours = ten ? draw_colours(dice) : draw_colours(dice, label % kTints);
  draw_pixels(static_cast<Figure>(ten ? label : label / kTints), pose, colours, dice, record);
}

/// One split: records with balanced labels in random order.
class DrawnSplit {
 public:
  /// `number` makes the random numbers of the splits differ.
  DrawnSplit(const Kind& kind, std::uint64_t seed, std::uint64_t number, std::int64_t records)
      : kind_(kind),
        stream_(seed, RandomPurpose::GeneratedData, number),
        order_(mix_bits(seed) + number, 0, static_cast<std::uint64_t>(records)) {}

  void write(const fs::path& path, std::int64_t begin, std::int64_t end) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(end - begin) * kind_.record_bytes());
    std::byte* at = bytes.data();
    for (auto record = static_cast<std::uint64_t>(begin); record < static_cast<std::uint64_t>(end);
         ++record, at += kind_.record_bytes()) {
      Dice dice(stream_, record);
      draw_record(kind_.kind, order_(record) % kind_.classes, dice, at);
    }
    const std::span<const std::byte> pieces[] = {bytes};
    write_file_atomically(path, pieces);
  }

 private:
  Kind kind_;
  RandomStream stream_;
  Permutation order_;
};

void check(const GenerateOptions& options) {
  constexpr std::int64_t kMaxTrain = 500'000;
  constexpr std::int64_t kMaxTest = 100'000;
  if (options.train_records < 1 || options.train_records > kMaxTrain)
    fail(ErrorKind::Config, "{} training images cannot be generated: choose 1 to {}",
         options.train_records, kMaxTrain);
  if (options.test_records < 1 || options.test_records > kMaxTest)
    fail(ErrorKind::Config, "{} test images cannot be generated: choose 1 to {}",
         options.test_records, kMaxTest);
}

/// Never overwrites a set: it might be the real one.
void refuse_existing_set(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    std::error_code error;
    if (fs::exists(fs::symlink_status(file, error)))
      fail(ErrorKind::Usage, "{}: already exists: remove the old set or choose another directory",
           file.string());
  }
}

void make_folder(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error)
    fail(ErrorKind::Io, "{}: cannot be created ({}): choose another directory", directory.string(),
         error.message());
}

std::string class_names(const Kind& kind) {
  std::string text;
  for (const std::string_view figure : kGeneratedClasses) {
    if (kind.kind == CifarKind::Cifar10) text += fmt::format("{}\n", figure);
    if (kind.kind == CifarKind::Cifar100)
      for (const std::string_view tint : kGeneratedTints)
        text += fmt::format("{} {}\n", tint, figure);
  }
  return text;
}

void generate(const Kind& kind, const fs::path& directory, const GenerateOptions& options) {
  check(options);
  make_folder(directory);
  std::vector<fs::path> files = {directory / kind.test, directory / kind.names};
  for (std::int64_t n = 1; n <= kind.max_train_files; ++n)
    files.push_back(kind.train(directory, n));
  refuse_existing_set(files);
  DrawnSplit(kind, options.seed, 1, options.test_records)
      .write(directory / kind.test, 0, options.test_records);
  write_file_atomically(directory / kind.names, class_names(kind));

  const std::int64_t count = std::clamp<std::int64_t>(
      (options.train_records + kRecordsPerFile - 1) / kRecordsPerFile, 1, kind.max_train_files);
  const auto end_of = [&](std::int64_t n) { return options.train_records * n / count; };
  std::string counts;
  for (std::int64_t n = 1; n <= count; ++n)
    counts += fmt::format("{} {}\n", kind.train(directory, n).filename().string(),
                          end_of(n) - end_of(n - 1));
  const std::string test_count = fmt::format("{} {}\n", kind.test, options.test_records);
  const bool test_first = kind.kind == CifarKind::Cifar10;
  counts = test_first ? test_count + counts : counts + test_count;
  write_file_atomically(directory / kRecordCountsName, counts);
  // The first file is written last: without it, the folder is not accepted as a training set.
  const DrawnSplit train(kind, options.seed, 0, options.train_records);
  for (std::int64_t n = count; n >= 1; --n)
    train.write(kind.train(directory, n), end_of(n - 1), end_of(n));
}

}  // namespace

void generate_cifar10_like(const fs::path& directory, const GenerateOptions& options) {
  generate(kTen, directory, options);
}

void generate_cifar100_like(const fs::path& directory, const GenerateOptions& options) {
  generate(kHundred, directory, options);
}

}  // namespace millrace::io
