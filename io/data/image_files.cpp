// SPDX-License-Identifier: Apache-2.0
#include "io/data/image_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/counted.hpp"
#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/data/bad_images.hpp"
#include "io/data/little_endian.hpp"

namespace millrace::io {

namespace fs = std::filesystem;

ImageFiles::ImageFiles(fs::path source) : source_(std::move(source)) {}

void ImageFiles::complete(NumberedClasses numbered, std::vector<std::string> titles,
                          double max_bad_fraction) {
  numbers_ = std::move(numbered.numbers);
  known_ = std::move(numbered.known);
  titles_ = std::move(titles);
  judge_bad(max_bad_fraction);
  fingerprint_ = fingerprint_of_index();
}

std::uint32_t ImageFiles::fingerprint_of_index() const {
  std::uint32_t crc = 0;
  for (std::int64_t i = 0; i < size(); ++i) {
    std::array<std::byte, 12> bytes{};
    store_little(stored_bytes(i), bytes.data());
    store_little(static_cast<std::uint32_t>(label(i)), bytes.data() + 8);
    crc = crc32c(bytes, crc);
  }
  return crc;
}

void ImageFiles::judge_bad(double max_bad_fraction) {
  if (index_.bad.empty()) return;
  const auto describe = [this](std::size_t i) {
    return fmt::format("{}: {}", path_of(index_.bad[i]).string(), problem_of(index_.bad[i]));
  };
  const std::int64_t all = std::ssize(index_.bad) + std::ssize(index_.images);
  const std::string count =
      fmt::format("{}: {} of {} {} bad (`millrace data check` lists them)", source_.string(),
                  index_.bad.size(), counted(all, "file"), is_or_are(std::ssize(index_.bad)));
  if (too_many_bad(std::ssize(index_.bad), all, max_bad_fraction))
    fail(ErrorKind::Data, "{}, the first: {}; {}", count, describe(0),
         describe_limit(all, max_bad_fraction));
  add_left_out(notices_, count + ", and left out", index_.bad.size(), describe);
}

const ImageFile& ImageFiles::image(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < size());
  return index_.images[static_cast<std::size_t>(index)];
}

std::int32_t ImageFiles::label(std::int64_t index) const {
  return numbers_[static_cast<std::size_t>(image(index).label)];
}

std::uint64_t ImageFiles::stored_bytes(std::int64_t index) const {
  return image(index).stamp.bytes;
}

std::string ImageFiles::where(std::int64_t index) const { return path_of(image(index)).string(); }

StoredImage ImageFiles::stored(std::int64_t index, ReadBuffer& buffer) const {
  const fs::path path = path_of(image(index));
  if (!stamp_of(path) && (errno == ENOENT || errno == ENOTDIR))
    fail(ErrorKind::Data, "{}: was removed after this process started", path.string());
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::uint64_t bytes = regular_size(file.get(), path);
  if (bytes != stored_bytes(index))
    fail(ErrorKind::Data,
         "{}: {} bytes, but {} when it was indexed: it changed after this process started; the "
         "next process indexes it again",
         path.string(), bytes, stored_bytes(index));
  buffer.bytes.resize(bytes);
  read_exactly(file.get(), 0, buffer.bytes, path);
  return {.bytes = buffer.bytes};
}

}  // namespace millrace::io
