// SPDX-License-Identifier: Apache-2.0
#include "io/data/image_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kListed = 5;  // names in a message

std::vector<std::string> names_of(const FolderIndex& index) {
  std::vector<std::string> names;
  names.reserve(index.classes.size());
  for (const IndexedClass& one : index.classes) names.push_back(one.name);
  return names;
}

/// Whether the name is that of an image in a format that is not read.
bool is_other_image(const fs::path& path) {
  constexpr std::array<std::string_view, 10> kExtensions = {
      ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".jp2", ".ppm", ".jxl"};
  return std::ranges::find(kExtensions, to_lower(path.extension().string())) != kExtensions.end();
}

}  // namespace

ImageFolder::ImageFolder(const ClassFolders& folders, Split split, const IndexOptions& options,
                         double max_bad_fraction, const fs::path& words)
    : ImageFiles(folders.folder) {
  take(index_class_folders(folders, split, options, notices_));
  NumberedClasses numbered;
  numbered.known = {
      .names = folders.classes, .count = std::ssize(folders.classes), .complete = true};
  numbered.numbers.resize(folders.classes.size());
  std::iota(numbered.numbers.begin(), numbered.numbers.end(), 0);
  note_others();
  complete(std::move(numbered), with_words(folders.classes, words), max_bad_fraction);
  if (index().images.empty())
    fail(ErrorKind::Data, "{}: its {} folders contain no JPEG or PNG file", source_.string(),
         index().classes.size());
  note_empty_classes(folders, split);
}

fs::path ImageFolder::folder_of(const ImageFile& file) const {
  return source_ / index().classes[static_cast<std::size_t>(file.label)].name;
}

void ImageFolder::note_others() {
  if (index().others.empty()) return;
  // An image is missed more than a file that a file manager made.
  const auto image = std::ranges::find_if(
      index().others, [this](const ImageFile& file) { return is_other_image(path_of(file)); });
  const ImageFile& example = image != index().others.end() ? *image : index().others.front();
  notices_.push_back(fmt::format("{}: {} left out, neither JPEG nor PNG, for example {}",
                                 source_.string(), counted(std::ssize(index().others), "file"),
                                 path_of(example).string()));
}

void ImageFolder::note_empty_classes(const ClassFolders& folders, Split split) {
  std::vector<bool> has_images(index().classes.size(), false);
  for (const ImageFile& image : index().images)
    has_images[static_cast<std::size_t>(image.label)] = true;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < has_images.size(); ++i)
    if (!has_images[i]) names.push_back(index().classes[i].name);
  if (names.empty()) return;
  const std::size_t all = names.size();
  names.resize(std::min(all, kListed));
  notices_.push_back(fmt::format(
      "{}: {} of {} classes have no {} images: {}{}{}", source_.string(), all,
      index().classes.size(), split_name(split), join(names, ", "),
      names.size() < all ? ", ..." : "",
      folders.number_them ? "; a folder that is not a class shifts the labels of the classes after "
                            "it: remove it"
                          : ""));
}

AnnotatedImages::AnnotatedImages(const fs::path& annotations, const fs::path& directory,
                                 Split split, const KnownClasses& known,
                                 const IndexOptions& options, double max_bad_fraction,
                                 const fs::path& words)
    : ImageFiles(annotations), folder_(annotations.parent_path()) {
  take(index_annotated(annotations, directory, split, options, notices_));
  const std::vector<std::string> texts = names_of(index());
  const auto place_of = [this](std::size_t i) {
    return fmt::format("{}, line {}", source_.string(), index().classes[i].line);
  };
  NumberedClasses numbered = number_classes({.texts = texts, .place_of = place_of}, known);
  std::vector<std::string> titles = with_words(numbered.known.names, words);
  complete(std::move(numbered), std::move(titles), max_bad_fraction);
  if (index().images.empty())
    fail(ErrorKind::Data, "{}: none of the {} files that it lists is a JPEG or PNG, the first: {}",
         source_.string(), index().bad.size(), path_of(index().bad.front()).string());
}

fs::path AnnotatedImages::folder_of(const ImageFile&) const { return folder_; }

}  // namespace millrace::io
