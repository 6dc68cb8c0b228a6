// SPDX-License-Identifier: Apache-2.0
#include "io/data/loose_images.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/data/cifar.hpp"
#include "io/data/files.hpp"
#include "io/data/image_dataset.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

std::int32_t side_of(const Shape& image) {
  if (image.h != image.w || image.c != 3)
    fail(ErrorKind::Config, "the network reads images of {}: only squares of 3 channels are read",
         image);
  return static_cast<std::int32_t>(image.h);
}

void add_images(const fs::path& folder, std::vector<fs::path>& files) {
  const FolderListing listing = list_folder(folder);
  for (const std::string& name : listing.files)
    if (has_image_name(name)) files.push_back(folder / name);
  // Links may lead out of the tree or into a cycle.
  for (const std::string& name : listing.folders)
    if (!fs::is_symlink(folder / name)) add_images(folder / name, files);
}

}  // namespace

LooseImages::LooseImages(std::int64_t count, run::Preparation preparation, const Shape& image,
                         std::int64_t classes)
    : preparation_(std::move(preparation)),
      preset_(preset_of(preparation_, side_of(image))),
      side_(side_of(image)),
      classes_(classes),
      scaling_(scaling_of(preparation_, side_)) {
  if (count == 0) fail(ErrorKind::Config, "no images: give at least one");
  if (preparation_.by_image && side_ != kSmallSide)
    fail(
        ErrorKind::Checkpoint,
        "the network reads images of {0} x {0} pixels, but only images of {1} x {1} are normalized "
        "by their own mean and deviation",
        side_, kSmallSide);
}

Sample LooseImages::read(std::int64_t index, const ReadKey&, std::span<std::uint8_t> image,
                         PixelScaling& scaling) const {
  Sample sample = Sample::Own;
  try {
    read_stored(index, image);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Data && error.kind() != ErrorKind::Io) throw;
    std::ranges::fill(image, std::uint8_t{0});
    sample = Sample::StandIn;
    const std::lock_guard lock(mutex_);
    problems_.insert_or_assign(index, problem_at(where(index), error.what()));
  }
  scaling = scaling_;
  if (preparation_.by_image) {
    // The sums over an image do not depend on the order of its values.
    const PixelBox real = scaling.real;
    scaling = standardisation_of(image.first<static_cast<std::size_t>(kSmallPixels)>());
    scaling.real = real;
  }
  return sample;
}

void LooseImages::read_stored(std::int64_t index, std::span<std::uint8_t> image) const {
  std::vector<std::byte> buffer;
  ImageReader reader;
  const ImageReader::Report report =
      reader.read(stored(index, buffer), preset_, std::nullopt, side_, image);
  if (report.state == ImageState::Damaged) fail(ErrorKind::Data, "{}", report.warning);
}

std::string LooseImages::problem(std::int64_t index) const {
  const std::lock_guard lock(mutex_);
  const auto found = problems_.find(index);
  return found == problems_.end() ? "" : found->second;
}

StoredImage NamedImages::stored(std::int64_t index, std::vector<std::byte>& buffer) const {
  buffer = read_file(path(index), kMaxRecordBytes);
  return {.bytes = buffer};
}

std::string ImagesInMemory::where(std::int64_t index) const {
  return fmt::format("image {}", index);
}

std::string problem_of(const fs::path& file) {
  try {
    if (look_at_file(file).format == ImageFormat::Other)
      (void)read_header(read_file(file, kMaxRecordBytes));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Data && error.kind() != ErrorKind::Io) throw;
    return problem_at(file.string(), error.what());
  }
  return "";
}

std::vector<fs::path> images_at(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {path};
  std::vector<fs::path> files;
  add_images(path, files);
  if (files.empty())
    fail(ErrorKind::Data, "{}: has no image: no file with the name of a JPEG or PNG in it or below",
         path.string());
  return files;
}

}  // namespace millrace::io
