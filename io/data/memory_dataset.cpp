// SPDX-License-Identifier: Apache-2.0
#include "io/data/memory_dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace millrace::io {

MemoryDataset::MemoryDataset(std::string name, Shape image_shape, std::int64_t classes)
    : name_(std::move(name)), shape_(image_shape), classes_(classes) {
  if (std::min({shape_.h, shape_.w, shape_.c, classes}) < 1 || shape_.c > kMaxByteChannels)
    fail(ErrorKind::Config,
         "{}: images of {} in {} classes are not possible: every extent is at least 1, and there "
         "are at most {} channels",
         name_, shape_, classes, kMaxByteChannels);
}

void MemoryDataset::add(std::span<const std::uint8_t> image, std::int32_t label) {
  if (std::ssize(image) != shape_.elements())
    fail(ErrorKind::Data,
         "{}: image {} has {} bytes, but {} has {}: give height x width x channels", name_, size(),
         image.size(), shape_, shape_.elements());
  if (label < 0 || label >= classes_)
    fail(ErrorKind::Data, "{}: image {} has label {}, but the labels are 0 to {}", name_, size(),
         label, classes_ - 1);
  bytes_.insert(bytes_.end(), image.begin(), image.end());
  labels_.push_back(label);
}

Sample MemoryDataset::read(std::int64_t index, const ReadKey&, std::span<std::uint8_t> image,
                           PixelScaling& scaling) const {
  constexpr float kHalf = 127.5f;
  const std::span<const std::uint8_t> bytes(bytes_);
  const auto size = static_cast<std::size_t>(shape_.elements());
  std::ranges::copy(bytes.subspan(static_cast<std::size_t>(index) * size, size), image.begin());
  scaling = {};
  std::ranges::fill(scaling.mean, kHalf);
  std::ranges::fill(scaling.scale, 1.0f / kHalf);
  scaling.real = {.bottom = static_cast<std::int32_t>(shape_.h),
                  .right = static_cast<std::int32_t>(shape_.w)};
  return Sample::Own;
}

}  // namespace millrace::io
