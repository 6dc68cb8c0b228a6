// SPDX-License-Identifier: Apache-2.0
//
// Annotation files: a line for each image with its path and its class.
//
//   train.csv   path,label           val/val_annotations.txt   val_0.JPEG  n03444034  0  32  44  62
//               cats/1.jpg,cat                                 (tab-separated; as tiny-imagenet)
//
// Columns are separated by tabs, by commas (with quotes as in RFC 4180) or, in files with neither,
// by the last blank. The first two columns count, or those that a header names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/dataset.hpp"

namespace millrace::io {

/// Most bytes of an annotation file, and of one line.
inline constexpr std::uint64_t kMostAnnotationBytes = std::uint64_t{1} << 30;
inline constexpr std::size_t kMostAnnotationLine = 64 * 1024;

struct Annotation {
  std::string path;   ///< as written
  std::string label;  ///< a name or a number, as written
  std::uint64_t line = 0;
  friend bool operator==(const Annotation&, const Annotation&) = default;
};

/// The lines of an annotation file. Errors: Data, naming `label` and the line, for a line without
/// path or class, or one that is too long or holds a zero byte; Data if there is no line.
[[nodiscard]] std::vector<Annotation> parse_annotations(std::string_view text,
                                                        std::string_view label);

/// The annotation file of a split: `given` unless it is empty; val/val_annotations.txt; or
/// train.csv, val.csv, .. beside folders of images that are not classes. Empty if there is none.
[[nodiscard]] std::filesystem::path find_annotations(const std::filesystem::path& directory,
                                                     Split split,
                                                     const std::filesystem::path& given);
/// "DIR/train.csv, .." for messages.
[[nodiscard]] std::string describe_annotation_places(const std::filesystem::path& directory,
                                                     Split split);

}  // namespace millrace::io
