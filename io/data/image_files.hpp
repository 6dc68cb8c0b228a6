// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/data/class_numbers.hpp"
#include "io/data/folder_index.hpp"
#include "io/data/image_dataset.hpp"

namespace millrace::io {

/// Images that are files of their own, as an index lists them. Notices list bad files.
class ImageFiles : public ImageDataset {
 public:
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(index_.images.size());
  }
  [[nodiscard]] std::int64_t classes() const override { return known_.count; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override;
  [[nodiscard]] std::uint32_t fingerprint() const override { return fingerprint_; }
  StoredImage stored(std::int64_t index, ReadBuffer& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override;

  [[nodiscard]] const FolderIndex& index() const noexcept { return index_; }
  /// The classes, for the numbers of another split.
  [[nodiscard]] const KnownClasses& known() const noexcept { return known_; }
  [[nodiscard]] std::filesystem::path path_of(const ImageFile& file) const {
    return folder_of(file) / file.name;
  }

 protected:
  /// `source` holds the images, or lists them.
  explicit ImageFiles(std::filesystem::path source);
  /// The two steps of a constructor: the files, and then the numbers of the classes that they name.
  /// Errors: Data if there are too many bad files.
  void take(FolderIndex index) { index_ = std::move(index); }
  void complete(NumberedClasses numbered, std::vector<std::string> titles, double max_bad_fraction);
  /// The folder in which the name of a file begins.
  [[nodiscard]] virtual std::filesystem::path folder_of(const ImageFile& file) const = 0;

  std::filesystem::path source_;

 private:
  [[nodiscard]] const ImageFile& image(std::int64_t index) const;
  void judge_bad(double max_bad_fraction);
  [[nodiscard]] std::uint32_t fingerprint_of_index() const;

  FolderIndex index_;
  std::vector<std::int32_t> numbers_;  ///< of the classes of the index
  KnownClasses known_;
  std::uint32_t fingerprint_ = 0;
};

}  // namespace millrace::io
