// SPDX-License-Identifier: Apache-2.0
//
// Speed of reading photos: decoding them whole, decoding the boxes that training draws, and all
// that becomes of a photo until a network can read it.
//
//   images_bench [--benchmark_filter=REGEX ..] [SHARD]
//
// SHARD is a TFRecord file with its .idx file (lines "offset size") beside it; by default the one
// in tfrecord_imagenet_photos of the real data. Rates are photos by CPU time of one thread. Every
// benchmark takes the same windows, those of the first epochs, in the same order.
// compare_pillow.py holds the rates against each other and against Pillow's.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "io/images/normalise.hpp"
#include "io/images/reader.hpp"

namespace millrace::io {
namespace {

using benchmark::State;
using Bytes = std::vector<std::byte>;

constexpr std::int32_t kSide = 224;
constexpr std::size_t kImageBytes = std::size_t{3} * kSide * kSide;
constexpr std::uint64_t kEpochs = 4;

// ---- photos -------------------------------------------------------------------------------------

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(fmt::format("cannot read {}", path.string()));
  const std::vector<char> characters{std::istreambuf_iterator<char>(file),
                                     std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(characters));
  return {bytes.begin(), bytes.end()};
}

/// The varint at the front, which is taken off.
std::size_t take_varint(std::span<const std::byte>& bytes) {
  std::size_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = std::to_integer<std::size_t>(bytes.front());
    bytes = bytes.subspan(1);
    value |= (byte & 127) << shift;
    if (byte < 128) return value;
  }
}

/// The value of image/encoded: behind the key the tag and length of a feature, of its list of
/// bytes, and of the first in that. The shard is trusted.
Bytes encoded_in(std::span<const std::byte> record) {
  constexpr std::string_view kKey = "image/encoded";
  const auto key = std::search(record.begin(), record.end(), kKey.begin(), kKey.end(),
                               [](std::byte a, char b) { return a == static_cast<std::byte>(b); });
  auto rest = record.subspan(static_cast<std::size_t>(key - record.begin()) + kKey.size());
  std::size_t size = 0;
  for (int level = 0; level < 3; ++level) {
    rest = rest.subspan(1);
    size = take_varint(rest);
  }
  return {rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(size)};
}

std::vector<Bytes> read_photos(const std::filesystem::path& shard) {
  const Bytes file = read_file(shard);
  std::ifstream index(shard.string() + ".idx");
  if (!index) throw std::runtime_error(fmt::format("cannot read {}.idx", shard.string()));
  std::vector<Bytes> photos;
  std::size_t offset = 0;
  for (std::size_t size = 0; index >> offset >> size;)
    photos.push_back(encoded_in(std::span(file).subspan(offset, size)));
  return photos;
}

std::filesystem::path default_shard() {
  const char* const variable = std::getenv("MILLRACE_TEST_DATA");
  const std::filesystem::path root =
      variable != nullptr ? std::filesystem::path(variable)
                          : std::filesystem::path(MILLRACE_SOURCE_DIR) / "../shared/data";
  return root / "tfrecord_imagenet_photos/train-00000-of-00002";
}

// ---- benchmarks ---------------------------------------------------------------------------------

/// Calls `read` with every photo in every epoch.
template <class Read>
void for_each_photo(State& state, const std::vector<Bytes>& photos, Read&& read) {
  for (auto _ : state)
    for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch)
      for (std::size_t i = 0; i < photos.size(); ++i)
        read(photos[i], DrawKey{.seed = 0, .epoch = epoch, .index = i});
  state.counters["images/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(kEpochs * photos.size()),
      benchmark::Counter::kIsRate);
}

void decode_whole(State& state, const std::vector<Bytes>& photos) {
  ImageDecoder decoder;
  for_each_photo(state, photos, [&](const Bytes& photo, const DrawKey&) {
    benchmark::DoNotOptimize(decoder.decode(photo).view.pixels);
  });
}

/// The box that resampling asks for, header and draw included.
void decode_box(State& state, const std::vector<Bytes>& photos, const ImagePreset& preset) {
  ImageDecoder decoder;
  Resampler resampler;
  for_each_photo(state, photos, [&](const Bytes& photo, const DrawKey& key) {
    const ImageWindow window = draw_window(preset.crop, key, read_header(photo), {}, kSide);
    const PixelBox box = resampler.prepare(window, preset.training, kSide);
    benchmark::DoNotOptimize(decoder.decode(photo, box).view.pixels);
  });
}

void prepare(State& state, const std::vector<Bytes>& photos, const ImagePreset& preset) {
  ImageReader reader;
  const PixelScaling scaling = scaling_of(preset.normalisation, kSide);
  std::vector<std::uint8_t> bytes(kImageBytes);
  std::vector<bfloat16> values(kImageBytes);
  for_each_photo(state, photos, [&](const Bytes& photo, const DrawKey& key) {
    reader.read_training(photo, {}, preset, key, kSide, bytes);
    normalise_pixels(bytes, scaling, std::span(values));
    benchmark::ClobberMemory();
  });
}

void validate(State& state, const std::vector<Bytes>& photos, const ImagePreset& preset) {
  ImageReader reader;
  const PixelScaling scaling = scaling_of(preset.normalisation, kSide);
  std::vector<std::uint8_t> bytes(kImageBytes);
  std::vector<bfloat16> values(kImageBytes);
  for_each_photo(state, photos, [&](const Bytes& photo, const DrawKey&) {
    reader.read_validation(photo, preset, kSide, bytes);
    normalise_pixels(bytes, scaling, std::span(values));
    benchmark::ClobberMemory();
  });
}

/// What is not decoding.
void resample(State& state, const std::vector<Bytes>& photos, const ImagePreset& preset) {
  ImageDecoder decoder;
  Resampler resampler;
  const DecodedImage photo = decoder.decode(photos.front());
  const ImageHeader header = read_header(photos.front());
  std::vector<std::uint8_t> bytes(kImageBytes);
  for_each_photo(state, photos, [&](const Bytes&, const DrawKey& key) {
    const ImageWindow window = draw_window(preset.crop, key, header, {}, kSide);
    static_cast<void>(resampler.prepare(window, preset.training, kSide));
    resampler.resample(photo.view, bytes);
    benchmark::ClobberMemory();
  });
}

void normalise(State& state, const std::vector<Bytes>& photos) {
  const PixelScaling scaling = scaling_of(ImageNormalisation::Torch, kSide);
  std::vector<std::uint8_t> bytes(kImageBytes, 100);
  std::vector<bfloat16> values(kImageBytes);
  for_each_photo(state, photos, [&](const Bytes&, const DrawKey&) {
    normalise_pixels(bytes, scaling, std::span(values));
    benchmark::ClobberMemory();
  });
}

template <class Function, class... Arguments>
void add(const std::string& name, Function* function, const std::vector<Bytes>& photos,
         const Arguments&... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), function, photos, arguments...)
      ->Unit(benchmark::kMillisecond);
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc > 2) {
    fmt::print(stderr, "usage: images_bench [--benchmark_filter=REGEX ..] [SHARD]\n");
    return 2;
  }
  const std::vector<Bytes> photos =
      read_photos(argc == 2 ? std::filesystem::path(argv[1]) : default_shard());
  add("decode/whole", decode_whole, photos);
  for (const ImagePreset& preset : image_presets()) {
    add(fmt::format("decode/box/{}", preset.name), decode_box, photos, preset);
    add(fmt::format("training/{}", preset.name), prepare, photos, preset);
    add(fmt::format("validation/{}", preset.name), validate, photos, preset);
    add(fmt::format("resample/{}", preset.name), resample, photos, preset);
  }
  add("normalise/bfloat16", normalise, photos);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace millrace::io

int main(int argc, char** argv) {
  try {
    return millrace::io::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
