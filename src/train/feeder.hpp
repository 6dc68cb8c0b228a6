// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/shape.hpp"
#include "device/arena.hpp"
#include "device/queues.hpp"
#include "io/data/loader.hpp"
#include "pipeline/executor.hpp"
#include "run/run.hpp"

namespace millrace::training {

/// The batches of a process: a source for each of its stages that reads images or labels.
struct Feeds {
  std::vector<std::unique_ptr<io::BatchSource>> sources;  ///< by unit; null if not needed
  std::vector<io::BatchSource*> pointers;
  [[nodiscard]] std::int64_t stand_ins() const;  ///< in all batches handed out so far
};

/// The batches of a loader with their images on the device. They are copied there beside the
/// kernels of the batch before, as the host is ahead of the device. For devices with memory of
/// their own.
class UploadedFeed final : public io::BatchSource {
 public:
  /// Device memory for images of so many bytes a batch.
  [[nodiscard]] static std::int64_t bytes(std::int64_t images);

  /// `memory` is bytes() of device memory.
  UploadedFeed(std::unique_ptr<io::BatchSource> source, std::byte* memory, std::int64_t images);

  /// All work that reads the images of the batch before must be queued; work that is queued from
  /// now on finds the images of this one. Waits until the batch before is copied. Errors: those of
  /// the source.
  [[nodiscard]] const io::Batch* next() override;
  [[nodiscard]] std::int64_t stand_ins() const override { return source_->stand_ins(); }

 private:
  struct Place {
    std::byte* images = nullptr;
    device::Event uploaded;
    device::Event read;  ///< behind the work that reads the images
  };

  std::unique_ptr<io::BatchSource> source_;
  std::array<Place, 2> places_;  ///< used in turns
  std::size_t at_ = 0;           ///< of the batch that next() returned last
  io::Batch batch_;
  device::SideQueue uploads_;
};

/// Makes the loaders of a process: which of its stages read what, ahead by how much, and with how
/// many threads.
class Feeder {
 public:
  /// `units` are those of both executors. `endless` takes batches without end, for training or for
  /// inference; `evaluation` is the one for most of a validation. Either may be null. All must
  /// outlive this.
  Feeder(const run::Run& config, const Shape& image, std::span<const pipeline::LocalStage> units,
         const pipeline::Executor* endless, const pipeline::Executor* evaluation);

  /// Batches from a position in the run. Images that stay on the device are copied there, and only
  /// labels are read then.
  [[nodiscard]] Feeds training(const std::shared_ptr<const io::Dataset>& dataset,
                               std::int64_t first_position);
  /// Batches for inference: the data set in order, as a validation reads it, again and again.
  [[nodiscard]] Feeds inference(const std::shared_ptr<const io::Dataset>& dataset);
  /// The whole data set, in order.
  [[nodiscard]] Feeds validation(const std::shared_ptr<const io::Dataset>& dataset);

  /// Device memory for images: one micro-batch that stays there, or batches on their way to it.
  [[nodiscard]] std::int64_t device_bytes() const;
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
                            const io::SampleOrder& order, const io::LoaderOptions& options);
  [[nodiscard]] std::int64_t image_bytes(std::int64_t batch) const;
  [[nodiscard]] std::int64_t resident_bytes() const;
  [[nodiscard]] std::int64_t upload_bytes(const pipeline::Executor* executor,
                                          std::int64_t batch) const;

  const run::Run* config_;
  Shape image_;
  std::span<const pipeline::LocalStage> units_;
  const pipeline::Executor* endless_;
  const pipeline::Executor* evaluation_;
  std::unique_ptr<device::Arena> resident_images_;
  /// Images on their way to the device, of each executor.
  std::map<const pipeline::Executor*, device::Arena> uploads_;
};

/// Micro-batches per replica in a validation of `images`.
[[nodiscard]] std::int64_t validation_batches(const run::Run& config, std::int64_t images);

}  // namespace millrace::training
