// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/queues.hpp"
#include "io/data/loader.hpp"

namespace millrace::training {

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

}  // namespace millrace::training
