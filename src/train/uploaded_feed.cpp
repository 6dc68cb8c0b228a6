// SPDX-License-Identifier: Apache-2.0
#include "train/uploaded_feed.hpp"

#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"

namespace millrace::training {

std::int64_t UploadedFeed::bytes(std::int64_t images) { return 2 * device::aligned(images); }

UploadedFeed::UploadedFeed(std::unique_ptr<io::BatchSource> source, std::byte* memory,
                           std::int64_t images)
    : source_(std::move(source)) {
  for (Place& place : places_)
    place.images = std::exchange(memory, memory + device::aligned(images));
}

const io::Batch* UploadedFeed::next() {
  const device::ExecutionSpace space;
  Place& before = places_[at_];
  before.uploaded.wait();  // before the source reuses the memory that is copied
  before.read.mark(space);
  const io::Batch* const read = source_->next();
  if (read == nullptr) return nullptr;
  MILLRACE_ASSERT(!read->on_device);
  at_ = 1 - at_;
  Place& place = places_[at_];
  uploads_.wait_for(place.read);
  uploads_.to_device(place.images, read->images.data(), std::ssize(read->images));
  uploads_.mark(place.uploaded);
  device::wait_for(space, place.uploaded);
  batch_ = *read;
  batch_.images = {place.images, read->images.size()};
  batch_.on_device = true;
  return &batch_;
}

}  // namespace millrace::training
