// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/records/encoded_source.hpp"
#include "io/records/file_pool.hpp"
#include "io/records/record_index.hpp"

namespace millrace::io {

enum class MissingShards : std::uint8_t { Refused, Accepted };

/// Whether packed files are accepted, too; for the message when no images are found.
enum class PackedFile : std::uint8_t { CountsNot, Counts };

struct SourceOptions {
  /// Stored labels minus network labels; the converter counts from 1.
  std::int32_t label_offset = 1;
  std::int64_t classes = 1000;
  /// Maximum share of bad records (by frame, Example or label), or of bad files in class folders; a
  /// set with more is rejected.
  double max_bad_fraction = 0.001;
  /// Whether sets with missing or empty shards are accepted.
  MissingShards missing = MissingShards::Refused;
  PackedFile packed = PackedFile::CountsNot;
  IndexOptions index;
};

/// The good records of one split of TFRecord files, in file order. Notices give the number of bad
/// records left out and the first few.
class TFRecordSource final : public EncodedSource {
 public:
  /// Errors: Data if shards are missing or empty, too many records are bad (naming the first), or
  /// none is good; Io.
  TFRecordSource(const RecordFileSet& set, Split split, const SourceOptions& options);

  [[nodiscard]] std::string name() const override { return "imagenet records"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(index_.entries.size());
  }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override;
  [[nodiscard]] std::uint32_t fingerprint() const override { return fingerprint_; }
  EncodedImage read(std::int64_t index, ReadBuffer& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override;
  [[nodiscard]] std::span<const std::string> notices() const override { return notices_; }

  /// Entries are in sample order, with labels as stored.
  [[nodiscard]] const RecordIndex& index() const noexcept { return index_; }

 private:
  void drop_foreign_labels();
  void refuse_too_bad(double max_bad_fraction) const;
  void note_bad();
  [[nodiscard]] std::string describe_bad() const;
  [[nodiscard]] std::string describe(const BadRecord& bad) const;
  [[nodiscard]] const RecordEntry& entry(std::int64_t index) const;

  std::filesystem::path folder_;
  std::int32_t label_offset_;
  std::int64_t classes_;
  std::vector<std::string> notices_;
  RecordIndex index_;
  std::uint32_t fingerprint_ = 0;
  FilePool files_;
};

/// "train-00000-of-01024, record 12 at offset 345"
[[nodiscard]] std::string describe_place(const std::filesystem::path& file, std::uint64_t record,
                                         std::uint64_t offset);

/// Opens the images of a split in `directory`: shards (record_files.hpp) if there are any,
/// otherwise class folders (image_folder.hpp). Errors: Data, naming all places searched, and those
/// of the sources.
[[nodiscard]] std::unique_ptr<EncodedSource> open_encoded_source(
    const std::filesystem::path& directory, Split split, const SourceOptions& options);

/// Whether `directory` contains files that open_encoded_source() would open.
[[nodiscard]] bool holds_pictures(const std::filesystem::path& directory, Split split);

/// Throws Error(Data) for a directory without images, with all places searched, including the
/// packed file if `packed` says so.
[[noreturn]] void fail_no_pictures(const std::filesystem::path& directory, Split split,
                                   PackedFile packed);

}  // namespace millrace::io
