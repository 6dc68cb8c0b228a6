// SPDX-License-Identifier: Apache-2.0
//
// Images in one folder per class, and their index. The folders, sorted by name, are classes 0, 1,
// and so on.
//
//   DIR/train/n01440764/*   DIR/val/n01440764/*       also img_train; validation, img_val
//   DIR/n01440764/*                                   training only
//
// Every folder there is a class, whatever it contains; images may lie in folders within it
// (n01440764/images/*). In DIR itself, folders named like splits ("val") and folders of whole data
// sets are not classes.
//
// The index is kept in the user's cache until a folder or an image changes, never among the images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "io/data/class_names.hpp"
#include "io/data/dataset.hpp"
#include "io/data/files.hpp"
#include "io/data/image_dataset.hpp"
#include "io/data/index_cache.hpp"

namespace millrace::io {

/// Most levels of folders within a class.
inline constexpr int kMostFolderLevels = 8;

/// Class folders of one split, in label order.
struct ClassFolders {
  std::filesystem::path folder;
  std::vector<std::string> classes;
  bool number_them = true;  ///< whether they are the classes, or others were known before
};

/// The first place with class folders for a split; no classes if there is none. If `known` has no
/// names, the folders number the classes. Errors: Data if a folder is not a known class; Io.
[[nodiscard]] ClassFolders find_class_folders(const std::filesystem::path& directory, Split split,
                                              const KnownClasses& known = {});

/// Whether there is a place with class folders for a split.
[[nodiscard]] bool has_class_folders(const std::filesystem::path& directory, Split split);

/// "DIR/train, DIR/img_train, DIR" for messages.
[[nodiscard]] std::string describe_class_places(const std::filesystem::path& directory,
                                                Split split);

/// One image file: its class, its size and modification time, its name in the folder of its class.
struct ImageFile {
  std::int32_t label = 0;  ///< position among the classes of the index
  FileStamp stamp;
  std::string name;
  static constexpr auto kFields =
      std::tuple(&ImageFile::label, &ImageFile::stamp, &ImageFile::name);
  friend bool operator==(const ImageFile&, const ImageFile&) = default;
};

/// The stamp of a missing file in an index.
inline constexpr FileStamp kNoFile = {.bytes = 0, .modified_ns = -1};

/// A folder that was indexed, with its modification time (-1: missing).
struct IndexedFolder {
  std::string name;
  std::int64_t modified_ns = 0;
  static constexpr auto kFields = std::tuple(&IndexedFolder::name, &IndexedFolder::modified_ns);
  friend bool operator==(const IndexedFolder&, const IndexedFolder&) = default;
};

/// Images; bad files, which should be images but are missing, empty, not regular files, too large,
/// or neither JPEG nor PNG despite an image's name; and other files. They are sorted by class,
/// folder and name.
struct FolderIndex {
  std::vector<std::string> classes;
  std::vector<IndexedFolder> folders;
  std::vector<ImageFile> images;
  std::vector<ImageFile> bad;
  std::vector<ImageFile> others;
  friend bool operator==(const FolderIndex&, const FolderIndex&) = default;
};

/// Converts an index to the content of a cached file and back; empty if the bytes are not an index.
[[nodiscard]] std::vector<std::byte> write_folder_index(const FolderIndex& index);
[[nodiscard]] std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content);

/// Images in class folders, by class and then by name. Images are recognized by their first bytes.
/// Notices list bad files and name classes without an image.
class ImageFolder final : public ImageDataset {
 public:
  /// `max_bad_fraction` is the maximum share of bad files. `words` may be a file with what people
  /// call the classes. Errors: Data if there are more bad files, no image, or folders within a
  /// class that are too deep; Io.
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
