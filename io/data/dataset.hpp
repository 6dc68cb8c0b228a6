// SPDX-License-Identifier: Apache-2.0
//
// io/data: labeled images, from files to micro-batches.
//
// A Dataset is indexable and immutable: `size`, `label`, `read`. The pixels of a sample are a pure
// function of (seed, epoch, index), so any thread of any rank may read any sample at any time. The
// training order is a pure function, too (loader.hpp): the sample at every position
// of the run, an endless sequence of keyed permutations, one per epoch.
//
//   position p  ->  epoch p / size, sample permutation(seed, epoch)(p % size)
//
// Pixels are bytes with a scaling, or floats. Bytes are normalized once, on the device or in a
// Loader (loader.hpp), which reads ahead of the device in its own threads and returns batches in
// reusable buffers.
//
//   SyntheticDataset   one image, repeated                       synthetic.hpp
//   CifarDataset       small images in memory                    cifar.hpp
//   ImageDataset       images of any size, read when needed      image_dataset.hpp
//   MemoryDataset      images or floats that a program makes     memory_dataset.hpp
//
// dataset_kinds.hpp is the table of the sets that a training can name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/image_records.hpp"
#include "core/shape.hpp"
#include "run/image_options.hpp"

namespace millrace::io {

enum class Split : std::uint8_t { Train, Validation };

/// "training" or "validation"
[[nodiscard]] constexpr const char* split_name(Split split) {
  return split == Split::Train ? "training" : "validation";
}

/// Selects the augmentation of a read. Training reads are augmented with random numbers keyed by
/// (seed, epoch, index); validation reads (augment = false) always give the same pixels.
struct ReadKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  bool augment = false;
};

/// Which pixels a read returned: the sample's own, or those of another sample of its class that
/// replaces a bad one.
enum class Sample : std::uint8_t { Own, StandIn };

/// A set of labeled images: of bytes, at most kMaxByteChannels channels, or of floats. A set of
/// one's own needs name() to label(), and read() or has_floats() and read_floats(). All functions
/// are thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual Shape image_shape() const = 0;
  [[nodiscard]] virtual std::int64_t classes() const = 0;
  /// Class of sample `index`, 0 .. classes-1.
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// How many times a training counts the label: the loss is the mean over the weights of the
  /// images of an update. Not negative, or a training refuses the set; 0: the image has no
  /// influence. A validation counts every image once.
  [[nodiscard]] virtual float weight(std::int64_t) const { return 1.0f; }
  /// Names of the classes, as many as there are; none if the set does not know them. Any bytes.
  [[nodiscard]] virtual std::vector<std::string> class_names() const { return {}; }
  /// How it prepares the images of a validation; nothing for images that are drawn. A set of bytes
  /// needs it for a Classifier to read files.
  [[nodiscard]] virtual std::optional<run::Preparation> preparation() const { return {}; }
  /// A checksum that distinguishes sets of equal name and size; here over the labels.
  [[nodiscard]] virtual std::uint32_t fingerprint() const;
  /// A checksum over about 64 evenly spaced stored images, if `fingerprint` covers only labels and
  /// lengths; otherwise 0.
  [[nodiscard]] virtual std::uint32_t sampled_content() const { return 0; }
  /// Host memory of this many reading threads, without the images that they write: an upper
  /// estimate for photos. One unusually large image at a time may need up to 288 MiB more.
  [[nodiscard]] virtual std::int64_t reading_bytes(int) const { return 0; }
  /// Host memory that the set will still allocate and keep by the time all of it has been read.
  [[nodiscard]] virtual std::int64_t kept_bytes() const { return 0; }
  /// Writes sample `index` as height x width x channels bytes (image_shape().elements()), and the
  /// scaling with which normalise_bytes() computes what the network sees; plain_scaling() is one.
  virtual Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
                      PixelScaling& scaling) const;
  /// Whether the images are floats, which the network sees as they are: rounded to its type.
  [[nodiscard]] virtual bool has_floats() const { return false; }
  /// Writes sample `index` as height x width x channels floats, if has_floats().
  virtual Sample read_floats(std::int64_t index, const ReadKey& key, std::span<float> image) const;
  /// Bad samples that this process has replaced so far: one line each with location and problem.
  [[nodiscard]] virtual std::vector<std::string> replaced() const { return {}; }
};

/// Bytes become numbers from -1 to 1, all over images of this shape.
[[nodiscard]] PixelScaling plain_scaling(const Shape& shape);

/// image = (bytes - mean) x scale per channel where the image is real and not erased, else 0: in
/// float32 as on a device, then rounded to nearest for 16-bit types. T is float, bfloat16 or
/// float16.
template <class T>
void normalise_bytes(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                     const Shape& shape, std::span<T> image);

/// "cifar-10, 50000 images, crc32c 1a2b3c4d"
[[nodiscard]] std::string describe(const Dataset& dataset);
/// The same with the checksum of sampled_content(), which distinguishes copies whose images have
/// equal lengths.
[[nodiscard]] std::string describe_content(const Dataset& dataset);

/// `size` images of a set, which has at least as many: the first ones, or, if the set is in the
/// order of its classes, evenly spaced ones, so that they are of all classes. The same for each
/// number.
[[nodiscard]] std::shared_ptr<const Dataset> part_of_set(std::shared_ptr<const Dataset> set,
                                                         std::int64_t size);

}  // namespace millrace::io
