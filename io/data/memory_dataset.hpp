// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "io/data/dataset.hpp"

namespace millrace::io {

/// Images in memory, for programs that make their own. They are not augmented; bytes become numbers
/// from -1 to 1.
class MemoryDataset final : public Dataset {
 public:
  /// Errors: Config for an extent below 1, or too many channels.
  MemoryDataset(std::string name, Shape image_shape, std::int64_t classes);
  /// Adds an image, given as height x width x channels bytes. Not while others read. Errors: Data
  /// if it has another size, or the label is not a class.
  void add(std::span<const std::uint8_t> image, std::int32_t label);

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(labels_); }
  [[nodiscard]] Shape image_shape() const override { return shape_; }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return labels_.at(static_cast<std::size_t>(index));
  }
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override;

 private:
  std::string name_;
  Shape shape_;
  std::int64_t classes_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::int32_t> labels_;
};

}  // namespace millrace::io
