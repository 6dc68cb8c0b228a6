// SPDX-License-Identifier: Apache-2.0
#include "train/line_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.hpp"

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

void cut_lines(const std::filesystem::path& path,
               const std::function<bool(std::string_view)>& keep) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    if (!std::filesystem::exists(path)) return;
    fail(ErrorKind::Io, "{}: cannot read: {}", path.string(),
         std::generic_category().message(errno));
  }
  std::uintmax_t kept = 0;
  // getline meets the end of the file only in a line that lacks its own end.
  for (std::string line; std::getline(in, line) && !in.eof() && keep(line);)
    kept += line.size() + 1;
  in.close();
  std::error_code error;
  if (std::filesystem::file_size(path, error) != kept && !error)
    std::filesystem::resize_file(path, kept, error);
  if (error) fail_writing(path, error.value());
}

}  // namespace millrace::train
