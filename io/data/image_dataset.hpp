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
//   ImageFolder      one folder per class     class_folders.hpp
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
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/dataset.hpp"
#include "io/images/augmentation.hpp"
#include "io/images/presets.hpp"
#include "io/images/reader.hpp"

namespace millrace::io {

/// Receives the problem of each image that is left out: "n1/a.JPEG: neither a JPEG nor a PNG".
/// Called from one thread at a time. May be empty.
using ReportBad = std::function<void(const std::string&)>;

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
  [[nodiscard]] std::optional<run::Preparation> preparation() const override {
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
  void read_image(std::int64_t index, const std::optional<DrawKey>& draw, Worker& worker,
                  std::span<std::uint8_t> image) const;
  void augment(const DrawKey& draw, Worker& worker, std::span<std::uint8_t> image,
               PixelScaling& scaling) const;
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

// What is said about bad images, and how many may be bad.

/// `problem` without its location, so that a message does not name it twice: "cut" of "a.JPEG:
/// cut", "cannot open: no such file" of "cannot open a.JPEG: no such file". The location is all of
/// `place` ("a.JPEG"), or only the file of "shard, record 41 at offset 65525", which begins the
/// problem.
[[nodiscard]] std::string without_place(std::string_view problem, std::string_view place);

/// "place: problem" in one line. `problem` may already begin with the place.
[[nodiscard]] std::string problem_at(const std::string& place, const std::string& problem);

/// How many of `all` images may be bad: the share `max_fraction`, but at least one of several, so
/// that one bad file does not stop the use of a small set; none if the share is 0.
[[nodiscard]] std::int64_t most_bad(std::int64_t all, double max_fraction) noexcept;

/// "`max-bad-fraction` 0.001 allows at most 1"
[[nodiscard]] std::string describe_limit(std::int64_t all, double max_fraction);

/// Counts the bad images of a task over `images` images, and throws when there are too many. Not
/// thread-safe.
class BadImages {
 public:
  BadImages(std::int64_t images, double max_fraction, const ReportBad& report)
      : images_(images), max_fraction_(max_fraction), report_(report) {}

  /// Reports a bad image. Error(Data) with the count and the first one if too many are bad.
  void add(const std::string& problem);
  /// Error(Data) if all images are bad.
  void refuse_if_all() const;
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  [[noreturn]] void refuse() const;

  std::int64_t images_;
  double max_fraction_;
  const ReportBad& report_;
  std::int64_t count_ = 0;
  std::string first_;
};

/// How many things of a source are bad, and which share may be.
struct BadShare {
  std::int64_t bad = 0;
  std::int64_t all = 0;
  double max_fraction = 0.0;
};
/// Adds notices about the bad things that a source leaves out: `head`, "left out: ..." for the
/// first few, and the number of the rest. Errors: Data, with `count` and the first one, if there
/// are too many or all are bad.
void leave_out_bad(const BadShare& share, const std::string& count, const std::string& head,
                   std::vector<std::string>& notices,
                   const std::function<std::string(std::size_t)>& describe);

}  // namespace millrace::io
