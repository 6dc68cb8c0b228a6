// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "io/data/class_folders.hpp"
#include "io/data/image_files.hpp"

namespace millrace::io {

/// Images in class folders, by class and then by name. Images are recognized by their first bytes.
/// Notices also name classes without an image.
class ImageFolder final : public ImageFiles {
 public:
  /// `max_bad_fraction` is the maximum share of bad files. `words` may be a file with what people
  /// call the classes. Errors: Data if there are more bad files, or no image; Io.
  ImageFolder(const ClassFolders& folders, Split split, const IndexOptions& options,
              double max_bad_fraction, const std::filesystem::path& words = {});

  [[nodiscard]] std::string name() const override { return "image folder"; }

 private:
  [[nodiscard]] std::filesystem::path folder_of(const ImageFile& file) const override;
  void note_others();
  void note_empty_classes(const ClassFolders& folders, Split split);
};

/// Images that an annotation file lists, in its order.
class AnnotatedImages final : public ImageFiles {
 public:
  /// `directory` is where the search for the images begins, besides the folder of the file. Errors:
  /// as index_annotated and number_classes; Data if too many listed files are bad, or all.
  AnnotatedImages(const std::filesystem::path& annotations, const std::filesystem::path& directory,
                  Split split, const KnownClasses& known, const IndexOptions& options,
                  double max_bad_fraction, const std::filesystem::path& words = {});

  [[nodiscard]] std::string name() const override { return "annotated images"; }

 private:
  [[nodiscard]] std::filesystem::path folder_of(const ImageFile& file) const override;

  std::filesystem::path folder_;
};

}  // namespace millrace::io
