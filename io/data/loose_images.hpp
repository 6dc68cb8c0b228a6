// SPDX-License-Identifier: Apache-2.0
//
// Images that belong to no data set and have no labels: what a prediction reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "io/data/dataset.hpp"
#include "io/images/presets.hpp"
#include "io/images/reader.hpp"

namespace millrace::io {

/// Images prepared as a validation prepares its images; without a preset, an image of another size
/// is scaled to the network's shorter side and its center is cropped. Every label is 0. What cannot
/// be read gives a black image, which counts as a stand-in, and its problem is kept.
class LooseImages : public Dataset {
 public:
  [[nodiscard]] Shape image_shape() const override { return {side_, side_, 3}; }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::int32_t label(std::int64_t) const override { return 0; }
  [[nodiscard]] std::optional<run::Preparation> preparation() const override {
    return preparation_;
  }
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override;
  /// "a.png: neither a JPEG nor a PNG: it is empty", once the image was read; "" if it is fine.
  [[nodiscard]] std::string problem(std::int64_t index) const;

 protected:
  /// Errors: Config if there is no image, or for a network that does not read squares of three
  /// channels; Checkpoint if the preparation is not one of a network of this size.
  LooseImages(std::int64_t count, run::Preparation preparation, const Shape& image,
              std::int64_t classes);
  /// Image `index` as it is stored, in `buffer` if it must be read. Errors: Data, Io.
  virtual StoredImage stored(std::int64_t index, std::vector<std::byte>& buffer) const = 0;
  /// What people call it.
  [[nodiscard]] virtual std::string where(std::int64_t index) const = 0;

 private:
  void read_stored(std::int64_t index, std::span<std::uint8_t> image) const;

  run::Preparation preparation_;
  ImagePreset preset_;
  std::int32_t side_;
  std::int64_t classes_;
  PixelScaling scaling_;  ///< of all images, unless it differs by image
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::string> problems_;  ///< by image
};

/// JPEG and PNG files in the order given.
class NamedImages final : public LooseImages {
 public:
  NamedImages(std::vector<std::filesystem::path> files, run::Preparation preparation,
              const Shape& image, std::int64_t classes)
      : LooseImages(std::ssize(files), std::move(preparation), image, classes),
        files_(std::move(files)) {}
  [[nodiscard]] std::string name() const override { return "image files"; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(files_); }
  [[nodiscard]] const std::filesystem::path& path(std::int64_t index) const {
    return files_.at(static_cast<std::size_t>(index));
  }

 protected:
  StoredImage stored(std::int64_t index, std::vector<std::byte>& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return path(index).string();
  }

 private:
  std::vector<std::filesystem::path> files_;
};

/// Images in memory, which must outlive this; messages number them from 0 on.
class ImagesInMemory final : public LooseImages {
 public:
  ImagesInMemory(std::vector<StoredImage> images, run::Preparation preparation, const Shape& image,
                 std::int64_t classes)
      : LooseImages(std::ssize(images), std::move(preparation), image, classes),
        images_(std::move(images)) {}
  [[nodiscard]] std::string name() const override { return "images in memory"; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(images_); }

 protected:
  StoredImage stored(std::int64_t index, std::vector<std::byte>&) const override {
    return images_.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] std::string where(std::int64_t index) const override;

 private:
  std::vector<StoredImage> images_;
};

/// Why a file is no image, by its first bytes, in the words of LooseImages::problem(); "" if it may
/// be one.
[[nodiscard]] std::string problem_of(const std::filesystem::path& file);

/// The files that `path` stands for: those with the names of images in a folder and the folders
/// below it, sorted; otherwise the path itself. Hidden ones and links to
/// folders are left out. Errors: Data for a folder without images; Io.
[[nodiscard]] std::vector<std::filesystem::path> images_at(const std::filesystem::path& path);

}  // namespace millrace::io
