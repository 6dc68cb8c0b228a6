// SPDX-License-Identifier: Apache-2.0
#include "train/line_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::training {
namespace {

[[noreturn]] void fail_writing(const std::filesystem::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  fail(ErrorKind::Io, "{}: cannot write: {}; {} another place with `run-dir`", path.string(),
       std::generic_category().message(error), full ? "free space or choose" : "choose");
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

}  // namespace

LineFile::LineFile(std::filesystem::path path, Open open, std::string head)
    : path_(std::move(path)), head_(std::move(head)) {
  // Opening a pipe would block until it has a reader.
  std::error_code none;
  if (std::filesystem::is_fifo(path_, none))
    fail(ErrorKind::Io, "{}: is a pipe, but a file must be written here: remove it",
         path_.string());
  folder_ = io::file_identity(folder_of(path_));
  file_.reset(std::fopen(path_.c_str(), open == Open::Fresh ? "we" : "ae"));
  begin();
}

/// Runs after every open.
void LineFile::begin() {
  if (!file_) fail_writing(path_, errno);
  identity_ = io::file_identity(path_);
  std::error_code none;
  const bool empty = std::filesystem::file_size(path_, none) == 0 || none;
  if (empty && !head_.empty()) put(head_);
}

void LineFile::reopen() {
  const std::lock_guard lock(*reopening_);
  if (std::freopen(path_.c_str(), "ae", file_.get()) == nullptr)
    (void)file_.release();  // already closed, and must not be closed again
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
  io::UniqueFd file;
  {
    const std::lock_guard lock(*reopening_);
    if (file_) file = io::UniqueFd(::fcntl(::fileno(file_.get()), F_DUPFD_CLOEXEC, 0));
  }
  // Pipes and terminals cannot be synced and do not need it.
  if (!file.valid() || (::fsync(file.get()) != 0 && errno != EINVAL)) fail_writing(path_, errno);
}

namespace {

/// The result of reading a file.
struct Findings {
  std::string kept;          ///< the lines that stay
  bool in_front = true;      ///< the kept lines are the first bytes of the file
  bool torn = false;         ///< the last line is incomplete
  std::int64_t damaged = 0;  ///< number of damaged lines
  std::string first;         ///< message about the first damaged or incomplete line
};

Findings read_lines(const std::filesystem::path& path, std::string_view head,
                    const std::function<Row(std::string_view, std::int64_t)>& judge) {
  constexpr std::size_t kShown = 60;
  constexpr std::size_t kLongestRow = 4096;
  io::LineReader lines(path);
  Findings found;
  while (const std::optional<std::string_view> line = lines.next()) {
    const Row row = judge(*line, lines.lines());
    if (row == Row::Keep && lines.lines() == 1 && *line != head && head.starts_with(*line)) {
      (found.kept += head) += '\n';
      found.in_front = false;
    } else if (row == Row::Keep) {
      found.in_front = found.in_front && found.kept.size() == lines.offset();
      (found.kept += *line) += '\n';
    }
    if (row != Row::Damaged) continue;
    if (lines.lines() == 1 && !head.empty()) (found.kept += head) += '\n';
    if (found.damaged++ == 0)
      found.first =
          fmt::format("line {} is damaged ('{}{}')", lines.lines(),
                      printable(line->substr(0, kShown)), line->size() > kShown ? "..." : "");
  }
  if (lines.rest().empty()) return found;
  found.torn = lines.rest().size() <= kLongestRow;
  if (!found.torn) ++found.damaged;
  if (found.first.empty())
    found.first = fmt::format("the row after line {} is incomplete", lines.lines());
  return found;
}

/// Gives the file a second name, because it may be of any size; copies it where files have only
/// one.
void keep_original(const std::filesystem::path& path, const std::filesystem::path& aside) {
  std::error_code error;
  std::filesystem::remove(aside, error);
  if (!error) std::filesystem::create_hard_link(path, aside, error);
  if (error)
    std::filesystem::copy_file(path, aside, std::filesystem::copy_options::overwrite_existing,
                               error);
  if (error) fail_writing(aside, error.value());
}

}  // namespace

std::string keep_lines(const std::filesystem::path& path, std::string_view head,
                       const std::function<Row(std::string_view, std::int64_t)>& judge) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const Findings found = read_lines(path, head, judge);
  // The usual case: complete rows of a process that was killed later, and perhaps half a row.
  if (found.damaged == 0 && found.in_front) {
    if (std::filesystem::file_size(path, error) != found.kept.size() && !error)
      std::filesystem::resize_file(path, found.kept.size(), error);
    if (error) fail_writing(path, error.value());
    return found.torn ? fmt::format("{}: {}: it was cut off", path.string(), found.first) : "";
  }
  const std::filesystem::path aside = path.string() + ".damaged";
  if (found.damaged > 0) keep_original(path, aside);
  io::write_file_atomically(path, found.kept);
  if (found.damaged == 0) return {};
  const std::string others =
      found.damaged > 1 ? fmt::format(", and {} more", found.damaged - 1) : "";
  return fmt::format("{}: {}{}: left out; the original file is {}", path.string(), found.first,
                     others, aside.string());
}

}  // namespace millrace::training
