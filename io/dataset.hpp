// SPDX-License-Identifier: Apache-2.0
//
// io: everything that is read from and written to files.
//
// A Dataset is indexable and immutable: `size`, `label`, `read`. What a sample looks like is a pure
// function of (seed, epoch, index), so any thread of any rank may read any sample at any time and
// the pixels are the same. The order of training is one too: `SampleOrder` gives the sample at
// every position of the run, an endless concatenation of keyed permutations, one an epoch.
//
//   position p  ->  epoch p / size, sample permutation(seed, epoch)(p % size)
//
// A Loader walks such positions ahead of the device in threads of its own and hands out batches in
// reusable buffers. Checkpoints (checkpoint.hpp) are directories of HDF5 files under one manifest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "core/image_records.hpp"
#include "core/random.hpp"
#include "core/shape.hpp"

namespace millrace::io {

/// Selects the pixels of one reading: training readings are augmented with numbers keyed by
/// (seed, epoch, index), validation readings (augment = false) always give the same pixels.
struct ReadKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  bool augment = false;
};

/// Whose pixels a reading gave: the sample's own, or those of another one of its class, which
/// stands in for one that is bad.
enum class Sample : std::uint8_t { Own, StandIn };

/// A set of labelled images. All functions may be called from many threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual Shape image_shape() const = 0;
  [[nodiscard]] virtual std::int64_t classes() const = 0;
  /// Class of sample `index`, 0 .. classes-1.
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// A checksum by which sets of the same name and size are told apart; here over the labels.
  [[nodiscard]] virtual std::uint32_t fingerprint() const;
  /// A checksum over stored pictures that lie evenly over the set, where `fingerprint` knows their
  /// labels and lengths alone; else 0. It reads some 64 of them.
  [[nodiscard]] virtual std::uint32_t sampled_content() const { return 0; }
  /// Host memory that so many reading threads take beside the images that they write: an estimate
  /// from above for photos. One file at a time that holds more pixels than those of its size do may
  /// take up to 288 MiB beside it.
  [[nodiscard]] virtual std::int64_t reading_bytes(int threads) const;
  /// Host memory that is kept of the set once all of it was read, and is not taken yet.
  [[nodiscard]] virtual std::int64_t kept_bytes() const { return 0; }
  /// Writes sample `index`, normalised, as height x width x channels floats
  /// (image_shape().elements()).
  virtual Sample read(std::int64_t index, const ReadKey& key, std::span<float> image) const = 0;
  /// The same rounded to nearest. `scratch` holds an image and is the caller's.
  virtual Sample read_rounded(std::int64_t index, const ReadKey& key, std::span<float> scratch,
                              std::span<bfloat16> image) const;
  virtual Sample read_rounded(std::int64_t index, const ReadKey& key, std::span<float> scratch,
                              std::span<float16> image) const;
  /// The same image before it is normalised: height x width x channels bytes, and the scaling that
  /// makes of them what read() writes, to the last bit (normalise_bytes). Errors: Config for a set
  /// whose pixels are no bytes.
  virtual Sample read_bytes(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
                            PixelScaling& scaling) const;
  /// Samples that this process found bad so far and put others in the place of: a line each, that
  /// says where it lies and what is wrong.
  [[nodiscard]] virtual std::vector<std::string> replaced() const { return {}; }
};

/// image = bytes, normalised in float32: what a device does with them.
void normalise_bytes(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                     const Shape& shape, std::span<float> image);

/// "cifar-10, 50000 images, crc32c 1a2b3c4d"
[[nodiscard]] std::string describe(const Dataset& dataset);
/// The same with the checksum of what was read of it, by which copies are told apart whose pictures
/// have the same lengths.
[[nodiscard]] std::string describe_content(const Dataset& dataset);

/// Sample at every position of a run; see the top of this file. An empty data set has no order:
/// Error(Data).
class SampleOrder {
 public:
  /// Order of training: a fresh permutation each epoch.
  static SampleOrder shuffled(std::uint64_t seed, std::int64_t size);
  /// Order of validation: 0, 1, 2, ...
  static SampleOrder sequential(std::int64_t size);

  struct Place {
    std::uint64_t epoch = 0;
    std::int64_t index = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  [[nodiscard]] Place at(std::int64_t position) const;
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

 private:
  enum class Order : std::uint8_t { Sequential, Shuffled };
  SampleOrder(std::uint64_t seed, std::int64_t size, Order order);

  std::uint64_t seed_;
  std::int64_t size_;
  Order order_;
};

}  // namespace millrace::io
