// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/shape.hpp"
#include "device/arena.hpp"
#include "io/data/loader.hpp"
#include "pipeline/executor.hpp"
#include "train/config.hpp"

namespace millrace::train {

/// The loaders of a process: one for each of its stages that reads images or labels.
struct Feeds {
  std::vector<std::unique_ptr<io::Loader>> loaders;  ///< by unit; null if not needed
  std::vector<io::Loader*> pointers;
  [[nodiscard]] std::int64_t stand_ins() const;  ///< in all batches handed out so far
};

/// Makes the loaders of a process: which of its stages read what, ahead by how much, and with how
/// many threads.
class Feeder {
 public:
  /// `units` are those of both executors. `endless` takes batches without end, for training or for
  /// inference; `evaluation` is the one for most of a validation. Either may be null. All must
  /// outlive this.
  Feeder(const TrainConfig& config, const Shape& image, std::span<const pipeline::LocalStage> units,
         const pipeline::Executor* endless, const pipeline::Executor* evaluation);

  /// Loaders from a position in the run. Images that stay on the device are copied there, and the
  /// loaders then read only labels.
  [[nodiscard]] Feeds training(const std::shared_ptr<const io::Dataset>& dataset,
                               std::int64_t first_position);
  /// Loaders for inference: the data set in order, as a validation reads it, again and again.
  [[nodiscard]] Feeds inference(const std::shared_ptr<const io::Dataset>& dataset);
  /// Loaders for the whole data set, in order.
  [[nodiscard]] Feeds validation(const std::shared_ptr<const io::Dataset>& dataset) const;

  /// Device memory for images that stay there: one micro-batch, or 0.
  [[nodiscard]] std::int64_t resident_bytes() const;
  /// Host memory for the loaders' images.
  [[nodiscard]] std::int64_t loader_bytes(std::int64_t validation_images) const;
  /// Number of threads that read images in this process.
  [[nodiscard]] int threads() const;

 private:
  [[nodiscard]] int image_readers(const pipeline::Executor& executor) const;
  [[nodiscard]] int threads_of_loader(const pipeline::Executor& executor) const;
  [[nodiscard]] io::ResidentImages make_resident(const std::shared_ptr<const io::Dataset>& dataset,
                                                 const io::SampleOrder& order,
                                                 io::LoaderOptions options);
  [[nodiscard]] Feeds endless(const std::shared_ptr<const io::Dataset>& dataset,
                              const io::SampleOrder& order, io::LoaderOptions options);
  [[nodiscard]] Feeds feeds(const pipeline::Executor& executor,
                            const std::shared_ptr<const io::Dataset>& dataset,
                            const io::SampleOrder& order, const io::LoaderOptions& options) const;

  const TrainConfig* config_;
  Shape image_;
  std::span<const pipeline::LocalStage> units_;
  const pipeline::Executor* endless_;
  const pipeline::Executor* evaluation_;
  std::unique_ptr<device::Arena> resident_images_;
};

/// Micro-batches per replica in a validation of `images`.
[[nodiscard]] std::int64_t validation_batches(const TrainConfig& config, std::int64_t images);

}  // namespace millrace::train
