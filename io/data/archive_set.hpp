// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/data/archive_index.hpp"
#include "io/data/class_numbers.hpp"
#include "io/data/image_dataset.hpp"
#include "io/data/record_set.hpp"

namespace millrace::io {

/// The good samples of one split of WebDataset archives, in the order of the archives. Notices give
/// the number of bad samples left out and the first few.
class ArchiveSet final : public ImageDataset {
 public:
  /// Errors: Data if archives are missing, empty or damaged, if too many samples are bad (naming
  /// the first) or none is good; as number_classes; Io.
  ArchiveSet(const RecordFileSet& set, Split split, const KnownClasses& known,
             const OpenOptions& options, const std::filesystem::path& words);

  [[nodiscard]] std::string name() const override { return "WebDataset archives"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(index_.records.entries.size());
  }
  [[nodiscard]] std::int64_t classes() const override { return known_.count; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override;
  [[nodiscard]] std::uint32_t fingerprint() const override { return fingerprint_; }
  StoredImage stored(std::int64_t index, ReadBuffer& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override;

  [[nodiscard]] const KnownClasses& known() const noexcept { return known_; }
  /// Samples that are left out.
  [[nodiscard]] const std::vector<BadRecord>& bad() const noexcept { return index_.records.bad; }
  [[nodiscard]] const std::filesystem::path& path_of(const BadRecord& bad) const {
    return files_.path(bad.file);
  }
  /// Number of archives.
  [[nodiscard]] std::uint64_t files() const noexcept { return index_.records.files.size(); }

 private:
  [[nodiscard]] std::string describe(const BadRecord& bad) const;
  void refuse_gaps(const RecordFileSet& set, MissingShards missing);
  void judge_bad(double max_bad_fraction);
  void number(KnownClasses known);
  [[nodiscard]] const RecordEntry& entry(std::int64_t index) const;

  std::filesystem::path folder_;
  ArchiveIndex index_;
  std::vector<std::int32_t> numbers_;  ///< of the texts of the index
  KnownClasses known_;
  std::uint32_t fingerprint_ = 0;
  OpenShards files_;
};

}  // namespace millrace::io
