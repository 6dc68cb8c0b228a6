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
#include "io/dataset.hpp"
#include "io/mixing.hpp"

namespace millrace::io {

/// One micro-batch as the device wants it: images NHWC in `LoaderOptions::type`, not mixed yet.
/// When fewer than the batch size are left (validation) the images beyond `count` are zero and
/// their labels -1.
struct Batch {
  std::int64_t first_position = 0;
  std::int64_t count = 0;
  std::span<const std::byte> images;
  bool on_device = false;  ///< whether the images lie in the device's memory
  std::span<const std::int32_t> labels;
  std::span<const PixelScaling> scaling;  ///< what makes floats of images that are bytes
  std::span<const ImageMixing> mixing;    ///< what images and labels are to be mixed from
  std::int64_t stand_ins = 0;             ///< images of other samples, in the place of bad ones
};

/// What of the samples is wanted: a stage that computes the loss needs no pixels, one that reads
/// the images no labels.
enum class Content { Both, Images, Labels };

/// A batch of images that lies on the device already, in the type of the loader's.
struct ResidentImages {
  const std::byte* images = nullptr;
  PixelScaling scaling;  ///< of all of them, where they are bytes
};

/// Gives memory for images, at a multiple of 64 bytes.
using HostMemory = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

struct LoaderOptions {
  std::int64_t batch_size = 1;
  DType type = DType::F32;  ///< F32, BF16, F16, or U8: before they are normalised
  int threads = 1;          ///< 0: read in the caller, on demand
  int batches_ahead = 4;
  std::uint64_t seed = 0;
  bool augment = false;
  std::int64_t first_position = 0;
  std::int64_t end_position = -1;  ///< one past the last sample; -1: endless
  /// Of every `replicas` batches this loader takes number `replica`.
  std::int32_t replicas = 1;
  std::int32_t replica = 0;
  /// So many batches are handed out even if those at the end have no samples; -1: as many as have.
  std::int64_t batches = -1;
  Content content = Content::Both;  ///< what is left out is an empty span
  MixingConfig mixing = {};         ///< of endless loaders only; both stages hear of it
  /// Every batch has these images, and none is read. Endless loaders only.
  std::optional<ResidentImages> resident = {};
  HostMemory memory = {};  ///< where images wait; empty: memory of the system
};

/// Reads batches ahead of their use. Batches come in order of position whatever the number of
/// threads, and the pixels do not depend on it. An exception in a reading thread is thrown by
/// next().
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, SampleOrder order, const LoaderOptions& options);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// The next batch, or nullptr behind end_position. It stays valid until the following call; the
  /// call neither allocates nor copies pixels.
  [[nodiscard]] const Batch* next();
  /// Stand-ins in all batches that were handed out.
  [[nodiscard]] std::int64_t stand_ins() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace::io
