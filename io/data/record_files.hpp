// SPDX-License-Identifier: Apache-2.0
//
// Where shards lie: TFRecord files as in the trainings that millrace replaces, and WebDataset
// archives.
//
//   DIR/train-00000-of-01024       DIR/validation-00000-of-00128              flat
//   DIR/train/train-*              DIR/validation/validation-*                as converters write
//   DIR/img_train/img_train-*      DIR/img_val/img_val-*
//   DIR/imagenet_train_subset*     DIR/imagenet_val_subset*                   a folder or files
//   DIR/train-000000.tar           DIR/val-000000.tar       archives; in DIR/train/ also 000000.tar
//
// All names of records are accepted in DIR itself and in each folder of their split, with or
// without an extension (".tfrecord"). If a name has a number ("-00003-of-01024"), names without a
// number or with another extension are left out as copies or notes. If no file has the form of a
// shard's name and none begins with a record, the next place is searched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/dataset.hpp"

namespace millrace::io {

/// The shards of one split.
struct RecordFileSet {
  std::filesystem::path folder;
  std::vector<std::string> files;     ///< names in the folder, sorted by number or name
  std::vector<std::string> missing;   ///< names of the missing shards of "-of-N"
  std::vector<std::string> empty;     ///< those of `files` with 0 bytes, from an interrupted copy
  std::vector<std::string> left_out;  ///< names of other form beside numbered TFRecord files
};

/// "-00017-of-01024" in a name, before its ending.
struct ShardNumber {
  std::uint32_t number = 0;
  std::uint32_t total = 0;
  std::size_t number_at = 0;  ///< position of the digits
  std::size_t ending_at = 0;  ///< of ".tfrecord", or the end of the name
};
/// Empty for other names.
[[nodiscard]] std::optional<ShardNumber> parse_shard_number(std::string_view name);

/// The first place with files for a split; a set without files if there is none. Errors: Data if a
/// folder has shards of several sets ("-of-00008" and "-of-01024"); Io.
[[nodiscard]] RecordFileSet find_record_files(const std::filesystem::path& directory, Split split);

/// "train-*, img_train-* or imagenet_train_subset* in DIR, DIR/train, ..." for messages.
[[nodiscard]] std::string describe_record_places(const std::filesystem::path& directory,
                                                 Split split);

/// The archives of one split: missing are those between the first and the last number, and up to
/// "-of-N" if the names say it. Errors: Data if a folder has archives of several sets; Io.
[[nodiscard]] RecordFileSet find_archives(const std::filesystem::path& directory, Split split);

/// "train-*.tar in DIR, DIR/train" for messages.
[[nodiscard]] std::string describe_archive_places(const std::filesystem::path& directory,
                                                  Split split);

/// "3 of 1024 shards are missing: train-00017-of-01024, ..."; "" when none is.
[[nodiscard]] std::string describe_missing(const RecordFileSet& set);
/// "1 of 1024 shards is empty: train-00017-of-01024"; "" when none is.
[[nodiscard]] std::string describe_empty(const RecordFileSet& set);
/// "1 file of another form lies beside numbered shards and is left out: train-00017-of-01024.bak";
/// "" when there is none.
[[nodiscard]] std::string describe_left_out(const RecordFileSet& set);

}  // namespace millrace::io
