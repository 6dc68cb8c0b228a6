// SPDX-License-Identifier: Apache-2.0
//
// Images in one folder per class: the folders, sorted by name, are classes 0, 1, 2, ...
//
//   DIR/train/n01440764/*   DIR/val/n01440764/*       also img_train; validation, img_val
//   DIR/n01440764/*                                   training only
//
// Every folder there is a class, whatever it contains. In DIR itself, folders named like splits
// ("val") are not classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/files.hpp"
#include "io/data/image_dataset.hpp"
#include "io/data/index_cache.hpp"

namespace millrace::io {

/// Class folders of one split, in label order. Validation classes are numbered as in training if
/// training folders exist.
struct ClassFolders {
  std::filesystem::path folder;
  std::vector<std::string> classes;
};

/// The first place with class folders for a split; no classes if there is none. Errors: Data if
/// validation has a class that training lacks; Io.
[[nodiscard]] ClassFolders find_class_folders(const std::filesystem::path& directory, Split split);
/// "DIR/train, DIR/img_train, DIR" for messages.
[[nodiscard]] std::string describe_class_places(const std::filesystem::path& directory,
                                                Split split);

/// One file in a class folder: its class, its size and modification time, its name in the folder.
struct ImageFile {
  std::int32_t label = 0;
  FileStamp stamp;
  std::string name;
  friend bool operator==(const ImageFile&, const ImageFile&) = default;
};

/// Content of class folders, by class and name: images; bad files, which should be images but are
/// empty, not regular files, too large, or neither JPEG nor PNG despite an image's name; and other
/// files. `modified_ns` are the modification times of the class folders (-1: missing).
struct FolderIndex {
  std::vector<std::string> classes;
  std::vector<std::int64_t> modified_ns;
  std::vector<ImageFile> images;
  std::vector<ImageFile> bad;
  std::vector<ImageFile> others;
  friend bool operator==(const FolderIndex&, const FolderIndex&) = default;
};

/// Converts an index to the content of a cached file and back; empty if the bytes are not an index.
[[nodiscard]] std::vector<std::byte> write_folder_index(const FolderIndex& index);
[[nodiscard]] std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content);

/// Images in class folders, by class and then by name. Images are recognized by their first bytes;
/// the result is cached in an index until a folder or a file in it changes. Notices list bad files
/// and classes without an image.
class ImageFolder final : public ImageDataset {
 public:
  /// `max_bad_fraction` is the maximum share of bad files. Errors: Data if there are more, or no
  /// image; Io.
  ImageFolder(const ClassFolders& folders, Split split, const IndexOptions& options,
              double max_bad_fraction);

  [[nodiscard]] std::string name() const override { return "image folder"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(index_.images.size());
  }
  [[nodiscard]] std::int64_t classes() const override {
    return static_cast<std::int64_t>(index_.classes.size());
  }
  /// Those of the folders.
  [[nodiscard]] std::vector<std::string> class_names() const override { return index_.classes; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override;
  [[nodiscard]] std::uint32_t fingerprint() const override { return fingerprint_; }
  StoredImage stored(std::int64_t index, ReadBuffer& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override;

  [[nodiscard]] const FolderIndex& index() const noexcept { return index_; }

 private:
  [[nodiscard]] const ImageFile& image(std::int64_t index) const;
  [[nodiscard]] std::filesystem::path path_of(const ImageFile& file) const;
  void judge_bad(double max_bad_fraction);
  void note_empty_classes(Split split);

  std::filesystem::path folder_;
  FolderIndex index_;
  std::uint32_t fingerprint_ = 0;
};

}  // namespace millrace::io
