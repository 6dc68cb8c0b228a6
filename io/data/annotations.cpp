// SPDX-License-Identifier: Apache-2.0
#include "io/data/annotations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/class_folders.hpp"
#include "io/data/files.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr auto kTrainFiles =
    std::to_array<std::string_view>({"train.csv", "train.tsv", "train.txt"});
constexpr auto kValidationFiles = std::to_array<std::string_view>(
    {"val.csv", "val.tsv", "val.txt", "validation.csv", "validation.tsv", "validation.txt"});
/// As shipped with tiny-imagenet. They come before class folders: "val/images" is no class.
constexpr auto kValidationLists = std::to_array<std::string_view>(
    {"val/val_annotations.txt", "validation/val_annotations.txt", "img_val/val_annotations.txt"});
constexpr auto kPathHeaders = std::to_array<std::string_view>(
    {"path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path",
     "image_name", "img", "name", "id"});
constexpr auto kLabelHeaders = std::to_array<std::string_view>(
    {"label", "labels", "class", "class_name", "class_id", "category", "target", "wnid"});

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \r") + 1 - begin);
}

/// A cell in quotes, in which two quotes stand for one. Moves `text` behind it.
std::string take_quoted(std::string_view& text) {
  std::string cell;
  text.remove_prefix(1);
  while (!text.empty()) {
    const char letter = text.front();
    text.remove_prefix(1);
    if (letter == '"') {
      if (!text.starts_with('"')) break;
      text.remove_prefix(1);
    }
    cell += letter;
  }
  return cell;
}

std::vector<std::string> cells_of(std::string_view line, char separator) {
  if (separator == ' ') {
    line = trimmed(line);
    const std::size_t blank = line.rfind(' ');
    if (blank == std::string_view::npos) return {std::string(line)};
    return {std::string(trimmed(line.substr(0, blank))), std::string(line.substr(blank + 1))};
  }
  std::vector<std::string> cells;
  for (std::string_view rest = line;;) {
    std::string quoted;
    if (separator == ',' && rest.starts_with('"')) quoted = take_quoted(rest);
    const std::size_t end = std::min(rest.find(separator), rest.size());
    cells.push_back(quoted + std::string(trimmed(rest.substr(0, end))));
    if (end == rest.size()) return cells;
    rest.remove_prefix(end + 1);
  }
}

struct Columns {
  std::size_t path = 0;
  std::size_t label = 1;
};

/// The columns that a header names; empty for a line about an image.
std::optional<Columns> header_of(const std::vector<std::string>& cells) {
  const auto column = [&](std::span<const std::string_view> names) {
    return std::ranges::find_if(cells,
                                [&](const std::string& cell) {
                                  return std::ranges::find(names, to_lower(cell)) != names.end();
                                }) -
           cells.begin();
  };
  const auto path = column(kPathHeaders);
  const auto label = column(kLabelHeaders);
  if (path == std::ssize(cells) || label == std::ssize(cells)) return {};
  return Columns{.path = static_cast<std::size_t>(path), .label = static_cast<std::size_t>(label)};
}

char separator_of(std::string_view line) {
  if (line.find('\t') != std::string_view::npos) return '\t';
  return line.find(',') != std::string_view::npos ? ',' : ' ';
}

std::span<const std::string_view> files_of(Split split) {
  if (split == Split::Train) return kTrainFiles;
  return kValidationFiles;
}

}  // namespace

std::vector<Annotation> parse_annotations(std::string_view text, std::string_view label) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<Annotation> annotations;
  std::optional<char> separator;
  Columns columns;
  for (std::uint64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.size() > kMostAnnotationLine || line.find('\0') != std::string_view::npos)
      fail(ErrorKind::Data, "{}: line {} {}: is it a text file with a path and a class per line?",
           label, number,
           line.size() > kMostAnnotationLine ? fmt::format("has {} bytes", line.size())
                                             : "holds a zero byte");
    if (trimmed(line).empty()) continue;
    const bool is_first = !separator;
    if (is_first) separator = separator_of(line);
    std::vector<std::string> cells = cells_of(line, *separator);
    if (is_first) {
      const std::optional<Columns> header = header_of(cells);
      columns = header.value_or(columns);
      if (header) continue;
    }
    if (cells.size() <= std::max(columns.path, columns.label) || cells[columns.path].empty() ||
        cells[columns.label].empty())
      fail(ErrorKind::Data, "{}: line {} is '{}': expected the path of an image and its class, {}",
           label, number, printable(trimmed(line).substr(0, 80)),
           *separator == '\t'  ? "separated by a tab"
           : *separator == ',' ? "separated by a comma"
                               : "separated by a comma, a tab or a blank");
    annotations.push_back({.path = std::move(cells[columns.path]),
                           .label = std::move(cells[columns.label]),
                           .line = number});
  }
  if (annotations.empty())
    fail(ErrorKind::Data, "{}: lists no images: expected a path and a class per line", label);
  return annotations;
}

fs::path find_annotations(const fs::path& directory, Split split, const fs::path& given) {
  if (!given.empty()) return given;
  std::error_code ignored;
  if (split == Split::Validation)
    for (const std::string_view name : kValidationLists)
      if (fs::is_regular_file(directory / name, ignored)) return directory / name;
  if (has_class_folders_of(directory, split)) return {};
  for (const std::string_view name : files_of(split))
    if (fs::is_regular_file(directory / name, ignored)) return directory / name;
  return {};
}

std::string describe_annotation_places(const fs::path& directory, Split split) {
  std::vector<std::string> places;
  for (const std::string_view name : files_of(split)) places.push_back((directory / name).string());
  if (split == Split::Validation) places.push_back((directory / kValidationLists[0]).string());
  return join(places, ", ");
}

}  // namespace millrace::io
