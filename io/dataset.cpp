// SPDX-License-Identifier: Apache-2.0
#include "io/dataset.hpp"

#include <fmt/format.h>

#include <vector>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/instruction_level.hpp"

namespace millrace::io {

std::uint32_t Dataset::fingerprint() const {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < size(); ++i) labels.push_back(label(i));
  return crc32c(std::as_bytes(std::span(labels)));
}

std::int64_t Dataset::reading_bytes(int) const { return 0; }

namespace {

// Blocks of constant length are vectorized at every optimization level.
template <class T>
void round_to_nearest(std::span<const float> values, std::span<T> rounded) {
  constexpr std::size_t kBlock = 64;
  const std::size_t whole = rounded.size() - rounded.size() % kBlock;
  at_level([&] {
    for (std::size_t begin = 0; begin < whole; begin += kBlock)
      for (std::size_t i = begin; i < begin + kBlock; ++i) rounded[i] = store_as<T>(values[i]);
    for (std::size_t i = whole; i < rounded.size(); ++i) rounded[i] = store_as<T>(values[i]);
  });
}

}  // namespace

Sample Dataset::read_rounded(std::int64_t index, const ReadKey& key, std::span<float> scratch,
                             std::span<bfloat16> image) const {
  const Sample sample = read(index, key, scratch);
  round_to_nearest<bfloat16>(scratch, image);
  return sample;
}

Sample Dataset::read_rounded(std::int64_t index, const ReadKey& key, std::span<float> scratch,
                             std::span<float16> image) const {
  const Sample sample = read(index, key, scratch);
  round_to_nearest<float16>(scratch, image);
  return sample;
}

Sample Dataset::read_bytes(std::int64_t, const ReadKey&, std::span<std::uint8_t>,
                           PixelScaling&) const {
  fail(ErrorKind::Config,
       "{}: its pixels are not bytes, so they cannot be normalized on the device: normalize on the "
       "host",
       name());
}

void normalise_bytes(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                     const Shape& shape, std::span<float> image) {
  MILLRACE_ASSERT(shape.c <= kMaxByteChannels && bytes.size() == image.size() &&
                  std::ssize(bytes) == shape.elements());
  std::size_t i = 0;
  const PixelBox& real = scaling.real;
  for (std::int64_t y = 0; y < shape.h; ++y)
    for (std::int64_t x = 0; x < shape.w; ++x)
      for (std::int64_t c = 0; c < shape.c; ++c, ++i) {
        const bool inside = y >= real.top && y < real.bottom && x >= real.left && x < real.right;
        image[i] =
            inside ? (static_cast<float>(bytes[i]) - scaling.mean[c]) * scaling.scale[c] : 0.0f;
      }
}

std::string describe(const Dataset& dataset) {
  return fmt::format("{}, {} images, crc32c {:08x}", dataset.name(), dataset.size(),
                     dataset.fingerprint());
}

std::string describe_content(const Dataset& dataset) {
  const std::uint32_t content = dataset.sampled_content();
  return describe(dataset) + (content == 0 ? "" : fmt::format(", pictures {:08x}", content));
}

SampleOrder::SampleOrder(std::uint64_t seed, std::int64_t size, Order order)
    : seed_(seed), size_(size), order_(order) {
  if (size < 1)
    fail(ErrorKind::Data, "a data set of {} samples has no order: the set is empty", size);
}

SampleOrder SampleOrder::shuffled(std::uint64_t seed, std::int64_t size) {
  return {seed, size, Order::Shuffled};
}

SampleOrder SampleOrder::sequential(std::int64_t size) { return {0, size, Order::Sequential}; }

SampleOrder::Place SampleOrder::at(std::int64_t position) const {
  MILLRACE_ASSERT(position >= 0);
  const auto epoch = static_cast<std::uint64_t>(position / size_);
  const std::int64_t within = position % size_;
  if (order_ == Order::Sequential) return {epoch, within};
  const Permutation permutation(seed_, epoch, static_cast<std::uint64_t>(size_));
  return {epoch, static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(within)))};
}

}  // namespace millrace::io
