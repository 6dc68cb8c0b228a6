// SPDX-License-Identifier: Apache-2.0
#include "io/data/memory_dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/data/cifar.hpp"

namespace millrace::io {

MemoryDataset::MemoryDataset(std::string name, Shape image_shape, std::int64_t classes,
                             const MemoryAugmentation& augmentation)
    : name_(std::move(name)), shape_(image_shape), classes_(classes), augmentation_(augmentation) {
  constexpr std::int64_t kMost = 65'535;  // pixels of a JPEG file's side
  if (std::min({shape_.h, shape_.w, shape_.c, classes}) < 1 ||
      std::max({shape_.h, shape_.w, shape_.c}) > kMost || augmentation_.padding < 0)
    fail(ErrorKind::Config,
         "{}: images of {} in {} classes with padding {} are not possible: every extent is 1 to "
         "{}, and the padding at least 0",
         name_, shape_, classes, augmentation_.padding, kMost);
}

MemoryDataset::MemoryDataset(std::string name, Shape image_shape,
                             std::vector<std::string> class_names,
                             const MemoryAugmentation& augmentation)
    : MemoryDataset(std::move(name), image_shape, std::ssize(class_names), augmentation) {
  class_names_ = std::move(class_names);
}

template <class T>
void MemoryDataset::add(std::vector<T>& pixels, std::span<const T> image, std::int32_t label,
                        float weight) {
  constexpr bool kBytes = std::is_same_v<T, std::uint8_t>;
  constexpr const char* kType = kBytes ? "bytes" : "floats";
  if (std::ssize(image) != shape_.elements())
    fail(ErrorKind::Data, "{}: image {} has {} {}, but {} has {}: give height x width x channels",
         name_, size(), image.size(), kType, shape_, shape_.elements());
  if (kBytes && shape_.c > kMaxByteChannels)
    fail(ErrorKind::Data, "{}: bytes have at most {} channels, but {} has {}: give floats", name_,
         kMaxByteChannels, shape_, shape_.c);
  if (pixels.empty() != labels_.empty())
    fail(ErrorKind::Data, "{}: image {} is of {}, but those before are not: use one type", name_,
         size(), kType);
  if (label < 0 || label >= classes_)
    fail(ErrorKind::Data, "{}: image {} has label {}, but the labels are 0 to {}", name_, size(),
         label, classes_ - 1);
  pixels.insert(pixels.end(), image.begin(), image.end());
  labels_.push_back(label);
  weights_.push_back(weight);
}

void MemoryDataset::add(std::span<const std::uint8_t> image, std::int32_t label, float weight) {
  add(bytes_, image, label, weight);
}

void MemoryDataset::add(std::span<const float> image, std::int32_t label, float weight) {
  add(floats_, image, label, weight);
}

std::uint32_t MemoryDataset::fingerprint() const {
  std::uint32_t crc = 0;
  for (const auto part : {std::as_bytes(std::span(labels_)), std::as_bytes(std::span(weights_)),
                          std::as_bytes(std::span(bytes_)), std::as_bytes(std::span(floats_))})
    crc = crc32c(part, crc);
  return crc;
}

template <class T>
PixelBox MemoryDataset::copy(const std::vector<T>& pixels, std::int64_t index, const ReadKey& key,
                             std::span<T> image) const {
  const Crop crop = draw_crop(key, index, augmentation_.padding);
  const bool mirrored = augmentation_.mirrors && crop.mirror == Mirror::Yes;
  const std::int64_t down = crop.top - augmentation_.padding;
  const std::int64_t right = crop.left - augmentation_.padding;
  const auto within = [](std::int64_t at, std::int64_t extent) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(at, 0, extent));
  };
  const PixelBox real{within(-down, shape_.h), within(-right, shape_.w),
                      within(shape_.h - down, shape_.h), within(shape_.w - right, shape_.w)};
  const T* const from = pixels.data() + index * shape_.elements();
  std::ranges::fill(image, T{});
  for (std::int64_t y = real.top; y < real.bottom; ++y)
    for (std::int64_t x = real.left; x < real.right; ++x) {
      const std::int64_t column = mirrored ? shape_.w - 1 - (x + right) : x + right;
      std::copy_n(from + ((y + down) * shape_.w + column) * shape_.c, shape_.c,
                  image.begin() + (y * shape_.w + x) * shape_.c);
    }
  return real;
}

Sample MemoryDataset::read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
                           PixelScaling& scaling) const {
  scaling = plain_scaling(shape_);
  scaling.real = copy(bytes_, index, key, image);
  return Sample::Own;
}

Sample MemoryDataset::read_floats(std::int64_t index, const ReadKey& key,
                                  std::span<float> image) const {
  (void)copy(floats_, index, key, image);
  return Sample::Own;
}

}  // namespace millrace::io
