// SPDX-License-Identifier: Apache-2.0
//
// Names and numbers of classes. Networks number the classes of a set 0, 1, 2, ..; folders and
// archives call them by name ("n01440764") or by number ("17").
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::io {

/// Most classes of a set.
inline constexpr std::int64_t kMostClasses = 1'000'000;

/// The classes of a set. Without names, images have numbers from 0 to count - 1.
struct KnownClasses {
  std::vector<std::string> names;  ///< by number
  std::int64_t count = 0;          ///< 0: not known yet
  /// Whether other classes are errors: they come from the training images.
  bool complete = false;
  friend bool operator==(const KnownClasses&, const KnownClasses&) = default;
};

/// What a source calls the classes of its images. `place_of(i)` says where `texts[i]` was found
/// first: "train-000000.tar, sample 'a'".
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

/// The lines of a file of class names: by name what people call it, which stands behind a tab, or
/// "" ("n01443537\tgoldfish"). Errors: Data, naming `label` and the line, for an empty or repeated
/// name; Data if there is no name or there are too many.
using ClassWords = std::map<std::string, std::string, std::less<>>;
[[nodiscard]] ClassWords parse_class_words(std::string_view text, std::string_view label);

/// Names for people: "n01443537 (goldfish)" where the file `words`, which may be missing, knows the
/// name; the name otherwise.
[[nodiscard]] std::vector<std::string> with_words(std::span<const std::string> names,
                                                  const std::filesystem::path& words);

/// The names in a text file: one per line, in the order of the classes, without blanks around them
/// and without empty lines. Errors: Io.
[[nodiscard]] std::vector<std::string> read_class_names(const std::filesystem::path& path);

/// Names of classes, and what is to be said about them, or "".
struct ClassNames {
  std::vector<std::string> names;
  std::string notice;
};
/// The names of `classes` classes; what people call one may follow behind a tab: "n01443537
/// (goldfish)". ImageNet's 1000 names are those of classes 1 to 1000 of 1001, whose first one is
/// the background; the notice says so. Errors: Io; Data, with both numbers, if there are not as
/// many as `classes`.
[[nodiscard]] ClassNames read_class_names(const std::filesystem::path& path, std::int64_t classes);

}  // namespace millrace::io
