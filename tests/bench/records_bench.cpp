// SPDX-License-Identifier: Apache-2.0
//
// Reading data without decoding: checksums, the index of a million small records, records in random
// order, packed images. Files are in the folder for temporary files and in the page cache.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/random.hpp"
#include "io/data/example.hpp"
#include "io/data/imagenet.hpp"
#include "io/data/packed_images.hpp"
#include "io/data/record_frame.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tools/data/pack.hpp"
#include "tools/data/write_records.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSmallRecords = 1'000'000;
constexpr std::size_t kShards = 8;

void write_shards(const fs::path& folder, std::size_t shards, std::size_t records,
                  std::size_t image_bytes) {
  const std::vector<std::byte> image(image_bytes, std::byte{0x5a});
  std::vector<std::byte> payload;
  for (std::size_t s = 0; s < shards; ++s) {
    RecordWriter writer(folder / fmt::format("train-{:05}-of-{:05}", s, shards));
    for (std::size_t i = s * records / shards; i < (s + 1) * records / shards; ++i) {
      write_example({.encoded = image,
                     .height = 1,
                     .width = 1,
                     .label = 1 + static_cast<std::int64_t>(i % 1000),
                     .synset = "n01440764",
                     .filename = "n01440764_10026.JPEG",
                     .boxes = {}},
                    payload);
      writer.append(payload);
    }
    writer.commit();
  }
}

OpenOptions options_with(unsigned threads) {
  OpenOptions options;
  options.index.threads = threads;
  return options;
}

void crc(benchmark::State& state) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>(state.range(0)), std::byte{7});
  while (state.KeepRunning()) benchmark::DoNotOptimize(crc32c(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(crc)->Arg(1'000)->Arg(110'000)->Arg(1'000'000);

// Target: a million records in less than 20 s.
void make_index(benchmark::State& state) {
  const test::TemporaryDirectory folder;
  write_shards(folder.path(), kShards, kSmallRecords, 100);
  const RecordFileSet set = find_record_files(folder.path(), Split::Train);
  while (state.KeepRunning()) {
    fs::remove(folder.path() / "millrace-train.index");
    const OpenedIndex opened = open_record_index(
        set, Split::Train, options_with(static_cast<unsigned>(state.range(0))).index);
    MILLRACE_ASSERT(opened.made && opened.index.entries.size() == kSmallRecords);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kSmallRecords));
}
BENCHMARK(make_index)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->Iterations(1)->UseRealTime();

void open_cached_index(benchmark::State& state) {
  const test::TemporaryDirectory folder;
  write_shards(folder.path(), kShards, kSmallRecords, 100);
  const RecordFileSet set = find_record_files(folder.path(), Split::Train);
  (void)open_record_index(set, Split::Train, options_with(2).index);
  while (state.KeepRunning())
    MILLRACE_ASSERT(!open_record_index(set, Split::Train, options_with(1).index).made);
}
BENCHMARK(open_cached_index)->Unit(benchmark::kMillisecond)->Iterations(3)->UseRealTime();

void read_records(benchmark::State& state) {
  const test::TemporaryDirectory folder;
  constexpr std::size_t kRecords = 1000;
  write_shards(folder.path(), 4, kRecords, 110'000);
  const auto source = open_image_dataset(folder.path(), Split::Train, options_with(1));
  const Permutation order(1, 0, kRecords);
  ReadBuffer buffer;
  std::uint64_t i = 0;
  while (state.KeepRunning())
    benchmark::DoNotOptimize(
        source->stored(static_cast<std::int64_t>(order(i++ % kRecords)), buffer));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(read_records);

// Target: 10,000 images per second.
void read_packed(benchmark::State& state) {
  const test::TemporaryDirectory folder;
  constexpr std::size_t kRecords = 500;
  write_shards(folder.path(), 1, kRecords, 100);
  const auto source = open_image_dataset(folder.path(), Split::Train, options_with(1));
  PackOptions options;
  options.threads = 1;
  options.shrink = [](std::span<const std::byte>, std::int32_t side, PixelBuffer& out) {
    out.height = side;
    out.width = side * 4 / 3;
    out.pixels.assign(std::size_t{3} * static_cast<std::size_t>(out.height * out.width),
                      std::byte{9});
  };
  (void)write_packed_images(*source, folder.path() / "train.packed", options);
  const PackedImages packed(folder.path() / "train.packed");
  const Permutation order(1, 0, kRecords);
  ReadBuffer buffer;
  std::uint64_t i = 0;
  while (state.KeepRunning())
    benchmark::DoNotOptimize(
        packed.stored(static_cast<std::int64_t>(order(i++ % kRecords)), buffer));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(read_packed);

}  // namespace
}  // namespace millrace::io

BENCHMARK_MAIN();
