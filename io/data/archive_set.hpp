// SPDX-License-Identifier: Apache-2.0
//
// WebDataset shards: tar archives in which files of equal name belong together.
//
//   DIR/train-000000.tar   DIR/val-000000.tar     here or in train/, val/ (there also 000000.tar)
//     n01/a.jpg  n01/a.cls                        the image and its class: a number or a name
//     n01/b.png  n01/b.json                       {"label": 7}, read if there is no .cls
//
// The name of a file up to its first dot is the key of its sample; the rest says what it is. An
// index of all samples is made at first use, as for TFRecord files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/class_names.hpp"
#include "io/data/record_set.hpp"

namespace millrace::io {

/// The samples of one archive. An entry is the place of its image; its label is a position among
/// the `texts`, the classes as the archive calls them. `keys` are the first samples that use them.
struct ArchiveSamples {
  FileRecords samples;
  std::vector<std::string> texts;
  std::vector<std::string> keys;
};
/// Errors: Data if the archive is damaged; Io.
[[nodiscard]] ArchiveSamples scan_archive(ByteWindow& file);

/// All samples of a set of archives. `places` say where a text was found first.
struct ArchiveIndex {
  RecordIndex records;
  std::vector<std::string> texts;
  std::vector<std::string> places;
  friend bool operator==(const ArchiveIndex&, const ArchiveIndex&) = default;
};

/// Converts an index to the content of a cached file and back; empty if the bytes are not a
/// consistent index.
[[nodiscard]] std::vector<std::byte> write_archive_index(const ArchiveIndex& index);
[[nodiscard]] std::optional<ArchiveIndex> parse_archive_index(std::span<const std::byte> content);

/// The good samples of one split of WebDataset archives.
class ArchiveSet final : public ShardSet {
 public:
  /// Errors: Data if archives are missing, empty or damaged, if too many samples are bad (naming
  /// the first) or none is good; as number_classes; Io.
  ArchiveSet(const RecordFileSet& set, Split split, const KnownClasses& known,
             const OpenOptions& options, const std::filesystem::path& words);

  [[nodiscard]] std::string name() const override { return "WebDataset archives"; }
  [[nodiscard]] std::int64_t classes() const override { return known_.count; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return numbers_[static_cast<std::size_t>(entry(index).label)];
  }
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override {
    return entry(index).bytes;
  }
  StoredImage stored(std::int64_t index, ReadBuffer& buffer) const override;

  [[nodiscard]] const KnownClasses& known() const noexcept { return known_; }

 private:
  std::vector<std::int32_t> numbers_;  ///< of the class texts of the index
  KnownClasses known_;
};

}  // namespace millrace::io
