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

}  // namespace

LineFile::LineFile(std::filesystem::path path, Open open)
    : path_(std::move(path)), file_(std::fopen(path_.c_str(), open == Open::Fresh ? "we" : "ae")) {
  if (!file_) fail_writing(path_, errno);
}

void LineFile::write(std::string_view line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                       std::fputc('\n', file_.get()) != EOF && std::fflush(file_.get()) == 0;
  if (!written) fail_writing(path_, errno);
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
