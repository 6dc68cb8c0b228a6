// SPDX-License-Identifier: Apache-2.0
//
// Speed of reading photos: decoding whole photos, decoding the random crops of training, and the
// complete path to a network's input.
//
//   images_bench [--benchmark_filter=REGEX ..] [SHARD]
//
// SHARD is a TFRecord file; the default is one of tfrecord_imagenet_photos of the test data. Rates
// are photos per CPU second of one thread; those of loaders are per second of wall time. Every
// benchmark uses the same crops, those of the first epochs, in the same order. compare_pillow.py
// compares the rates with each other and with Pillow's.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/data/example.hpp"
#include "io/data/image_dataset.hpp"
#include "io/data/loader.hpp"
#include "io/data/packed_images.hpp"
#include "io/data/record_frame.hpp"
#include "io/images/reader.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tools/data/pack.hpp"

namespace millrace::io {
namespace {

using benchmark::State;
using Bytes = std::vector<std::byte>;

constexpr std::int32_t kSide = 224;
constexpr std::size_t kImageBytes = std::size_t{3} * kSide * kSide;
constexpr std::uint64_t kEpochs = 4;
constexpr std::int64_t kBatch = 32;

// ---- photos -------------------------------------------------------------------------------------

std::vector<Bytes> read_photos(const std::filesystem::path& shard) {
  std::vector<Bytes> photos;
  ByteWindow file(shard);
  ReadBuffer buffer;
  FrameWalk walk(file);
  for (Frame frame = walk.next(); frame.kind == Frame::Kind::Record; frame = walk.next()) {
    Example example;
    const std::string problem = parse_example(
        file.at(frame.begin + kFrameHeadBytes, static_cast<std::size_t>(frame.payload_bytes())),
        example, buffer);
    if (!problem.empty()) throw std::runtime_error(fmt::format("{}: {}", shard.string(), problem));
    photos.emplace_back(example.encoded.begin(), example.encoded.end());
  }
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

/// Photos in memory, all of one class.
class MemoryImages final : public ImageDataset {
 public:
  explicit MemoryImages(const std::vector<Bytes>& photos) : photos_(photos) {}
  [[nodiscard]] std::string name() const override { return "photos"; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(photos_); }
  [[nodiscard]] std::int64_t classes() const override { return 1; }
  [[nodiscard]] std::int32_t label(std::int64_t) const override { return 0; }
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override {
    return photos_[static_cast<std::size_t>(index)].size();
  }
  [[nodiscard]] std::uint32_t fingerprint() const override { return 0; }
  StoredImage stored(std::int64_t index, ReadBuffer&) const override {
    return {.bytes = photos_[static_cast<std::size_t>(index)], .boxes = {}};
  }
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return fmt::format("photo {}", index);
  }

 private:
  const std::vector<Bytes>& photos_;
};

/// Calls `read` with every photo in every epoch.
template <class Read>
void for_each_photo(State& state, const std::vector<Bytes>& photos, Read&& read) {
  while (state.KeepRunning())
    for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch)
      for (std::size_t i = 0; i < photos.size(); ++i)
        read(photos[i], DrawKey{.seed = 0, .epoch = epoch, .index = i});
  state.counters["images/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(kEpochs * photos.size()),
      benchmark::Counter::kIsRate);
}

DecodedImage whole_of(ImageDecoder& decoder, const Bytes& photo) {
  decoder.open(photo);
  return decoder.decode();
}

void decode_whole(State& state, const std::vector<Bytes>& photos) {
  ImageDecoder decoder;
  for_each_photo(state, photos, [&](const Bytes& photo, const DrawKey&) {
    benchmark::DoNotOptimize(whole_of(decoder, photo).view.pixels);
  });
}

/// Decodes the box that resampling needs, including reading the header and choosing the box.
void decode_box(State& state, const std::vector<Bytes>& photos, const ImagePreset& preset) {
  ImageDecoder decoder;
  Resampler resampler;
  for_each_photo(state, photos, [&](const Bytes& photo, const DrawKey& key) {
    const ImageWindow window = draw_window(preset.crop, key, decoder.open(photo), {}, kSide);
    const PixelBox box = resampler.prepare(window, preset.training, kSide);
    benchmark::DoNotOptimize(decoder.decode(box).view.pixels);
  });
}

void prepare(State& state, const std::vector<Bytes>& photos, const ImagePreset& preset) {
  ImageReader reader;
  const PixelScaling scaling = scaling_of(preset.statistics(), kSide);
  std::vector<std::uint8_t> bytes(kImageBytes);
  std::vector<bfloat16> values(kImageBytes);
  for_each_photo(state, photos, [&](const Bytes& photo, const DrawKey& key) {
    reader.read({.bytes = photo}, preset, key, kSide, bytes);
    normalise_bytes<bfloat16>(bytes, scaling, {kSide, kSide, 3}, values);
    benchmark::ClobberMemory();
  });
}

/// Everything except decoding.
void resample(State& state, const std::vector<Bytes>& photos, const ImagePreset& preset) {
  ImageDecoder decoder;
  Resampler resampler;
  const DecodedImage photo = whole_of(decoder, photos.front());
  const ImageHeader header = read_header(photos.front());
  std::vector<std::uint8_t> bytes(kImageBytes);
  for_each_photo(state, photos, [&](const Bytes&, const DrawKey& key) {
    const ImageWindow window = draw_window(preset.crop, key, header, {}, kSide);
    static_cast<void>(resampler.prepare(window, preset.training, kSide));
    resampler.resample(photo.view, bytes);
    benchmark::ClobberMemory();
  });
}

/// Micro-batches of a training as the device receives them, with all threads of the loader.
void load(State& state, const std::shared_ptr<const Dataset>& set, int threads) {
  Loader loader(set, SampleOrder::shuffled(0, set->size()),
                {.batch_size = kBatch, .type = DType::BF16, .threads = threads, .augment = true});
  while (state.KeepRunning()) benchmark::DoNotOptimize(loader.next());
  state.counters["images/s"] = benchmark::Counter(static_cast<double>(state.iterations() * kBatch),
                                                  benchmark::Counter::kIsRate);
}

/// Loaders with one thread and with two: the complete path from file to micro-batch.
void add_loaders(const std::vector<Bytes>& photos, const std::filesystem::path& packed,
                 const ImagePreset& preset) {
  const std::shared_ptr<ImageDataset> sets[] = {std::make_shared<MemoryImages>(photos),
                                                std::make_shared<PackedImages>(packed)};
  for (const auto& set : sets) {
    set->prepare_for({.preset = preset, .side = kSide, .report = {}});
    for (const int threads : {1, 2})
      benchmark::RegisterBenchmark(
          fmt::format("load/{}/{}/{}", set->name(), preset.name, threads).c_str(), load, set,
          threads)
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
  }
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
  const test::TemporaryDirectory folder;
  const std::filesystem::path packed = folder / "train.packed";
  static_cast<void>(write_packed_images(MemoryImages(photos), packed, {}));
  add("decode/whole", decode_whole, photos);
  for (const ImagePreset& preset : image_presets()) {
    add(fmt::format("decode/box/{}", preset.name), decode_box, photos, preset);
    add(fmt::format("training/{}", preset.name), prepare, photos, preset);
    add(fmt::format("resample/{}", preset.name), resample, photos, preset);
    add_loaders(photos, packed, preset);
  }
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
