// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "device/queues.hpp"
#include "io/data/loader.hpp"

namespace millrace::train {

/// The batches of a loader with their images on the device. While a batch is used, the next one is
/// read and copied beside the kernels. For devices with memory of their own.
class UploadedFeed final : public io::BatchSource {
 public:
  /// Device memory for images of so many bytes a batch.
  [[nodiscard]] static std::int64_t bytes(std::int64_t images);

  /// `memory` is bytes() of device memory.
  UploadedFeed(std::unique_ptr<io::BatchSource> source, std::byte* memory, std::int64_t images);

  /// All work that reads the images of the batch before must be queued; work that is queued from
  /// now on finds the images of this one. Errors: those of the source, for the batch that it failed
  /// to read.
  [[nodiscard]] const io::Batch* next() override;
  /// Of the batches that next() has returned; the source has read one more.
  [[nodiscard]] std::int64_t stand_ins() const override { return stand_ins_; }

 private:
  /// A batch whose images are on the device, or on their way there. The rest is copied here: the
  /// source reuses its memory.
  struct Place {
    std::byte* images = nullptr;
    device::Event uploaded;
    std::optional<io::Batch> batch;
    std::exception_ptr error;  ///< what reading it ended with
    std::vector<std::int32_t> labels;
    std::vector<PixelScaling> scaling;
    std::vector<ImageMixing> mixing;
  };
  void read_into(Place& place);

  std::unique_ptr<io::BatchSource> source_;
  std::array<Place, 2> places_;
  std::size_t at_ = 0;  ///< of the batch that next() returns next
  bool began_ = false;
  std::int64_t stand_ins_ = 0;
  device::Event read_;  ///< behind what reads the images of the batch before
  device::CopyQueue uploads_;
};

}  // namespace millrace::train
