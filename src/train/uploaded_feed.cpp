// SPDX-License-Identifier: Apache-2.0
#include "train/uploaded_feed.hpp"

#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"

namespace millrace::train {
namespace {

/// Copies what a span shows, and makes it show the copy.
template <class T>
void keep(std::vector<T>& own, std::span<const T>& values) {
  own.assign(values.begin(), values.end());
  values = own;
}

}  // namespace

std::int64_t UploadedFeed::bytes(std::int64_t images) { return 2 * device::aligned(images); }

UploadedFeed::UploadedFeed(std::unique_ptr<io::BatchSource> source, std::byte* memory,
                           std::int64_t images)
    : source_(std::move(source)) {
  for (Place& place : places_)
    place.images = std::exchange(memory, memory + device::aligned(images));
}

const io::Batch* UploadedFeed::next() {
  if (!std::exchange(began_, true)) read_into(places_[at_]);
  Place& ready = places_[at_];
  if (ready.error) std::rethrow_exception(ready.error);
  if (!ready.batch) return nullptr;
  const device::ExecutionSpace space;
  device::wait_for(space, ready.uploaded);
  ready.uploaded.wait();  // before the source reuses the memory that is copied
  at_ = 1 - at_;
  read_.mark(space);
  uploads_.wait_for(read_);
  read_into(places_[at_]);
  stand_ins_ += ready.batch->stand_ins;
  return &*ready.batch;
}

void UploadedFeed::read_into(Place& place) {
  const io::Batch* read = nullptr;
  place.batch.reset();
  try {
    read = source_->next();
  } catch (...) {
    place.error = std::current_exception();  // the batch may never be asked for
  }
  if (read == nullptr) return;
  io::Batch& batch = place.batch.emplace(*read);
  MILLRACE_ASSERT(!batch.on_device);
  keep(place.labels, batch.labels);
  keep(place.scaling, batch.scaling);
  keep(place.mixing, batch.mixing);
  uploads_.to_device(place.images, batch.images.data(), std::ssize(batch.images));
  uploads_.mark(place.uploaded);
  batch.images = {place.images, batch.images.size()};
  batch.on_device = true;
}

}  // namespace millrace::train
