// SPDX-License-Identifier: Apache-2.0
//
// ImageNet as it is fetched and unpacked, in the places of the published preparation steps:
//
//   RAW/train/n01440764/*.JPEG           or img_train; a class's pictures in a folder
//   RAW/train/n01440764.tar              or in an archive as it comes
//   RAW/train/ILSVRC2012_img_train.tar   or in the archive of these archives (also in RAW itself)
//   RAW/n01440764/*.JPEG                 where there is none of these
//   RAW/validation/*.JPEG                or val, img_val; flat, in the order of their names, with
//   RAW/synset_labels.txt                the class of each, a line a picture
//   RAW/validation/n01440764/*.JPEG      or in class folders
//
// A class is called by its folder or archive ("synset"); classes are numbered by their sorted
// names, those of training, of which a folder in RAW/train may be empty.
//
// What a file is, its first bytes say. Those with the name of a picture are taken unseen, so that
// not every file is opened twice: one that is none proves bad when it is converted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/records/encoded_source.hpp"

namespace millrace::io {

/// A picture as it lies in a file of its own or in an archive.
struct RawPicture {
  std::filesystem::path file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string name;  ///< "n01440764_10026.JPEG"
  std::int32_t class_index = 0;
};

/// The pictures of one split by class and name (flat ones by name), all classes of the raw data,
/// and what is left out: other files of the split; links that lead to no file, and archives of
/// classes whose folders are there too, a line each.
struct RawPictures {
  std::vector<std::string> classes;
  std::vector<RawPicture> pictures;
  std::vector<std::string> others;
  std::vector<std::string> notices;
};

/// Finds the pictures of a split; nothing where there are none. `labels_file` overrides
/// RAW/synset_labels.txt; empty: none given. `known` are the classes of training, for validation,
/// where somebody has them: otherwise they are looked for. Errors: Data when there is no list of
/// labels, pictures and its lines are not equally many, or validation has classes without a number;
/// Io.
[[nodiscard]] std::optional<RawPictures> look_for_raw_pictures(
    const std::filesystem::path& raw_directory, Split split,
    const std::filesystem::path& labels_file = {}, std::span<const std::string> known = {});

/// The same; where there are none, Error(Data) names all places that were looked at.
[[nodiscard]] RawPictures find_raw_pictures(const std::filesystem::path& raw_directory, Split split,
                                            const std::filesystem::path& labels_file = {});

/// The bytes of a picture. Errors: Data when it is larger than a record may be; Io.
void read_raw_picture(const RawPicture& picture, std::vector<std::byte>& bytes);

}  // namespace millrace::io
