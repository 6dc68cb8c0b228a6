// SPDX-License-Identifier: Apache-2.0
#include "io/records/raw_pictures.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/records/byte_window.hpp"
#include "io/records/folder_listing.hpp"
#include "io/records/record_frame.hpp"
#include "io/records/tar_reader.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr auto kTrainFolders = std::to_array<std::string_view>({"train", "img_train", ""});
constexpr auto kValidationFolders =
    std::to_array<std::string_view>({"validation", "val", "img_val"});
constexpr std::string_view kTar = ".tar";
constexpr std::uint64_t kMaxLabelsBytes = std::uint64_t{256} << 20;

// A picture of a class that has no number yet.
struct Named {
  RawPicture picture;
  std::string synset;
};

// What a folder of pictures may hold beside them by its usual names.
bool is_picture_name(std::string_view name) {
  const std::string lower = to_lower(name);
  return lower.ends_with(".jpeg") || lower.ends_with(".jpg") || lower.ends_with(".png");
}

RawPicture whole_file(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error)
    fail(ErrorKind::Io, "{}: its size cannot be read ({}): check its permissions", path.string(),
         error.message());
  return {.file = path, .offset = 0, .bytes = bytes, .name = path.filename().string()};
}

void add_folder(const fs::path& folder, std::vector<Named>& out) {
  for (const std::string& name : list_folder(folder).files)
    if (is_picture_name(name))
      out.push_back({whole_file(folder / name), folder.filename().string()});
}

// An archive of one class, or of archives of classes.
void add_archive(ByteWindow& file, const std::string& synset, std::uint64_t begin,
                 std::uint64_t bytes, std::vector<Named>& out) {
  for (TarMember& member : list_tar(file, begin, bytes)) {
    if (member.name.ends_with(kTar))
      add_archive(file, member.name.substr(0, member.name.size() - kTar.size()), member.offset,
                  member.bytes, out);
    else if (is_picture_name(member.name))
      out.push_back({{.file = file.label(),
                      .offset = member.offset,
                      .bytes = member.bytes,
                      .name = std::move(member.name)},
                     synset});
  }
}

void sort_by_class(std::vector<Named>& found) {
  std::ranges::sort(found, {}, [](const Named& named) {
    return std::pair(std::string_view(named.synset), std::string_view(named.picture.name));
  });
}

std::vector<Named> find_by_class(const fs::path& folder) {
  std::vector<Named> found;
  const FolderListing listing = list_folder(folder);
  for (const std::string& inner : listing.folders) add_folder(folder / inner, found);
  for (const std::string& name : listing.files) {
    if (!name.ends_with(kTar)) continue;
    ByteWindow file(folder / name);
    add_archive(file, name.substr(0, name.size() - kTar.size()), 0, file.size(), found);
  }
  sort_by_class(found);
  return found;
}

std::vector<Named> find_training(const fs::path& raw) {
  for (const std::string_view name : kTrainFolders)
    // RAW itself holds folders of splits, too; only an archive of archives is looked for in it.
    if (!name.empty()) {
      auto found = find_by_class(raw / name);
      if (!found.empty()) return found;
    } else if (fs::path archive = raw / "ILSVRC2012_img_train.tar"; fs::exists(archive)) {
      std::vector<Named> found;
      ByteWindow file(archive);
      add_archive(file, "", 0, file.size(), found);
      sort_by_class(found);
      return found;
    }
  return {};
}

std::vector<std::string> read_labels(const fs::path& path) {
  return split_list(read_text(path, kMaxLabelsBytes), '\n');
}

std::vector<Named> with_labels(const fs::path& folder, const std::vector<std::string>& files,
                               const fs::path& labels_file) {
  const std::vector<std::string> labels = read_labels(labels_file);
  if (labels.size() != files.size())
    fail(ErrorKind::Data,
         "{}: {} lines, but {} pictures in {}: a line with the class of each picture is expected, "
         "in the order of their names",
         labels_file.string(), labels.size(), files.size(), folder.string());
  std::vector<Named> found;
  found.reserve(files.size());
  for (std::size_t i = 0; i < files.size(); ++i)
    found.push_back({whole_file(folder / files[i]), labels[i]});
  return found;
}

std::vector<Named> find_validation(const fs::path& raw, const fs::path& labels_file) {
  for (const std::string_view name : kValidationFolders) {
    std::vector<std::string> flat = list_folder(raw / name).files;
    std::erase_if(flat, [](const std::string& file) { return !is_picture_name(file); });
    if (!flat.empty())
      return with_labels(raw / name, flat,
                         labels_file.empty() ? raw / "synset_labels.txt" : labels_file);
    auto found = find_by_class(raw / name);
    if (!found.empty()) return found;
  }
  return {};
}

[[noreturn]] void fail_none(const fs::path& raw, Split split) {
  if (split == Split::Train)
    fail(ErrorKind::Data,
         "no training pictures in '{0}': looked for class folders and class archives (.tar) in "
         "{0}/train and {0}/img_train, and for {0}/ILSVRC2012_img_train.tar",
         raw.string());
  fail(ErrorKind::Data,
       "no validation pictures in '{0}': looked for pictures, class folders and class archives "
       "(.tar) in {0}/validation, {0}/val and {0}/img_val",
       raw.string());
}

}  // namespace

RawPictures find_raw_pictures(const fs::path& raw, Split split, const fs::path& labels_file) {
  std::vector<Named> training = find_training(raw);
  std::vector<Named> validation;
  // Classes are numbered over both splits, so that a number means the same in each.
  if (split == Split::Validation) validation = find_validation(raw, labels_file);
  std::vector<Named>& wanted = split == Split::Train ? training : validation;
  if (wanted.empty()) fail_none(raw, split);
  std::set<std::string> names;
  for (const Named& named : training) names.insert(named.synset);
  if (split == Split::Validation)
    for (const Named& named : validation)
      if (names.insert(named.synset).second && !training.empty())
        fail(ErrorKind::Data, "{}: class {} is none of the training pictures' in {}",
             named.picture.file.string(), named.synset, raw.string());
  RawPictures result{.classes = {names.begin(), names.end()}, .pictures = {}};
  result.pictures.reserve(wanted.size());
  for (Named& named : wanted) {
    const auto place = std::ranges::lower_bound(result.classes, named.synset);
    named.picture.class_index = static_cast<std::int32_t>(place - result.classes.begin());
    result.pictures.push_back(std::move(named.picture));
  }
  return result;
}

void read_raw_picture(const RawPicture& picture, std::vector<std::byte>& bytes) {
  if (picture.bytes > kMaxRecordBytes)
    fail(ErrorKind::Data, "{}: {} has {} bytes, and {} are the most that is read",
         picture.file.string(), picture.name, picture.bytes, kMaxRecordBytes);
  const UniqueFd file = open_file(picture.file, O_RDONLY);
  bytes.resize(picture.bytes);
  read_exactly(file.get(), picture.offset, bytes, picture.file.string());
}

}  // namespace millrace::io
