// SPDX-License-Identifier: Apache-2.0
#include "io/data/packed_images.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/data/little_endian.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using namespace packed;  // NOLINT(google-build-using-namespace): the words of the format

// Boxes are accessed in place.
static_assert(sizeof(ObjectBox) == 16 && std::endian::native == std::endian::little);

constexpr std::int64_t kMaxClasses = 1'000'000;

Row row_of(std::span<const std::byte> table, std::int64_t index) {
  ByteReader in(table.subspan(static_cast<std::size_t>(index) * Row::kBytes, Row::kBytes));
  Row row;
  in(row);
  return row;
}

}  // namespace

fs::path packed_path(const fs::path& directory, Split split) {
  return directory / (split == Split::Train ? "train.packed" : "validation.packed");
}

PackedImages::PackedImages(std::span<const std::byte> file, std::string label)
    : label_(std::move(label)), memory_(file), size_(file.size()) {
  parse();
}

PackedImages::PackedImages(const fs::path& path)
    : label_(path.string()),
      file_(open_file(path, O_RDONLY)),
      size_(regular_size(file_.get(), path)) {
  parse();
}

std::span<const std::byte> PackedImages::bytes_at(std::uint64_t offset, std::uint64_t count,
                                                  std::vector<std::byte>& buffer) const {
  if (!file_.valid()) return memory_.subspan(offset, count);
  if (buffer.size() < count) buffer.resize(count);
  const auto bytes = std::span(buffer).first(count);
  read_exactly(file_.get(), offset, bytes, label_);
  return bytes;
}

void PackedImages::parse() {
  const auto bad = [this](std::string_view what) {
    fail(ErrorKind::Data, "{}: {}: create it again from its images (docs/data.md)", label_, what);
  };
  if (size_ < kHeadBytes) bad("too short for a file of packed images");
  std::vector<std::byte> buffer;
  const auto head = bytes_at(0, kHeadBytes, buffer);
  ByteReader in(head);
  if (!std::ranges::equal(in.get_bytes(kMagic.size()), std::as_bytes(std::span(kMagic))))
    bad("not a file of packed images");
  if (load_little<std::uint32_t>(head.data() + kHeadCrcAt) != crc32c(head.first(kHeadCrcAt)))
    bad("header checksum mismatch");
  std::uint32_t version = 0;
  std::uint64_t images = 0;
  std::uint64_t table_at = 0;
  in(version, shorter_side_, images, classes_, table_at, fingerprint_);
  if (version != kVersion) bad("written by another version");
  if (classes_ < 0 || classes_ > kMaxClasses)
    bad(fmt::format("{} classes exceed the limit of {}", classes_, kMaxClasses));
  if (table_at > size_ || images > (size_ - table_at) / Row::kBytes ||
      size_ - table_at != images * Row::kBytes + sizeof(std::uint32_t))
    bad("the file is truncated");
  const auto table = bytes_at(table_at, size_ - table_at, buffer);
  table_.assign(table.begin(), table.end() - sizeof(std::uint32_t));
  if (load_little<std::uint32_t>(table.data() + table_.size()) != crc32c(table_))
    bad("table checksum mismatch");
  images_ = static_cast<std::int64_t>(images);
  for (std::int64_t i = 0; i < images_; ++i) {
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

std::int32_t PackedImages::label(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < images_);
  return row_of(table_, index).label;
}

std::optional<ImageSize> PackedImages::known_size(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < images_);
  const Row row = row_of(table_, index);
  return ImageSize{.height = row.height, .width = row.width};
}

std::uint64_t PackedImages::stored_bytes(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < images_);
  return row_of(table_, index).bytes();
}

StoredImage PackedImages::stored(std::int64_t index, ReadBuffer& buffer) const {
  MILLRACE_ASSERT(index >= 0 && index < images_);
  const Row row = row_of(table_, index);
  const auto bytes = bytes_at(row.offset, row.bytes(), buffer.bytes);
  if (crc32c(bytes) != row.crc)
    fail(ErrorKind::Data, "{}: data checksum mismatch: create the file again", where(index));
  // Written from objects of this type, at a multiple of its alignment.
  const std::span boxes(reinterpret_cast<const ObjectBox*>(bytes.data() + row.boxes_at()),
                        row.boxes);
  if (!std::ranges::all_of(boxes, is_within_image))
    fail(ErrorKind::Data, "{}: a box is not inside the image: create the file again", where(index));
  return {.bytes = bytes.first(row.pixel_bytes()),
          .boxes = boxes,
          .height = row.height,
          .width = row.width};
}

std::string PackedImages::where(std::int64_t index) const {
  const Row row = row_of(table_, index);
  return fmt::format("{}, image {} at offset {}", label_, index, row.offset);
}

std::int64_t PackedImages::reading_bytes(int threads) const {
  return threads * (static_cast<std::int64_t>(largest_) + image_shape().elements());
}

}  // namespace millrace::io
