// SPDX-License-Identifier: Apache-2.0
//
// A file of decoded images, for machines that cannot decode JPEG as fast as they train. Each image
// is decoded once and scaled to a fixed shorter side; crops still differ each epoch. Numbers are
// little-endian:
//
//   64 bytes   header: magic, version, shorter side, images, classes, offset of the table,
//              fingerprint of the source, CRC-32C
//   images     height x width x 3 bytes each, in rows; then its boxes, 4 floats each; padded to 64
//   table      32 bytes per image: offset, height, width, label, boxes, CRC-32C of pixels and boxes
//   4 bytes    CRC-32C of the table
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/records/bad_pictures.hpp"
#include "io/records/encoded_source.hpp"

namespace millrace::io {

/// A decoded image: rows of `width` RGB pixels.
struct PackedPicture {
  std::span<const std::byte> pixels;
  std::int32_t height = 0;
  std::int32_t width = 0;
  std::span<const ObjectBox> boxes;
};

/// A buffer for one image of the writer, reused from image to image.
struct PixelBuffer {
  std::vector<std::byte> pixels;
  std::int32_t height = 0;
  std::int32_t width = 0;
};
/// Decodes a JPEG or PNG file and scales it to its packed_size(), into `out`. Called from many
/// threads. Errors: Data, without the file's name.
using ShrinkPicture = std::function<void(std::span<const std::byte> file, std::int32_t shorter_side,
                                         PixelBuffer& out)>;

/// The size of a packed image: the shorter side is scaled up or down to `shorter_side`, the longer
/// one in proportion, rounded down. Errors: Data if the result exceeds 16384 pixels per side or 64
/// Mi pixels, as for very long, thin images.
struct PackedSize {
  std::int32_t height = 0;
  std::int32_t width = 0;
  friend bool operator==(const PackedSize&, const PackedSize&) = default;
};
[[nodiscard]] PackedSize packed_size(std::int32_t height, std::int32_t width,
                                     std::int32_t shorter_side);

struct PackOptions {
  std::int32_t shorter_side = 256;
  unsigned threads = 0;  ///< 0: one per core
  /// Maximum share of bad images; with more, the packing fails.
  double max_bad_fraction = 0.001;
  ShrinkPicture shrink;
  ProgressCallback progress;  ///< in images
  ReportBad report_bad;       ///< called for each image left out, in order
};

struct PackReport {
  std::int64_t pictures = 0;  ///< in the file
  std::int64_t bad = 0;       ///< left out
  std::uint64_t bytes = 0;    ///< size of the file
};

/// Writes the images of a source in order, atomically. The bytes do not depend on the number of
/// threads. Images that cannot be read, decoded or packed are left out. Leftovers of a killed
/// packing into the same file are removed. Errors: Data if too many images are bad, with their
/// count and the first one; Config if the shorter side is not 1 to 4096; Io.
PackReport write_packed_pictures(const EncodedSource& source, const std::filesystem::path& path,
                                 const PackOptions& options);

/// Path of the packed images of a split: DIR/train.packed, DIR/validation.packed.
[[nodiscard]] std::filesystem::path packed_path(const std::filesystem::path& directory,
                                                Split split);

/// A file of decoded images. Only its table is kept in memory. The file is read, not mapped: so
/// memory is bounded by the readers' buffers, and a truncated file is an error instead of a crash.
/// All functions are thread-safe.
class PackedPictures {
 public:
  /// Errors: Data if the file has another format, is truncated, or has a damaged header or table;
  /// Io.
  explicit PackedPictures(const std::filesystem::path& path);
  /// The same for bytes in memory, which must outlive the object.
  PackedPictures(std::span<const std::byte> file, std::string label);

  [[nodiscard]] std::int64_t size() const noexcept { return pictures_; }
  [[nodiscard]] std::int64_t classes() const noexcept { return classes_; }
  [[nodiscard]] std::int32_t shorter_side() const noexcept { return shorter_side_; }
  /// Fingerprint of the source.
  [[nodiscard]] std::uint32_t fingerprint() const noexcept { return fingerprint_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const;
  [[nodiscard]] PackedSize picture_size(std::int64_t index) const;
  /// Bytes of image `index`: pixels and boxes.
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const;
  /// Reads an image into `buffer` and verifies its checksum. The result is valid until the next use
  /// of `buffer`. Errors: Data, Io.
  [[nodiscard]] PackedPicture read(std::int64_t index, ReadBuffer& buffer) const;
  /// Bytes of a ReadBuffer for the largest image.
  [[nodiscard]] std::uint64_t largest_bytes() const noexcept { return largest_; }
  [[nodiscard]] std::uint64_t table_bytes() const noexcept { return table_.size(); }
  [[nodiscard]] std::string where(std::int64_t index) const;

 private:
  void parse();
  std::span<const std::byte> bytes_at(std::uint64_t offset, std::uint64_t count,
                                      std::vector<std::byte>& buffer) const;

  std::string label_;
  UniqueFd file_;
  std::span<const std::byte> memory_;  ///< if there is no file
  std::uint64_t size_ = 0;
  std::int64_t pictures_ = 0;
  std::int64_t classes_ = 0;
  std::int32_t shorter_side_ = 0;
  std::uint32_t fingerprint_ = 0;
  std::uint64_t largest_ = 0;
  std::vector<std::byte> table_;
};

}  // namespace millrace::io
