// SPDX-License-Identifier: Apache-2.0
//
// Pictures in one folder a class: the folders, sorted by name, are classes 0, 1, 2, ...
//
//   DIR/train/n01440764/*   DIR/val/n01440764/*       also img_train; validation, img_val
//   DIR/n01440764/*                                   training alone
//
// Every folder there is a class, whatever it holds. In DIR itself folders that are named as splits
// are ("val") do not make it one of classes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/records/encoded_source.hpp"
#include "io/records/folder_index.hpp"
#include "io/records/record_index.hpp"

namespace millrace::io {

/// Class folders of one split. Their order is that of labels; those of validation are numbered as
/// in training, where training folders lie beside them.
struct ClassFolders {
  std::filesystem::path folder;
  std::vector<std::string> classes;
};

/// The first place with class folders for a split; without classes where there is none. Errors:
/// Data when validation has a class that training lacks; Io.
[[nodiscard]] ClassFolders find_class_folders(const std::filesystem::path& directory, Split split);
/// "DIR/train, DIR/img_train, DIR" for messages.
[[nodiscard]] std::string describe_class_places(const std::filesystem::path& directory,
                                                Split split);

/// Pictures in class folders, by class and then by name. Which files are pictures is told by their
/// first bytes, once: the index is cached until a folder or a file in it changes. Its notices count
/// and name bad files and name classes without a picture.
class ImageFolderSource final : public EncodedSource {
 public:
  /// `max_bad_fraction` is the share of bad files, of them and the pictures, before the set is
  /// refused. Errors: Data when there are more, or no picture; Io.
  ImageFolderSource(const ClassFolders& folders, Split split, const IndexOptions& options,
                    double max_bad_fraction);

  [[nodiscard]] std::string name() const override { return "image folder"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(index_.pictures.size());
  }
  [[nodiscard]] std::int64_t classes() const override {
    return static_cast<std::int64_t>(index_.classes.size());
  }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override;
  [[nodiscard]] std::uint32_t fingerprint() const override { return fingerprint_; }
  EncodedImage read(std::int64_t index, ReadBuffer& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override;
  [[nodiscard]] std::span<const std::string> notices() const override { return notices_; }

  [[nodiscard]] const FolderIndex& index() const noexcept { return index_; }

 private:
  [[nodiscard]] const PictureFile& picture(std::int64_t index) const;
  [[nodiscard]] std::filesystem::path path_of(const PictureFile& file) const;
  void judge_bad(double max_bad_fraction);
  void note_empty_classes(Split split);

  std::filesystem::path folder_;
  std::vector<std::string> notices_;  ///< before the index, whose opening adds to them
  FolderIndex index_;
  std::uint32_t fingerprint_ = 0;
};

}  // namespace millrace::io
