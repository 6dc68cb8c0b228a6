// SPDX-License-Identifier: Apache-2.0
#include "train/line_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::train {
namespace {

[[noreturn]] void fail_writing(const std::filesystem::path& path, int error) {
  fail(ErrorKind::Io, "{}: cannot write: {}; free space or choose another place with --run-dir",
       path.string(), std::generic_category().message(error));
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

}  // namespace

LineFile::LineFile(std::filesystem::path path, Open open, std::string head)
    : path_(std::move(path)), head_(std::move(head)) {
  // Opening a pipe would wait for whoever reads it.
  std::error_code none;
  if (std::filesystem::is_fifo(path_, none))
    fail(ErrorKind::Io, "{}: is a pipe, where a file is to be written: remove it", path_.string());
  folder_ = io::file_identity(folder_of(path_));
  file_.reset(std::fopen(path_.c_str(), open == Open::Fresh ? "we" : "ae"));
  begin();
}

/// Behind opening.
void LineFile::begin() {
  if (!file_) fail_writing(path_, errno);
  identity_ = io::file_identity(path_);
  std::error_code none;
  const bool empty = std::filesystem::file_size(path_, none) == 0 || none;
  if (empty && !head_.empty()) put(head_);
}

/// The stream stays the same for a thread that syncs it just now.
void LineFile::reopen() {
  if (std::freopen(path_.c_str(), "ae", file_.get()) == nullptr)
    (void)file_.release();  // closed, and not to be closed again
  begin();
  ++replaced_;
}

void LineFile::put(std::string_view line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                       std::fputc('\n', file_.get()) != EOF && std::fflush(file_.get()) == 0;
  if (!written) fail_writing(path_, errno);
}

void LineFile::write(std::string_view line) {
  // In another folder under the same name it would be another run's.
  if (io::file_identity(path_) != identity_ && io::file_identity(folder_of(path_)) == folder_)
    reopen();
  put(line);
}

void LineFile::sync() {
  // Pipes and terminals cannot be synced, and need not be.
  if (::fsync(::fileno(file_.get())) != 0 && errno != EINVAL) fail_writing(path_, errno);
}

std::string cut_lines(const std::filesystem::path& path,
                      const std::function<Row(std::string_view, std::int64_t)>& judge) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  io::LineReader lines(path);
  std::string notice;
  const auto damaged = [&](std::string_view what, std::string_view text) {
    constexpr std::size_t kShown = 60;
    notice = fmt::format("{}: line {} {} ('{}{}'): the file was cut off before it", path.string(),
                         lines.lines(), what, printable(text.substr(0, kShown)),
                         text.size() > kShown ? "..." : "");
  };
  Row row = Row::Keep;
  while (row == Row::Keep) {
    const std::optional<std::string_view> line = lines.next();
    if (!line) break;
    row = judge(*line, lines.lines());
    if (row == Row::Damaged) damaged("is damaged", *line);
  }
  if (row == Row::Keep && !lines.rest().empty()) {
    notice = fmt::format("{}: what follows line {} is no whole row: it was cut off", path.string(),
                         lines.lines());
  }
  const std::uint64_t kept = lines.offset();
  if (std::filesystem::file_size(path, error) != kept && !error)
    std::filesystem::resize_file(path, kept, error);
  if (error) fail_writing(path, error.value());
  return notice;
}

}  // namespace millrace::train
