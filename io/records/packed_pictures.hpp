// SPDX-License-Identifier: Apache-2.0
//
// A file of decoded pictures, for machines that cannot decode JPEG as fast as they train: each is
// made once, its shorter side a fixed number of pixels, and cropped anew each epoch. Numbers are
// little endian:
//
//   64 bytes   head: magic, version, shorter side, pictures, classes, place of the table,
//              fingerprint of the source, CRC-32C
//   pictures   height x width x 3 bytes each, in rows; then its boxes, 4 floats each; padded to 64
//   table      32 bytes a picture: place, height, width, label, boxes, CRC-32C of pixels and boxes
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

/// A decoded picture: rows of `width` pixels of red, green and blue.
struct PackedPicture {
  std::span<const std::byte> pixels;
  std::int32_t height = 0;
  std::int32_t width = 0;
  std::span<const ObjectBox> boxes;
};

/// A picture for the writer, in memory that is kept from one to the next.
struct PixelBuffer {
  std::vector<std::byte> pixels;
  std::int32_t height = 0;
  std::int32_t width = 0;
};
/// Decodes a JPEG or PNG file and brings it to its packed_size(), into `out`. Called from many
/// threads. Errors: Data, without naming the file.
using ShrinkPicture = std::function<void(std::span<const std::byte> file, std::int32_t shorter_side,
                                         PixelBuffer& out)>;

/// The size at which a picture is packed: its shorter side, be it larger or smaller, becomes
/// `shorter_side`, the longer one follows, rounded down. Errors: Data when that is more than 16384
/// pixels a side or 64 Mi pixels, as it is of thin pictures: no file holds such a one.
struct PackedSize {
  std::int32_t height = 0;
  std::int32_t width = 0;
  friend bool operator==(const PackedSize&, const PackedSize&) = default;
};
[[nodiscard]] PackedSize packed_size(std::int32_t height, std::int32_t width,
                                     std::int32_t shorter_side);

struct PackOptions {
  std::int32_t shorter_side = 256;
  unsigned threads = 0;  ///< 0: one a core
  /// The share of pictures that may be bad before the packing is refused.
  double max_bad_fraction = 0.001;
  ShrinkPicture shrink;
  ProgressCallback progress;  ///< in pictures
  ReportBad report_bad;       ///< told of each that is left out, in their order
};

struct PackReport {
  std::int64_t pictures = 0;  ///< in the file
  std::int64_t bad = 0;       ///< left out
  std::uint64_t bytes = 0;    ///< of the file
};

/// Writes the pictures of a source, in their order, atomically; the bytes do not depend on the
/// number of threads. Pictures that cannot be read, decoded or packed are left out. What a killed
/// packing into the same file left is removed. Errors: Data when too many are bad (with their
/// count), naming the first; Config for a shorter side that is not 1 to 4096; Io.
PackReport write_packed_pictures(const EncodedSource& source, const std::filesystem::path& path,
                                 const PackOptions& options);

/// Where `directory` has the packed pictures of a split: DIR/train.packed, DIR/validation.packed.
[[nodiscard]] std::filesystem::path packed_path(const std::filesystem::path& directory,
                                                Split split);

/// A file of decoded pictures, of which the table is kept in memory. It is read rather than mapped:
/// a process has then no more memory than its readers, and a file that is cut short under its hands
/// is an error and not its end. All functions may be called from many threads at once.
class PackedPictures {
 public:
  /// Errors: Data for a file that is none, is cut, or whose head or table is damaged; Io.
  explicit PackedPictures(const std::filesystem::path& path);
  /// The same over bytes in memory, which must outlive it.
  PackedPictures(std::span<const std::byte> file, std::string label);

  [[nodiscard]] std::int64_t size() const noexcept { return pictures_; }
  [[nodiscard]] std::int64_t classes() const noexcept { return classes_; }
  [[nodiscard]] std::int32_t shorter_side() const noexcept { return shorter_side_; }
  /// That of the source from which it was made.
  [[nodiscard]] std::uint32_t fingerprint() const noexcept { return fingerprint_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const;
  [[nodiscard]] PackedSize picture_size(std::int64_t index) const;
  /// Bytes that picture `index` takes: pixels and boxes.
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const;
  /// The picture, which lies in `buffer` until that is used again; its checksum is verified.
  /// Errors: Data, Io.
  [[nodiscard]] PackedPicture read(std::int64_t index, ReadBuffer& buffer) const;
  /// What a ReadBuffer of the largest picture takes.
  [[nodiscard]] std::uint64_t largest_bytes() const noexcept { return largest_; }
  [[nodiscard]] std::uint64_t table_bytes() const noexcept { return table_.size(); }
  [[nodiscard]] std::string where(std::int64_t index) const;

 private:
  void parse();
  std::span<const std::byte> bytes_at(std::uint64_t offset, std::uint64_t count,
                                      std::vector<std::byte>& buffer) const;

  std::string label_;
  UniqueFd file_;
  std::span<const std::byte> memory_;  ///< where there is no file
  std::uint64_t size_ = 0;
  std::int64_t pictures_ = 0;
  std::int64_t classes_ = 0;
  std::int32_t shorter_side_ = 0;
  std::uint32_t fingerprint_ = 0;
  std::uint64_t largest_ = 0;
  std::vector<std::byte> table_;
};

}  // namespace millrace::io
