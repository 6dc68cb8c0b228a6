// SPDX-License-Identifier: Apache-2.0
//
// Image files that someone names, without labels: what a prediction reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "io/data/dataset.hpp"
#include "io/images/presets.hpp"

namespace millrace::io {

/// JPEG and PNG files in the order given, prepared as a validation prepares its images; without a
/// preset, an image of another size is scaled to the network's shorter side and its center is
/// cropped. Every label is 0. A file that cannot be read gives a black image, which counts as a
/// stand-in, and its problem is kept.
class NamedImages final : public Dataset {
 public:
  /// Errors: Config if there is no file, or for an image that is not a square of three channels;
  /// Checkpoint if the preparation is not one of a network of this size.
  NamedImages(std::vector<std::filesystem::path> files, run::Preparation preparation,
              const Shape& image, std::int64_t classes);

  [[nodiscard]] std::string name() const override { return "image files"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(files_.size());
  }
  [[nodiscard]] Shape image_shape() const override { return {side_, side_, 3}; }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::int32_t label(std::int64_t) const override { return 0; }
  [[nodiscard]] std::optional<run::Preparation> preparation() const override {
    return preparation_;
  }
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override;

  [[nodiscard]] const std::filesystem::path& path(std::int64_t index) const {
    return files_.at(static_cast<std::size_t>(index));
  }
  /// "a.png: neither a JPEG nor a PNG: it is empty", once the file was read; "" if it is fine.
  [[nodiscard]] std::string problem(std::int64_t index) const;

 private:
  void read_file_of(std::int64_t index, std::span<std::uint8_t> image) const;

  std::vector<std::filesystem::path> files_;
  run::Preparation preparation_;
  ImagePreset preset_;
  std::int32_t side_;
  std::int64_t classes_;
  PixelScaling scaling_;  ///< of all images, unless it differs by image
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::string> problems_;  ///< by image
};

/// Why a file is no image, by its first bytes, in the words of NamedImages::problem(); "" if it may
/// be one.
[[nodiscard]] std::string problem_of(const std::filesystem::path& file);

/// The files that `path` stands for: those with the names of images in a folder and the folders
/// below it, sorted; otherwise the path itself. Hidden ones and links to
/// folders are left out. Errors: Data for a folder without images; Io.
[[nodiscard]] std::vector<std::filesystem::path> images_at(const std::filesystem::path& path);

}  // namespace millrace::io
