// SPDX-License-Identifier: Apache-2.0
//
// Data sets of images of any size. A set finds its files, knows the place of every image, and hands
// out its stored bytes; reading a sample decodes, crops and resamples them. Only an index is held
// in memory.
//
//   stored(index) -> JPEG, PNG or pixels --ImageReader--> S x S x 3 bytes
//
//   RecordSet        TFRecord files           record_set.hpp
//   ArchiveSet       WebDataset archives      archive_set.hpp
//   ImageFolder      one folder per class     image_folder.hpp
//   PackedImages     one file of pixels       packed_images.hpp
//
// A bad image is replaced by the next good image of its class, because other ranks take its label
// from the index. It is reported once; read() returns Sample::StandIn each time, and callers decide
// how many are too many.
//
// Bytes from files are untrusted. Sizes are checked against limits and the rest of the file before
// memory is allocated. Errors are Error(Data) and name file, record and offset.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/bad_images.hpp"
#include "io/data/dataset.hpp"
#include "io/images/augmentation.hpp"
#include "io/images/presets.hpp"
#include "io/images/reader.hpp"

namespace millrace::io {

/// Buffers of one reader, reused from image to image so that reading seldom allocates.
struct ReadBuffer {
  std::vector<std::byte> bytes;
  std::array<std::vector<float>, 4> sides;  ///< of boxes, while a record is parsed
  std::vector<float> floats;                ///< of one list, likewise
  std::vector<ObjectBox> boxes;
};

/// How images become samples.
struct ImageOptions {
  ImagePreset preset = image_preset("tf");  ///< includes the normalization
  std::int32_t side = 224;
  Augmentation augmentation = {};  ///< of training images
  /// Called once per bad image: "train-00003-of-01024, record 5 at offset 678: truncated ...".
  ReportBad report = {};
};

/// Labeled images in storage. All functions are thread-safe after prepare_for and keep_in_memory.
class ImageDataset : public Dataset {
 public:
  ImageDataset();
  ~ImageDataset() override;

  // What each kind of storage implements, beside the first functions of Dataset.

  /// Reads image `index` as it is stored; the result refers to `buffer` and is valid until its next
  /// use. Errors: Data if the bytes differ from the index or fail their checksum; Io.
  virtual StoredImage stored(std::int64_t index, ReadBuffer& buffer) const = 0;
  /// Bytes of image `index` in storage, with its record's overhead.
  [[nodiscard]] virtual std::uint64_t stored_bytes(std::int64_t index) const = 0;
  /// "train-00000-of-01024, record 12 at offset 345", for messages.
  [[nodiscard]] virtual std::string where(std::int64_t index) const = 0;

  /// The size of an image, if it is known without reading the image.
  [[nodiscard]] virtual std::optional<ImageSize> known_size(std::int64_t) const { return {}; }

  /// Messages to show to the user once: bad records left out, a cache that cannot be written.
  [[nodiscard]] std::span<const std::string> notices() const { return notices_; }

  [[nodiscard]] std::vector<std::string> class_names() const override { return titles_; }
  /// Chooses how read() prepares images.
  void prepare_for(ImageOptions options);
  /// Keeps up to `bytes` of stored images in memory after their first read, for file systems
  /// without a page cache. Nothing is evicted: every image is read once per epoch in a new order,
  /// so all are equally useful.
  void keep_in_memory(std::int64_t bytes);

  [[nodiscard]] Shape image_shape() const override;
  [[nodiscard]] std::optional<Preparation> preparation() const override {
    return preparation_of(options_.preset, options_.side);
  }
  [[nodiscard]] std::uint32_t sampled_content() const override;
  [[nodiscard]] std::int64_t reading_bytes(int threads) const override;
  [[nodiscard]] std::int64_t kept_bytes() const override { return most_kept_; }
  /// Errors: Data if this image is bad and its class has no good one; Io.
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override;
  [[nodiscard]] std::vector<std::string> replaced() const override;

 protected:
  std::vector<std::string> notices_;  ///< filled by constructors
  std::vector<std::string> titles_;   ///< names of classes for people; filled by constructors

 private:
  struct Worker;
  struct Kept;
  class Borrowed;
  StoredImage stored_or_kept(std::int64_t index, ReadBuffer& buffer) const;
  void keep(std::int64_t index, const StoredImage& image) const;
  void read_image(std::int64_t index, std::int64_t sample, const ReadKey& key, Worker& worker,
                  std::span<std::uint8_t> image) const;
  void augment(std::int64_t sample, const ReadKey& key, Worker& worker,
               std::span<std::uint8_t> image, PixelScaling& scaling) const;
  void note_bad(std::int64_t index, const std::string& problem) const;
  [[nodiscard]] std::int64_t next_of_class(std::int64_t index) const;
  [[nodiscard]] std::int64_t most_decoded_bytes() const;

  ImageOptions options_;
  PixelScaling scaling_;
  std::int64_t most_kept_ = 0;
  mutable std::mutex large_;  ///< held while an unusually large image is decoded
  mutable std::mutex mutex_;  ///< guards what follows
  mutable std::vector<std::unique_ptr<Worker>> idle_;
  mutable std::map<std::int64_t, std::string> bad_;  ///< problem by image
  mutable std::vector<std::int32_t> by_class_;  ///< indices by class; built for the first bad image
  mutable std::vector<std::unique_ptr<const Kept>> kept_;  ///< by image, if any are kept
  mutable std::int64_t kept_bytes_ = 0;
};

}  // namespace millrace::io
