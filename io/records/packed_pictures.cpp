// SPDX-License-Identifier: Apache-2.0
#include "io/records/packed_pictures.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/image_format.hpp"
#include "io/atomic_file.hpp"
#include "io/records/byte_window.hpp"
#include "io/records/file_stamp.hpp"
#include "io/records/little_endian.hpp"
#include "io/records/parallel.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

// Boxes are accessed in place.
static_assert(sizeof(ObjectBox) == 16 && std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "MLRPACKD";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeadBytes = 64;
constexpr std::size_t kHeadCrcAt = 60;
constexpr std::size_t kRowBytes = 32;
constexpr std::uint64_t kAlign = 64;
constexpr std::int32_t kMaxShorterSide = 4096;
constexpr std::int64_t kMaxClasses = 1'000'000;
constexpr std::size_t kPicturesAtOnce = 16;  // per thread, in memory until they are written

struct Row {
  std::uint64_t offset = 0;
  std::int32_t height = 0;
  std::int32_t width = 0;
  std::int32_t label = 0;
  std::uint32_t boxes = 0;
  std::uint32_t crc = 0;

  [[nodiscard]] std::uint64_t pixel_bytes() const {
    return std::uint64_t{3} * static_cast<std::uint64_t>(height) *
           static_cast<std::uint64_t>(width);
  }
  // Boxes begin at a multiple of 4, to align floats.
  [[nodiscard]] std::uint64_t boxes_at() const { return (pixel_bytes() + 3) / 4 * 4; }
  [[nodiscard]] std::uint64_t bytes() const { return boxes_at() + boxes * sizeof(ObjectBox); }
};

void put_row(ByteWriter& out, const Row& row) {
  out.put(row.offset);
  out.put(static_cast<std::uint32_t>(row.height));
  out.put(static_cast<std::uint32_t>(row.width));
  out.put(static_cast<std::uint32_t>(row.label));
  out.put(row.boxes);
  out.put(row.crc);
  out.put(std::uint32_t{0});
}

Row row_of(std::span<const std::byte> table, std::int64_t index) {
  ByteReader in(table.subspan(static_cast<std::size_t>(index) * kRowBytes, kRowBytes));
  Row row;
  row.offset = in.get<std::uint64_t>();
  row.height = static_cast<std::int32_t>(in.get<std::uint32_t>());
  row.width = static_cast<std::int32_t>(in.get<std::uint32_t>());
  row.label = static_cast<std::int32_t>(in.get<std::uint32_t>());
  row.boxes = in.get<std::uint32_t>();
  row.crc = in.get<std::uint32_t>();
  return row;
}

bool is_size(std::int64_t height, std::int64_t width) {
  return height >= 1 && width >= 1 && height <= kMaxImageSide && width <= kMaxImageSide &&
         height * width <= kMaxImagePixels;
}

[[noreturn]] void fail_size(std::int64_t height, std::int64_t width) {
  fail(ErrorKind::Data, "{} x {} pixels when packed; the limits are {} per side and {} in total",
       height, width, kMaxImageSide, kMaxImagePixels);
}

// Writes images in groups. All images of a group are decoded in parallel, get their offsets in
// order, and are written in parallel.
class Packer {
 public:
  Packer(const EncodedSource& source, const fs::path& path, const PackOptions& options)
      : source_(source),
        options_(options),
        threads_(options.threads != 0 ? options.threads
                                      : std::max(1u, std::thread::hardware_concurrency())),
        slots_(std::size_t{threads_} * kPicturesAtOnce),
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
    return {.pictures = pictures(), .bad = bad_.count(), .bytes = bytes};
  }

 private:
  struct Slot {
    ReadBuffer encoded;
    PixelBuffer pixels;
    std::vector<std::byte> bytes;  ///< empty for a bad image
    Row row;
    std::string problem;
  };

  [[nodiscard]] std::int64_t pictures() const { return source_.size() - bad_.count(); }

  void write_group(std::size_t first, std::size_t count) {
    parallel_for(count, threads_, [&](std::size_t i) { prepare(first + i, slots_[i]); });
    for (Slot& slot : std::span(slots_).first(count)) {
      if (!slot.problem.empty()) {
        bad_.add(slot.problem);
        continue;
      }
      slot.row.offset = end_;
      end_ += (slot.bytes.size() + kAlign - 1) / kAlign * kAlign;
      put_row(table_, slot.row);
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
    const EncodedImage image = source_.read(number, slot.encoded);
    options_.shrink(image.bytes, options_.shorter_side, slot.pixels);
    if (!is_size(slot.pixels.height, slot.pixels.width))
      fail_size(slot.pixels.height, slot.pixels.width);
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
    head.put(kVersion);
    head.put(static_cast<std::uint32_t>(options_.shorter_side));
    head.put(static_cast<std::uint64_t>(pictures()));
    head.put(static_cast<std::uint64_t>(source_.classes()));
    head.put(end_);
    head.put(source_.fingerprint());
    head.bytes().resize(kHeadCrcAt);
    head.put(crc32c(head.bytes()));
    file_.write(head.bytes(), 0);
    return end_ + table_.bytes().size();
  }

  const EncodedSource& source_;
  const PackOptions& options_;
  unsigned threads_;
  std::vector<Slot> slots_;
  ProgressMeter meter_;
  BadPictures bad_;
  StagedFile file_;
  ByteWriter table_;
  std::uint64_t end_ = kHeadBytes;
};

}  // namespace

PackedSize packed_size(std::int32_t height, std::int32_t width, std::int32_t shorter_side) {
  const std::int64_t shorter = std::min(height, width);
  MILLRACE_ASSERT(shorter >= 1 && shorter_side >= 1);
  const std::int64_t packed_height = std::int64_t{height} * shorter_side / shorter;
  const std::int64_t packed_width = std::int64_t{width} * shorter_side / shorter;
  if (!is_size(packed_height, packed_width)) fail_size(packed_height, packed_width);
  return {.height = static_cast<std::int32_t>(packed_height),
          .width = static_cast<std::int32_t>(packed_width)};
}

fs::path packed_path(const fs::path& directory, Split split) {
  return directory / (split == Split::Train ? "train.packed" : "validation.packed");
}

PackReport write_packed_pictures(const EncodedSource& source, const fs::path& path,
                                 const PackOptions& options) {
  if (options.shorter_side < 1 || options.shorter_side > kMaxShorterSide)
    fail(ErrorKind::Config, "a shorter side of {} pixels: must be 1 to {}", options.shorter_side,
         kMaxShorterSide);
  MILLRACE_ASSERT(options.shrink != nullptr);
  remove_leftovers(path);
  return Packer(source, path, options).run();
}

PackedPictures::PackedPictures(std::span<const std::byte> file, std::string label)
    : label_(std::move(label)), memory_(file), size_(file.size()) {
  parse();
}

PackedPictures::PackedPictures(const fs::path& path)
    : label_(path.string()),
      file_(open_file(path, O_RDONLY)),
      size_(regular_stamp(file_.get(), label_).bytes) {
  parse();
}

std::span<const std::byte> PackedPictures::bytes_at(std::uint64_t offset, std::uint64_t count,
                                                    std::vector<std::byte>& buffer) const {
  if (!file_.valid()) return memory_.subspan(offset, count);
  if (buffer.size() < count) buffer.resize(count);
  const auto bytes = std::span(buffer).first(count);
  read_exactly(file_.get(), offset, bytes, label_);
  return bytes;
}

void PackedPictures::parse() {
  const auto bad = [this](std::string_view what) {
    fail(ErrorKind::Data, "{}: {}: create it again with `millrace data convert --packed`", label_,
         what);
  };
  if (size_ < kHeadBytes) bad("too short for a file of packed images");
  std::vector<std::byte> buffer;
  const auto head = bytes_at(0, kHeadBytes, buffer);
  ByteReader in(head);
  if (!std::ranges::equal(in.get_bytes(kMagic.size()), std::as_bytes(std::span(kMagic))))
    bad("not a file of packed images");
  if (load_little<std::uint32_t>(head.data() + kHeadCrcAt) != crc32c(head.first(kHeadCrcAt)))
    bad("header checksum mismatch");
  if (in.get<std::uint32_t>() != kVersion) bad("written by another version");
  shorter_side_ = static_cast<std::int32_t>(in.get<std::uint32_t>());
  const auto pictures = in.get<std::uint64_t>();
  classes_ = static_cast<std::int64_t>(in.get<std::uint64_t>());
  if (classes_ < 0 || classes_ > kMaxClasses)
    bad(fmt::format("{} classes exceed the limit of {}", classes_, kMaxClasses));
  const auto table_at = in.get<std::uint64_t>();
  fingerprint_ = in.get<std::uint32_t>();
  if (table_at > size_ || pictures > (size_ - table_at) / kRowBytes ||
      size_ - table_at != pictures * kRowBytes + sizeof(std::uint32_t))
    bad("the file is truncated");
  const auto table = bytes_at(table_at, size_ - table_at, buffer);
  table_.assign(table.begin(), table.end() - sizeof(std::uint32_t));
  if (load_little<std::uint32_t>(table.data() + table_.size()) != crc32c(table_))
    bad("table checksum mismatch");
  pictures_ = static_cast<std::int64_t>(pictures);
  for (std::int64_t i = 0; i < pictures_; ++i) {
    const Row row = row_of(table_, i);
    const bool fits = is_size(row.height, row.width) && row.offset % kAlign == 0 &&
                      row.offset <= table_at && row.bytes() <= table_at - row.offset;
    if (!fits || row.label < 0 || row.label >= classes_)
      bad(fmt::format(
          "image {} of {} x {} pixels with {} boxes and label {} at offset {} is invalid", i,
          row.height, row.width, row.boxes, row.label, row.offset));
    largest_ = std::max(largest_, row.bytes());
  }
}

std::int32_t PackedPictures::label(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < pictures_);
  return row_of(table_, index).label;
}

PackedSize PackedPictures::picture_size(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < pictures_);
  const Row row = row_of(table_, index);
  return {.height = row.height, .width = row.width};
}

std::uint64_t PackedPictures::stored_bytes(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < pictures_);
  return row_of(table_, index).bytes();
}

PackedPicture PackedPictures::read(std::int64_t index, ReadBuffer& buffer) const {
  MILLRACE_ASSERT(index >= 0 && index < pictures_);
  const Row row = row_of(table_, index);
  const auto bytes = bytes_at(row.offset, row.bytes(), buffer.bytes);
  if (crc32c(bytes) != row.crc)
    fail(ErrorKind::Data, "{}: data checksum mismatch: create the file again", where(index));
  // Written from objects of this type, at a multiple of its alignment.
  const std::span boxes(reinterpret_cast<const ObjectBox*>(bytes.data() + row.boxes_at()),
                        row.boxes);
  if (!std::ranges::all_of(boxes, is_within_picture))
    fail(ErrorKind::Data, "{}: a box is not inside the image: create the file again", where(index));
  return {.pixels = bytes.first(row.pixel_bytes()),
          .height = row.height,
          .width = row.width,
          .boxes = boxes};
}

std::string PackedPictures::where(std::int64_t index) const {
  const Row row = row_of(table_, index);
  return fmt::format("{}, image {} at offset {}", label_, index, row.offset);
}

}  // namespace millrace::io
