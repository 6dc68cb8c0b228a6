// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "io/data/class_folders.hpp"
#include "io/data/image_dataset.hpp"

namespace millrace::io {

/// Images in class folders, by class and then by name. Images are recognized by their first bytes.
/// Notices list bad files and name classes without an image.
class ImageFolder final : public ImageDataset {
 public:
  /// `max_bad_fraction` is the maximum share of bad files. `words` may be a file with what people
  /// call the classes. Errors: Data if there are more bad files, or no image; Io.
  ImageFolder(const ClassFolders& folders, Split split, const IndexOptions& options,
              double max_bad_fraction, const std::filesystem::path& words = {});

  [[nodiscard]] std::string name() const override { return "image folder"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(index_.images.size());
  }
  [[nodiscard]] std::int64_t classes() const override {
    return static_cast<std::int64_t>(index_.classes.size());
  }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override { return image(index).label; }
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override {
    return image(index).stamp.bytes;
  }
  [[nodiscard]] std::uint32_t fingerprint() const override { return fingerprint_; }
  StoredImage stored(std::int64_t index, ReadBuffer& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return path_of(image(index)).string();
  }

  [[nodiscard]] const FolderIndex& index() const noexcept { return index_; }

 private:
  [[nodiscard]] const ImageFile& image(std::int64_t index) const;
  [[nodiscard]] std::filesystem::path path_of(const ImageFile& file) const;
  void judge_bad(double max_bad_fraction);
  void note_others();
  void note_empty_classes(const ClassFolders& folders, Split split);

  std::filesystem::path folder_;
  FolderIndex index_;
  std::uint32_t fingerprint_ = 0;
};

}  // namespace millrace::io
