// SPDX-License-Identifier: Apache-2.0
#include "io/data/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "core/instruction_level.hpp"
#include "io/images/wide_rows.hpp"

namespace millrace::io {

std::uint32_t Dataset::fingerprint() const {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < size(); ++i) labels.push_back(label(i));
  return crc32c(std::as_bytes(std::span(labels)));
}

Sample Dataset::read(std::int64_t, const ReadKey&, std::span<std::uint8_t>, PixelScaling&) const {
  fail(ErrorKind::Data, "{}: its images are floats, not bytes: use read_floats()", name());
}

Sample Dataset::read_floats(std::int64_t, const ReadKey&, std::span<float>) const {
  fail(ErrorKind::Data, "{}: its images are bytes, not floats: use read()", name());
}

PixelScaling plain_scaling(const Shape& shape) {
  constexpr float kMean = 127.5f;
  constexpr float kScale = 1.0f / kMean;
  return {.mean = {kMean, kMean, kMean, kMean},
          .scale = {kScale, kScale, kScale, kScale},
          .real = {.bottom = static_cast<std::int32_t>(shape.h),
                   .right = static_cast<std::int32_t>(shape.w)},
          .erased = {}};
}

namespace {

/// Values that are converted at once: a multiple of the vector length of any processor and of any
/// number of channels.
constexpr std::size_t kBlock = 384;
static_assert(kBlock % 3 == 0 && kBlock % kMaxByteChannels == 0 &&
              kBlock % (2 * kWidePattern) == 0);

/// Mean and scale of every value of a block.
struct Pattern {
  Pattern(const PixelScaling& scaling, std::size_t channels, std::size_t values) {
    for (std::size_t i = 0; i < std::min(values, kBlock); i += channels)
      for (std::size_t c = 0; c < channels; ++c) {
        mean[i + c] = scaling.mean[c];
        scale[i + c] = scaling.scale[c];
      }
  }
  std::array<float, kBlock> mean;
  std::array<float, kBlock> scale;
};

void scale_bytes(const std::uint8_t* bytes, const Pattern& pattern, std::size_t n, float* values) {
  for (std::size_t i = 0; i < n; ++i)
    values[i] = (static_cast<float>(bytes[i]) - pattern.mean[i]) * pattern.scale[i];
}

/// `n` values that begin at a pixel. Rounding is a separate pass over each block: in one loop,
/// values of two sizes would shorten the vectors.
template <class T>
void normalise_run(const std::uint8_t* bytes, const Pattern& pattern, std::size_t n, T* values) {
  std::array<float, kBlock> wide;
  std::size_t done = 0;
  if constexpr (std::is_same_v<T, bfloat16>)
    done = normalise_wide(bytes, pattern.mean.data(), pattern.scale.data(), n, values);
  for (; done < n; done += kBlock) {
    const std::size_t count = std::min(kBlock, n - done);
    if constexpr (std::is_same_v<T, float>) {
      scale_bytes(bytes + done, pattern, count, values + done);
    } else {
      scale_bytes(bytes + done, pattern, count, wide.data());
      for (std::size_t i = 0; i < count; ++i) values[done + i] = store_as<T>(wide[i]);
    }
  }
}

template <class T>
void erase(const PixelBox& box, std::size_t channels, std::size_t row, std::span<T> image) {
  const auto left = static_cast<std::size_t>(box.left) * channels;
  const auto count = static_cast<std::size_t>(box.right) * channels - left;
  for (auto y = static_cast<std::size_t>(box.top); y < static_cast<std::size_t>(box.bottom); ++y)
    std::fill_n(image.data() + y * row + left, count, T{});
}

}  // namespace

template <class T>
void normalise_bytes(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                     const Shape& shape, std::span<T> image) {
  MILLRACE_ASSERT(shape.c >= 1 && shape.c <= kMaxByteChannels && bytes.size() == image.size() &&
                  std::ssize(bytes) == shape.elements());
  const PixelBox& real = scaling.real;
  const auto channels = static_cast<std::size_t>(shape.c);
  const auto row = static_cast<std::size_t>(shape.w) * channels;
  const auto begin = static_cast<std::size_t>(real.left) * channels;
  const auto end = static_cast<std::size_t>(real.right) * channels;
  const Pattern pattern(scaling, channels, image.size());
  at_level([&] {
    const auto top = static_cast<std::size_t>(real.top);
    const auto bottom = static_cast<std::size_t>(real.bottom);
    if (begin == 0 && end == row) {
      std::fill_n(image.data(), top * row, T{});
      normalise_run(bytes.data() + top * row, pattern, (bottom - top) * row,
                    image.data() + top * row);
      std::fill(image.data() + bottom * row, image.data() + image.size(), T{});
    } else {
      std::fill(image.begin(), image.end(), T{});
      for (std::size_t at = top * row; at < bottom * row; at += row)
        normalise_run(bytes.data() + at + begin, pattern, end - begin, image.data() + at + begin);
    }
  });
  erase(scaling.erased, channels, row, image);
}

template void normalise_bytes(std::span<const std::uint8_t>, const PixelScaling&, const Shape&,
                              std::span<float>);
template void normalise_bytes(std::span<const std::uint8_t>, const PixelScaling&, const Shape&,
                              std::span<bfloat16>);
template void normalise_bytes(std::span<const std::uint8_t>, const PixelScaling&, const Shape&,
                              std::span<float16>);

std::string describe(const Dataset& dataset) {
  return fmt::format("{}, {} images, crc32c {:08x}", dataset.name(), dataset.size(),
                     dataset.fingerprint());
}

std::string describe_content(const Dataset& dataset) {
  const std::uint32_t content = dataset.sampled_content();
  return describe(dataset) + (content == 0 ? "" : fmt::format(", pictures {:08x}", content));
}

namespace {

/// Whether the images of each class follow those of the class before, as in class folders.
bool is_in_class_order(const Dataset& set) {
  for (std::int64_t i = 1; i < set.size(); ++i)
    if (set.label(i) < set.label(i - 1)) return false;
  return true;
}

class PartOfSet final : public Dataset {
 public:
  PartOfSet(std::shared_ptr<const Dataset> set, std::int64_t size)
      : set_(std::move(set)), size_(size), spread_(is_in_class_order(*set_)) {
    MILLRACE_ASSERT(size > 0 && size <= set_->size());
  }
  [[nodiscard]] std::string name() const override { return set_->name(); }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] Shape image_shape() const override { return set_->image_shape(); }
  [[nodiscard]] std::int64_t classes() const override { return set_->classes(); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return set_->label(place(index));
  }
  [[nodiscard]] float weight(std::int64_t index) const override {
    return set_->weight(place(index));
  }
  [[nodiscard]] bool has_floats() const override { return set_->has_floats(); }
  Sample read_floats(std::int64_t index, const ReadKey& key,
                     std::span<float> image) const override {
    return set_->read_floats(place(index), key, image);
  }
  [[nodiscard]] std::vector<std::string> class_names() const override {
    return set_->class_names();
  }
  [[nodiscard]] std::optional<run::Preparation> preparation() const override {
    return set_->preparation();
  }
  [[nodiscard]] std::uint32_t sampled_content() const override { return set_->sampled_content(); }
  [[nodiscard]] std::int64_t reading_bytes(int threads) const override {
    return set_->reading_bytes(threads);
  }
  [[nodiscard]] std::int64_t kept_bytes() const override { return set_->kept_bytes(); }
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override {
    return set_->read(place(index), key, image, scaling);
  }
  [[nodiscard]] std::vector<std::string> replaced() const override { return set_->replaced(); }

 private:
  /// Of image `index` in the set.
  [[nodiscard]] std::int64_t place(std::int64_t index) const {
    return spread_ ? index * set_->size() / size_ : index;
  }

  std::shared_ptr<const Dataset> set_;
  std::int64_t size_;
  bool spread_;
};

}  // namespace

std::shared_ptr<const Dataset> part_of_set(std::shared_ptr<const Dataset> set, std::int64_t size) {
  return std::make_shared<PartOfSet>(std::move(set), size);
}

}  // namespace millrace::io
