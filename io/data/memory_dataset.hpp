// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/dataset.hpp"

namespace millrace::io {

/// How training images in memory are changed, each epoch anew. CIFAR's recipe has both: {true, 4}.
struct MemoryAugmentation {
  bool mirrors = false;      ///< half of the images are mirrored
  std::int32_t padding = 0;  ///< zeros around an image, before a window of its own size is cropped
};

/// Images in memory, for programs that make their own: all of bytes, which become numbers from -1
/// to 1, or all of floats, which the network sees as they are.
class MemoryDataset final : public Dataset {
 public:
  /// Errors: Config for an extent below 1 or above 65,535, or a negative padding.
  MemoryDataset(std::string name, Shape image_shape, std::int64_t classes,
                const MemoryAugmentation& augmentation = {});
  /// The same with a class for each name.
  MemoryDataset(std::string name, Shape image_shape, std::vector<std::string> class_names,
                const MemoryAugmentation& augmentation = {});
  /// Adds an image, given as height x width x channels bytes or floats, and the weight of its
  /// label, as in Dataset::weight(). Not while others read. Errors: Data if it has another size or
  /// another type than those before, too many channels for bytes, or if the label is not a class.
  void add(std::span<const std::uint8_t> image, std::int32_t label, float weight = 1.0f);
  void add(std::span<const float> image, std::int32_t label, float weight = 1.0f);

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(labels_); }
  [[nodiscard]] Shape image_shape() const override { return shape_; }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return labels_.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] float weight(std::int64_t index) const override {
    return weights_.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] std::vector<std::string> class_names() const override { return class_names_; }
  /// Over labels, weights and all pixels.
  [[nodiscard]] std::uint32_t fingerprint() const override;
  [[nodiscard]] std::optional<run::Preparation> preparation() const override {
    if (has_floats()) return std::nullopt;
    return run::Preparation{.mean = {127.5, 127.5, 127.5}, .deviation = {127.5, 127.5, 127.5}};
  }
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override;
  [[nodiscard]] bool has_floats() const override { return !floats_.empty(); }
  Sample read_floats(std::int64_t index, const ReadKey& key, std::span<float> image) const override;

 private:
  template <class T>
  void add(std::vector<T>& pixels, std::span<const T> image, std::int32_t label, float weight);
  /// Returns the part of the window that shows the image.
  template <class T>
  PixelBox copy(const std::vector<T>& pixels, std::int64_t index, const ReadKey& key,
                std::span<T> image) const;

  std::string name_;
  Shape shape_;
  std::int64_t classes_;
  MemoryAugmentation augmentation_;
  std::vector<std::string> class_names_;
  std::vector<std::uint8_t> bytes_;
  std::vector<float> floats_;
  std::vector<std::int32_t> labels_;
  std::vector<float> weights_;
};

}  // namespace millrace::io
