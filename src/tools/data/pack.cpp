// SPDX-License-Identifier: Apache-2.0
#include "tools/data/pack.hpp"

#include <algorithm>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "io/atomic_file.hpp"
#include "io/data/little_endian.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using namespace packed;  // NOLINT(google-build-using-namespace): the words of the format

constexpr std::int32_t kMaxShorterSide = 4096;
constexpr std::size_t kImagesAtOnce = 16;  // per thread, in memory until they are written

// Writes images in groups. All images of a group are decoded in parallel, get their offsets in
// order, and are written in parallel.
class Packer {
 public:
  Packer(const ImageDataset& source, const fs::path& path, const PackOptions& options)
      : source_(source),
        options_(options),
        threads_(options.threads != 0 ? options.threads : static_cast<unsigned>(usable_cores())),
        slots_(std::size_t{threads_} * kImagesAtOnce),
        meter_(options.progress, static_cast<std::uint64_t>(source.size())),
        bad_(source.size(), options.max_bad_fraction, options.report_bad),
        file_(path) {}

  PackReport run() {
    const auto size = static_cast<std::size_t>(source_.size());
    for (std::size_t first = 0; first < size; first += slots_.size())
      write_group(first, std::min(slots_.size(), size - first));
    bad_.refuse_if_all();
    const std::uint64_t bytes = write_ends();
    file_.commit();
    return {.images = images(), .bad = bad_.count(), .bytes = bytes};
  }

 private:
  struct Slot {
    ReadBuffer encoded;
    PixelBuffer pixels;
    std::vector<std::byte> bytes;  ///< empty for a bad image
    packed::Row row;
    std::string problem;
  };

  [[nodiscard]] std::int64_t images() const { return source_.size() - bad_.count(); }

  void write_group(std::size_t first, std::size_t count) {
    parallel_for(count, threads_, [&](std::size_t i) { prepare(first + i, slots_[i]); });
    for (Slot& slot : std::span(slots_).first(count)) {
      if (!slot.problem.empty()) {
        bad_.add(slot.problem);
        continue;
      }
      slot.row.offset = end_;
      end_ += (slot.bytes.size() + kAlign - 1) / kAlign * kAlign;
      table_(slot.row);
    }
    parallel_for(count, threads_,
                 [&](std::size_t i) { file_.write(slots_[i].bytes, slots_[i].row.offset); });
    meter_.add(count);
  }

  void prepare(std::size_t index, Slot& slot) const {
    const auto number = static_cast<std::int64_t>(index);
    slot.problem.clear();
    slot.bytes.clear();
    try {
      make(number, slot);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Data) throw;
      slot.problem = problem_at(source_.where(number), error.what());
    }
  }

  void make(std::int64_t number, Slot& slot) const {
    const StoredImage image = source_.stored(number, slot.encoded);
    options_.shrink(image.bytes, options_.shorter_side, slot.pixels);
    check_packed_size(slot.pixels.height, slot.pixels.width);
    slot.row = {.height = slot.pixels.height,
                .width = slot.pixels.width,
                .label = source_.label(number),
                .boxes = static_cast<std::uint32_t>(image.boxes.size())};
    MILLRACE_ASSERT(slot.pixels.pixels.size() == slot.row.pixel_bytes());
    slot.bytes.assign(slot.row.bytes(), std::byte{0});
    std::ranges::copy(slot.pixels.pixels, slot.bytes.begin());
    std::ranges::copy(std::as_bytes(image.boxes),
                      slot.bytes.begin() + static_cast<std::ptrdiff_t>(slot.row.boxes_at()));
    slot.row.crc = crc32c(slot.bytes);
  }

  std::uint64_t write_ends() {
    table_.put(crc32c(table_.bytes()));
    file_.write(table_.bytes(), end_);
    ByteWriter head;
    head.put_bytes(std::as_bytes(std::span(kMagic)));
    head(kVersion, options_.shorter_side, images(), source_.classes(), end_, source_.fingerprint());
    head.bytes().resize(kHeadCrcAt);
    head.put(crc32c(head.bytes()));
    file_.write(head.bytes(), 0);
    return end_ + table_.bytes().size();
  }

  const ImageDataset& source_;
  const PackOptions& options_;
  unsigned threads_;
  std::vector<Slot> slots_;
  ProgressMeter meter_;
  BadImages bad_;
  StagedFile file_;
  ByteWriter table_;
  std::uint64_t end_ = kHeadBytes;
};

}  // namespace

PackReport write_packed_images(const ImageDataset& source, const fs::path& path,
                               const PackOptions& options) {
  if (options.shorter_side < 1 || options.shorter_side > kMaxShorterSide)
    fail(ErrorKind::Config, "a shorter side of {} pixels: must be 1 to {}", options.shorter_side,
         kMaxShorterSide);
  MILLRACE_ASSERT(options.shrink != nullptr);
  remove_leftovers(path);
  return Packer(source, path, options).run();
}

}  // namespace millrace::io
