// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "io/data/dataset.hpp"
#include "io/mixing.hpp"

namespace millrace::io {

/// The sample at every position of a run; see dataset.hpp. Error(Data) if the data set is
/// empty.
class SampleOrder {
 public:
  /// Training order: a new permutation each epoch.
  static SampleOrder shuffled(std::uint64_t seed, std::int64_t size);
  /// Validation order: 0, 1, 2, ...
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

/// One micro-batch for the device: NHWC images in `LoaderOptions::type`, not mixed yet. If fewer
/// samples than the batch size are left (validation), the images beyond `count` are zero and their
/// labels -1.
struct Batch {
  std::int64_t first_position = 0;
  std::int64_t count = 0;
  std::span<const std::byte> images;
  bool on_device = false;  ///< whether the images are in device memory
  std::span<const std::int32_t> labels;
  std::span<const std::int64_t> indices;  ///< of the labels' images in the data set
  std::span<const float> weights;         ///< of the labels, if they are weighted
  std::span<const PixelScaling> scaling;  ///< converts images of bytes to floats
  std::span<const ImageMixing> mixing;    ///< sources of the images and labels to be mixed
  std::int64_t stand_ins = 0;             ///< images that replace bad ones
};

/// Which parts of the samples to read: the last stage needs only labels, the first only images.
enum class Content { Both, Images, Labels };

/// A batch of images on the device, in the loader's data type.
struct ResidentImages {
  const std::byte* images = nullptr;
  PixelScaling scaling;  ///< of all images, if they are bytes
};

/// Allocates memory for images, aligned to 64 bytes.
using HostMemory = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

struct LoaderOptions {
  std::int64_t batch_size = 1;
  DType type = DType::F32;  ///< F32, BF16, F16, or U8 (not normalized)
  int threads = 1;          ///< 0: read in the calling thread, on demand
  int batches_ahead = 4;
  std::uint64_t seed = 0;
  bool augment = false;
  std::int64_t first_position = 0;
  std::int64_t end_position = -1;  ///< one past the last sample; -1: endless
  /// This loader takes number `replica` of every `replicas` batches.
  std::int32_t replicas = 1;
  std::int32_t replica = 0;
  /// Number of batches to return, the last possibly without samples; -1: all that have samples.
  std::int64_t batches = -1;
  /// Images of an update, over whose labels the weights have the mean 1; 0: without weights.
  std::int64_t weighted_over = 0;
  Content content = Content::Both;  ///< parts that are not read are empty spans
  MixingConfig mixing = {};         ///< endless loaders only; given to both stages
  /// Every batch has these images, and no image is read. Endless loaders only.
  std::optional<ResidentImages> resident = {};
  HostMemory memory = {};  ///< allocator of image buffers; empty: operator new
};

/// Where the batches of a stage come from.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// The next batch, or nullptr after the last one. It is valid until the next call.
  [[nodiscard]] virtual const Batch* next() = 0;
  /// Stand-ins in all batches returned so far.
  [[nodiscard]] virtual std::int64_t stand_ins() const = 0;

 protected:
  BatchSource() = default;
  BatchSource(BatchSource&&) = default;
  BatchSource& operator=(BatchSource&&) = default;
};

/// Reads batches ahead of their use. Order and pixels do not depend on the number of threads.
/// next() rethrows an exception of a reading thread.
class Loader final : public BatchSource {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, SampleOrder order, const LoaderOptions& options);
  ~Loader() override;
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// The last batch is that before end_position. The call neither allocates nor copies pixels.
  [[nodiscard]] const Batch* next() override;
  [[nodiscard]] std::int64_t stand_ins() const override;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace::io
