// SPDX-License-Identifier: Apache-2.0
//
// ImageNet as downloaded and unpacked by the published preparation steps:
//
//   RAW/train/n01440764/*.JPEG           or img_train; one folder per class
//   RAW/train/n01440764.tar              or one archive per class
//   RAW/n01440764/*.JPEG                 if none of these exists
//   RAW/validation/*.JPEG                or val, img_val; flat, in name order, with
//   RAW/synset_labels.txt                the class of each image, one per line
//   RAW/validation/n01440764/*.JPEG      or in class folders
//
// A class is named after its folder or archive ("synset"). Classes are numbered by the sorted names
// of the training classes; class folders in RAW/train may be empty.
//
// Files are classified by their first bytes. Files with an image's name are accepted without
// opening them, to avoid opening every file twice; the conversion detects those that are not
// images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/dataset.hpp"

namespace millrace::io {

/// An image in its own file or in an archive.
struct RawImage {
  std::filesystem::path file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string name;  ///< "n01440764_10026.JPEG"
  std::int32_t class_index = 0;
};

/// The images of one split by class and name (flat ones by name), all classes of the raw data, and
/// what is left out: `others` are other files of the split; `notices` has one line per broken link
/// and per class archive whose folder exists, too.
struct RawImages {
  std::vector<std::string> classes;
  std::vector<RawImage> images;
  std::vector<std::string> others;
  std::vector<std::string> notices;
};

/// Finds the images of a split; empty if there are none. `labels_file` overrides
/// RAW/synset_labels.txt unless it is empty. `known` are the training classes, for validation; if
/// empty, they are searched for. Errors: Data if the list of labels is missing or its number of
/// lines differs from the number of images, or if validation has classes without a number; Io.
[[nodiscard]] std::optional<RawImages> look_for_raw_images(
    const std::filesystem::path& raw_directory, Split split,
    const std::filesystem::path& labels_file = {}, std::span<const std::string> known = {});

/// The same, but if there are no images, Error(Data) names all places searched.
[[nodiscard]] RawImages find_raw_images(const std::filesystem::path& raw_directory, Split split,
                                        const std::filesystem::path& labels_file = {});

/// Reads the bytes of an image. Errors: Data if it exceeds the maximum size of a record; Io.
void read_raw_image(const RawImage& image, std::vector<std::byte>& bytes);

}  // namespace millrace::io
