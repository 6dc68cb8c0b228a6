// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/image_dataset.hpp"
#include "io/data/record_frame.hpp"
#include "io/data/record_index.hpp"

namespace millrace::io {

enum class MissingShards : std::uint8_t { Refused, Accepted };

/// How stored images are opened.
struct OpenOptions {
  /// Stored labels minus network labels; the converter counts from 1.
  std::int32_t label_offset = 1;
  std::int64_t classes = 1000;
  /// Whether the user gave the number of classes. Otherwise sets whose labels tell it are asked.
  bool classes_are_told = false;
  /// Maximum share of bad records (by frame, Example or label), or of bad files in class folders; a
  /// set with more is rejected.
  double max_bad_fraction = 0.001;
  /// Whether sets with missing or empty shards are accepted.
  MissingShards missing = MissingShards::Refused;
  IndexOptions index = {};
};

/// Shards that many threads read at random offsets. Files stay open after the first read, as far as
/// the process's limit on open files allows; the others are opened for every read.
class OpenShards {
 public:
  explicit OpenShards(const RecordFileSet& set);
  ~OpenShards();
  OpenShards(OpenShards&&) = delete;

  [[nodiscard]] const std::filesystem::path& path(std::size_t file) const { return paths_[file]; }
  /// Fills `out` from `offset` of a file. Errors: Io; Data if the file is too short.
  void read(std::size_t file, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  [[nodiscard]] bool keep(std::size_t file, int descriptor) const noexcept;

  std::vector<std::filesystem::path> paths_;
  std::unique_ptr<std::atomic<int>[]> open_;  ///< -1: not open
  mutable std::atomic<std::int64_t> may_open_;
};

/// The good images of one split in shards, in the order of the shards and then of their places.
/// Notices give the number of bad ones left out and the first few.
class ShardSet : public ImageDataset {
 public:
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(index_.entries.size());
  }
  [[nodiscard]] std::uint32_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::string where(std::int64_t index) const override;

  /// Entries are in sample order, with labels as stored.
  [[nodiscard]] const RecordIndex& index() const noexcept { return index_; }
  [[nodiscard]] const std::filesystem::path& path_of(const BadRecord& bad) const {
    return files_.path(bad.file);
  }

 protected:
  explicit ShardSet(const RecordFileSet& set) : folder_(set.folder), files_(set) {}

  /// What a kind of shards asks to do about missing ones, and whether empty ones may be left out.
  struct Gaps {
    std::string_view remedy;  ///< "fetch"
    MissingShards empty = MissingShards::Refused;
  };
  /// Notes missing and empty shards. Errors: Data, if they are not accepted.
  void note_gaps(const RecordFileSet& set, MissingShards missing, const Gaps& gaps);
  /// Leaves out the bad ones, as leave_out_bad. Errors: also Data, saying `none`, if there is
  /// neither a bad one nor a good one.
  void judge_bad(double max_bad_fraction, std::string_view none, const std::string& count,
                 const std::string& head);

  [[nodiscard]] const RecordEntry& entry(std::int64_t index) const;
  [[nodiscard]] std::string describe(const BadRecord& bad) const;
  /// Fills `out` with the bytes from where entry `index` begins. Errors: as OpenShards::read.
  void read_from(std::int64_t index, std::span<std::byte> out) const;
  /// The checksum of the sizes of all entries, each with a number of its own.
  [[nodiscard]] std::uint32_t checksum(
      const std::function<std::int32_t(std::int64_t)>& number) const;

  std::filesystem::path folder_;
  RecordIndex index_;
  std::uint32_t fingerprint_ = 0;

 private:
  OpenShards files_;
};

/// The good records of one split of TFRecord files.
class RecordSet final : public ShardSet {
 public:
  /// Errors: Data if shards are missing or empty, too many records are bad (naming the first), or
  /// none is good; Io.
  RecordSet(const RecordFileSet& set, Split split, const OpenOptions& options);

  [[nodiscard]] std::string name() const override { return "imagenet records"; }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return entry(index).label - label_offset_;
  }
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override {
    return entry(index).bytes + kFrameBytes;
  }
  StoredImage stored(std::int64_t index, ReadBuffer& buffer) const override;

 private:
  void drop_foreign_labels();
  [[nodiscard]] std::string describe_bad() const;

  std::int32_t label_offset_;
  std::int64_t classes_;
};

/// "train-00000-of-01024, record 12 at offset 345"
[[nodiscard]] std::string describe_place(const std::filesystem::path& file, std::uint64_t record,
                                         std::uint64_t offset);

}  // namespace millrace::io
