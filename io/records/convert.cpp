// SPDX-License-Identifier: Apache-2.0
#include "io/records/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <string_view>
#include <system_error>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/random.hpp"
#include "io/atomic_file.hpp"
#include "io/records/example.hpp"
#include "io/records/parallel.hpp"
#include "io/records/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxShards = 99'999;  // as its name has five digits
constexpr std::uint64_t kMaxStateBytes = 4096;

std::string_view prefix_of(Split split) { return split == Split::Train ? "train" : "validation"; }

// What is written is a function of this text; it lies beside the shards until all are there.
std::string describe(const RawPictures& raw, const ConvertOptions& options) {
  std::uint32_t crc = 0;
  for (const RawPicture& picture : raw.pictures) {
    const std::string line =
        fmt::format("{}/{} {}\n", raw.classes[static_cast<std::size_t>(picture.class_index)],
                    picture.name, picture.bytes);
    crc = crc32c(std::as_bytes(std::span(line)), crc);
  }
  return fmt::format("{} pictures {:08x} of {} classes in {} shards, seed {}\n",
                     raw.pictures.size(), crc, raw.classes.size(), options.shards, options.seed);
}

std::string describe(const RawPicture& picture) {
  if (picture.offset == 0) return picture.file.string();
  return fmt::format("{}, {} at offset {}", picture.file.string(), picture.name, picture.offset);
}

class Conversion {
 public:
  Conversion(const RawPictures& raw, Split split, const fs::path& out,
             const ConvertOptions& options)
      : raw_(raw),
        options_(options),
        prefix_(prefix_of(split)),
        folder_(out / prefix_),
        state_(folder_ / fmt::format("millrace-{}.converting", prefix_)),
        order_(conversion_order(raw.pictures.size(), split, options.seed)),
        chunk_((raw.pictures.size() + shard_count() - 1) / shard_count()),
        meter_(options.progress, raw.pictures.size()) {}

  ConvertReport run() {
    begin();
    parallel_for(shard_count(), options_.threads, [this](std::size_t shard) { write(shard); });
    std::error_code ignored;
    fs::remove(state_, ignored);
    report_.pictures = raw_.pictures.size();
    return report_;
  }

 private:
  [[nodiscard]] std::size_t shard_count() const {
    return static_cast<std::size_t>(options_.shards);
  }
  [[nodiscard]] fs::path path_of(std::size_t shard) const {
    return folder_ / fmt::format("{}-{:05}-of-{:05}", prefix_, shard, options_.shards);
  }

  // Goes on with the same conversion, and refuses to mix with another one.
  void begin() {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) fail_io("create", folder_, error.value());
    const std::string description = describe(raw_, options_);
    if (fs::exists(state_)) {
      const std::string found = read_text(state_, kMaxStateBytes);
      if (found != description)
        fail(ErrorKind::Usage,
             "{}: an unfinished conversion of {} lies there, and this one is of {}: remove its "
             "files or choose another folder",
             folder_.string(), found.substr(0, found.find('\n')),
             description.substr(0, description.size() - 1));
      remove_temporaries();
      return;
    }
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path().filename().string().starts_with(fmt::format("{}-", prefix_)))
        fail(ErrorKind::Usage, "{}: is there already: remove it or choose another folder",
             entry.path().string());
    write_file_atomically(state_, description);
  }

  // What a killed conversion left under names that no reader takes for shards.
  void remove_temporaries() {
    std::vector<fs::path> left;
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path().filename().string().find(".tmp.") != std::string::npos)
        left.push_back(entry.path());
    std::error_code ignored;
    for (const fs::path& path : left) fs::remove(path, ignored);
  }

  void write(std::size_t shard) {
    const std::size_t first = std::min(shard * chunk_, order_.size());
    const std::size_t last = std::min(first + chunk_, order_.size());
    const fs::path path = path_of(shard);
    std::error_code ignored;
    if (fs::exists(path, ignored)) {
      meter_.add(last - first);
      const std::lock_guard lock(mutex_);
      ++report_.shards_kept;
      return;
    }
    RecordWriter writer(path);
    std::uint64_t replaced = 0;
    std::vector<std::byte> file;
    std::vector<std::byte> payload;
    for (std::size_t i = first; i < last; ++i) {
      replaced += write_picture(raw_.pictures[order_[i]], file, payload);
      writer.append(payload);
      meter_.add(1);
    }
    writer.commit();
    const std::lock_guard lock(mutex_);
    ++report_.shards_written;
    report_.bytes += writer.bytes();
    report_.replaced += replaced;
  }

  // The record's payload; returns 1 when the picture was replaced.
  std::uint64_t write_picture(const RawPicture& picture, std::vector<std::byte>& file,
                              std::vector<std::byte>& payload) const {
    read_raw_picture(picture, file);
    PreparedPicture prepared;
    try {
      prepared = options_.prepare(file);
    } catch (const Error& error) {
      fail(error.kind(), "{}: {}", describe(picture), error.what());
    }
    const bool replaced = !prepared.replacement.empty();
    write_example({.encoded = replaced ? prepared.replacement : file,
                   .height = prepared.height,
                   .width = prepared.width,
                   .label = std::int64_t{picture.class_index} + 1,
                   .synset = raw_.classes[static_cast<std::size_t>(picture.class_index)],
                   .filename = picture.name,
                   .boxes = {}},
                  payload);
    return replaced ? 1 : 0;
  }

  const RawPictures& raw_;
  const ConvertOptions& options_;
  std::string prefix_;
  fs::path folder_;
  fs::path state_;
  std::vector<std::size_t> order_;
  std::size_t chunk_;  // pictures to a shard
  ProgressMeter meter_;
  std::mutex mutex_;
  ConvertReport report_;
};

}  // namespace

std::vector<std::size_t> conversion_order(std::size_t pictures, Split split, std::uint64_t seed) {
  std::vector<std::size_t> order(pictures);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (split == Split::Validation || pictures == 0) return order;
  const Permutation mixed(seed, 0, pictures);
  std::ranges::transform(order, order.begin(), mixed);
  return order;
}

ConvertReport convert_to_records(const RawPictures& raw, Split split, const fs::path& out,
                                 const ConvertOptions& options) {
  if (options.shards < 1 || options.shards > kMaxShards)
    fail(ErrorKind::Config, "{} shards: 1 to {} can be written", options.shards, kMaxShards);
  MILLRACE_ASSERT(options.prepare != nullptr);
  return Conversion(raw, split, out, options).run();
}

}  // namespace millrace::io
