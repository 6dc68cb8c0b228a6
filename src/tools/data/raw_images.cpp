// SPDX-License-Identifier: Apache-2.0
#include "tools/data/raw_images.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/data/files.hpp"
#include "io/data/record_frame.hpp"
#include "io/data/tar_reader.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr auto kTrainFolders = std::to_array<std::string_view>({"train", "img_train"});
constexpr auto kValidationFolders =
    std::to_array<std::string_view>({"validation", "val", "img_val"});
constexpr std::string_view kTar = ".tar";
constexpr std::size_t kMaxLabels = 1'000'000;

// An image of a class that has no number yet.
struct Named {
  RawImage image;
  std::string synset;
};

struct Found {
  std::vector<Named> images;
  std::set<std::string> classes;
  std::vector<std::string> others;
  std::vector<std::string> notices;

  void add(RawImage image, const std::string& synset) {
    classes.insert(synset);
    images.push_back({std::move(image), synset});
  }
  void sort_by_class() {
    std::ranges::sort(images, {}, [](const Named& named) {
      return std::pair(std::string_view(named.synset), std::string_view(named.image.name));
    });
  }
};

bool is_image(const fs::path& path) {
  return has_image_name(path.filename().string()) ||
         look_at_file(path).format != ImageFormat::Other;
}

bool is_image(ByteWindow& file, const TarMember& member) {
  return has_image_name(member.name) ||
         format_of(
             file.at(member.offset, std::min<std::uint64_t>(member.bytes, kImageSignatureBytes))) !=
             ImageFormat::Other;
}

RawImage whole_file(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error)
    fail(ErrorKind::Io, "{}: its size cannot be read ({}): check its permissions", path.string(),
         error.message());
  return {.file = path, .offset = 0, .bytes = bytes, .name = path.filename().string()};
}

void add_folder(const fs::path& folder, Found& found) {
  for (const std::string& name : list_folder(folder).files)
    if (is_image(folder / name))
      found.add(whole_file(folder / name), folder.filename().string());
    else
      found.others.push_back((folder / name).string());
}

void add_archive(const fs::path& path, const std::string& synset, Found& found) {
  ByteWindow file(path);
  TarListing listing = list_tar(file);
  for (const std::string& link : listing.links)
    found.notices.push_back(fmt::format(
        "{}: {} is left out: a link without an earlier target in the archive", file.label(), link));
  for (TarMember& member : listing.members) {
    if (member.name.starts_with('.')) continue;  // hidden files, as in folders
    if (member.name.ends_with(kTar))
      fail(ErrorKind::Data,
           "{}: {} at offset {} is an archive, too; expected one archive per class: unpack {}",
           file.label(), member.name, member.offset, file.label());
    if (is_image(file, member))
      found.add({.file = file.label(),
                 .offset = member.offset,
                 .bytes = member.bytes,
                 .name = std::move(member.name)},
                synset);
    else
      found.others.push_back(fmt::format("{}, {}", file.label(), member.name));
  }
}

Found find_by_class(const fs::path& folder) {
  Found found;
  const FolderListing listing = list_folder(folder);
  std::vector<std::string> unpacked;  // sorted like the listing
  for (const std::string& inner : listing.folders) {
    found.classes.insert(inner);
    const std::size_t before = found.images.size();
    add_folder(folder / inner, found);
    if (found.images.size() > before) unpacked.push_back(inner);
  }
  for (const std::string& name : listing.files) {
    if (!name.ends_with(kTar)) continue;
    const std::string synset = name.substr(0, name.size() - kTar.size());
    if (std::ranges::binary_search(unpacked, synset)) {
      found.notices.push_back(
          fmt::format("{}: left out, because its images are in the folder beside it",
                      (folder / name).string()));
      continue;
    }
    add_archive(folder / name, synset, found);
  }
  found.sort_by_class();
  return found;
}

// RAW may contain other folders, too, so only folders with images are classes.
Found find_directly(const fs::path& raw) {
  Found found;
  for (const std::string& name : list_folder(raw).folders)
    if (!has_split_name(name)) add_folder(raw / name, found);
  found.sort_by_class();
  return found;
}

// Without training images, the class folders may still number the validation classes.
Found find_training(const fs::path& raw) {
  Found empty;
  bool has_folder = false;
  for (const std::string_view name : kTrainFolders) {
    std::error_code ignored;
    has_folder = has_folder || fs::exists(raw / name, ignored);
    Found found = find_by_class(raw / name);
    if (!found.images.empty()) return found;
    if (empty.classes.empty()) empty = std::move(found);
  }
  return has_folder ? empty : find_directly(raw);
}

// Accepts Windows line ends and a last line without a line break.
std::vector<std::string> read_labels(const fs::path& path) {
  std::vector<std::string> labels;
  const auto add = [&](std::string_view line) {
    constexpr std::string_view kBlanks = " \t\r";
    const std::size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return;
    if (labels.size() == kMaxLabels)
      fail(ErrorKind::Data, "{}: more than {} lines: is it the labels file?", path.string(),
           kMaxLabels);
    labels.emplace_back(line.substr(begin, line.find_last_not_of(kBlanks) + 1 - begin));
  };
  LineReader lines(path);
  while (const std::optional<std::string_view> line = lines.next()) add(*line);
  if (lines.rest().size() > LineReader::kMaxLineBytes)
    fail(ErrorKind::Data, "{}: line {} has more than {} bytes: is it the labels file?",
         path.string(), lines.lines() + 1, LineReader::kMaxLineBytes);
  add(lines.rest());
  return labels;
}

void add_with_labels(const fs::path& folder, const std::vector<std::string>& files,
                     const fs::path& labels_file, Found& found) {
  if (std::error_code ignored; !fs::exists(labels_file, ignored))
    fail(ErrorKind::Data,
         "{}: no such file: expected the class of each of the {} images in {}, one per line in the "
         "order of their names; --validation-labels chooses another file",
         labels_file.string(), files.size(), folder.string());
  const std::vector<std::string> labels = read_labels(labels_file);
  if (labels.size() != files.size())
    fail(ErrorKind::Data,
         "{}: {} lines, but {} images in {}: expected the class of each image, one per line in the "
         "order of their names",
         labels_file.string(), labels.size(), files.size(), folder.string());
  for (std::size_t i = 0; i < files.size(); ++i)
    found.add(whole_file(folder / files[i]), labels[i]);
}

Found find_validation(const fs::path& raw, const fs::path& labels_file) {
  for (const std::string_view name : kValidationFolders) {
    const fs::path folder = raw / name;
    Found found;
    std::vector<std::string> flat;
    for (std::string& file : list_folder(folder).files) {
      if (file.ends_with(kTar)) continue;
      if (is_image(folder / file))
        flat.push_back(std::move(file));
      else
        found.others.push_back((folder / file).string());
    }
    if (flat.empty()) found = find_by_class(folder);
    if (!flat.empty())
      add_with_labels(folder, flat, labels_file.empty() ? raw / "synset_labels.txt" : labels_file,
                      found);
    if (!found.images.empty()) return found;
  }
  return {};
}

[[noreturn]] void fail_none(const fs::path& raw, Split split) {
  if (split == Split::Train)
    fail(ErrorKind::Data,
         "no training images in '{0}': searched for class folders and class archives (.tar) in "
         "{0}/train and {0}/img_train, and, if neither exists, for class folders in {0}",
         raw.string());
  fail(ErrorKind::Data,
       "no validation images in '{0}': searched for images, class folders and class archives "
       "(.tar) in {0}/validation, {0}/val and {0}/img_val",
       raw.string());
}

// Training numbers the classes, so that a number means the same in each split.
void check_classes(const Found& validation, const std::set<std::string>& known,
                   const fs::path& raw) {
  if (known.empty())
    fail(ErrorKind::Data,
         "{}: only validation images, so classes have no numbers: put the training images into {}, "
         "or an empty folder for each class",
         raw.string(), (raw / kTrainFolders[0]).string());
  for (const Named& named : validation.images)
    if (!known.contains(named.synset))
      fail(ErrorKind::Data, "{}: class {} is not a training class in {}", named.image.file.string(),
           named.synset, raw.string());
}

}  // namespace

std::optional<RawImages> look_for_raw_images(const fs::path& raw, Split split,
                                             const fs::path& labels_file,
                                             std::span<const std::string> known) {
  Found found = split == Split::Train ? find_training(raw) : find_validation(raw, labels_file);
  if (found.images.empty()) return {};
  std::set<std::string> classes(known.begin(), known.end());
  if (split == Split::Train)
    classes = std::move(found.classes);
  else if (known.empty())
    classes = find_training(raw).classes;
  if (split == Split::Validation) check_classes(found, classes, raw);
  RawImages result{.classes = {classes.begin(), classes.end()},
                   .images = {},
                   .others = std::move(found.others),
                   .notices = std::move(found.notices)};
  result.images.reserve(found.images.size());
  for (Named& named : found.images) {
    const auto place = std::ranges::lower_bound(result.classes, named.synset);
    named.image.class_index = static_cast<std::int32_t>(place - result.classes.begin());
    result.images.push_back(std::move(named.image));
  }
  return result;
}

RawImages find_raw_images(const fs::path& raw, Split split, const fs::path& labels_file) {
  auto found = look_for_raw_images(raw, split, labels_file);
  if (!found) fail_none(raw, split);
  return std::move(*found);
}

void read_raw_image(const RawImage& image, std::vector<std::byte>& bytes) {
  if (image.bytes > kMaxRecordBytes)
    fail(ErrorKind::Data, "{}: {} has {} bytes; the limit is {}", image.file.string(), image.name,
         image.bytes, kMaxRecordBytes);
  const UniqueFd file = open_file(image.file, O_RDONLY);
  bytes.resize(image.bytes);
  read_exactly(file.get(), image.offset, bytes, image.file.string());
}

}  // namespace millrace::io
