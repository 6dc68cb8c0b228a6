// SPDX-License-Identifier: Apache-2.0
//
// Numbers of classes. Networks number the classes of a set 0, 1, 2, ..; folders, annotation files
// and archives call them by name ("n01440764") or by number ("17").
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/dataset.hpp"

namespace millrace::io {

/// Most classes of a set.
inline constexpr std::int64_t kMostClasses = 1'000'000;

/// The classes of a set. Without names, images have numbers from 0 to count - 1.
struct KnownClasses {
  std::vector<std::string> names;  ///< by number
  std::int64_t count = 0;          ///< 0: not known yet
  /// Whether other classes are errors: they come from a file or from the training images.
  bool complete = false;
  std::string_view source = "known classes";  ///< what messages call them
  friend bool operator==(const KnownClasses&, const KnownClasses&) = default;
};

/// What a source calls the classes of its images. `place_of(i)` says where `texts[i]` was found
/// first: "val.csv, line 3".
struct ClassTexts {
  std::span<const std::string> texts;
  std::function<std::string(std::size_t)> place_of;
};

/// The number of each class text, and all classes of the set.
struct NumberedClasses {
  std::vector<std::int32_t> numbers;
  KnownClasses known;
};

/// Numbers the texts. Known names have their numbers. Other texts are numbers if all of them are
/// whole numbers; if they are names and nothing is known, their sorted order numbers them. Errors:
/// Data, with the place, for a class that is not known.
[[nodiscard]] NumberedClasses number_classes(const ClassTexts& classes, KnownClasses known);

/// The lines of a file of class names: the names by number, each with what people call it behind a
/// tab, if that is given ("n01443537\tgoldfish"). Errors: Data, naming `label` and the line, for
/// an empty or repeated name; Data if there is no name or there are too many.
struct ClassFile {
  std::vector<std::string> names;
  std::vector<std::string> words;  ///< "" if not given
};
[[nodiscard]] ClassFile parse_class_file(std::string_view text, std::string_view label);
[[nodiscard]] ClassFile read_class_file(const std::filesystem::path& path);

/// Names for people: "n01443537 (goldfish)" where `words` knows the name, the name otherwise.
/// `words` is a file as parse_class_file reads it, with more lines than the set has classes; it may
/// be missing.
[[nodiscard]] std::vector<std::string> with_words(std::span<const std::string> names,
                                                  const std::filesystem::path& words);

}  // namespace millrace::io
