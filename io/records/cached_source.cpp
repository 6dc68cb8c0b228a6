// SPDX-License-Identifier: Apache-2.0
#include "io/records/cached_source.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace millrace::io {

bool CacheBudget::take(std::int64_t bytes) noexcept {
  std::int64_t left = left_.load();
  do {
    if (left < bytes) return false;
  } while (!left_.compare_exchange_weak(left, left - bytes));
  return true;
}

std::int64_t CacheBudget::promise(std::int64_t bytes) noexcept {
  std::int64_t left = unpromised_.load();
  while (!unpromised_.compare_exchange_weak(left, left - std::min(bytes, left))) {
  }
  return std::min(bytes, left);
}

struct CachedSource::Picture {
  std::vector<std::byte> bytes;
  std::vector<ObjectBox> boxes;

  /// Memory of an image besides its bytes, including the allocator's overhead.
  static constexpr std::int64_t kBeside = 3 * 16 + 2 * 24;
  static std::int64_t cost(const EncodedImage& image) {
    return kBeside + static_cast<std::int64_t>(image.bytes.size_bytes() + image.boxes.size_bytes());
  }
  /// Without boxes, which are unknown before reading.
  static std::int64_t cost_of_all(const EncodedSource& source) {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < source.size(); ++i)
      sum += static_cast<std::int64_t>(source.stored_bytes(i)) + kBeside;
    return sum;
  }
  [[nodiscard]] EncodedImage view() const { return {.bytes = bytes, .boxes = boxes}; }
};

CachedSource::CachedSource(std::shared_ptr<const EncodedSource> source,
                           std::shared_ptr<CacheBudget> budget)
    : source_(std::move(source)),
      budget_(std::move(budget)),
      promised_(budget_->promise(Picture::cost_of_all(*source_))),
      pictures_(static_cast<std::size_t>(source_->size())) {}

CachedSource::~CachedSource() {
  for (const std::atomic<const Picture*>& place : pictures_) {
    const Picture* const picture = place.load();
    if (picture == nullptr) continue;
    budget_->give_back(Picture::cost(picture->view()));
    delete picture;
  }
}

EncodedImage CachedSource::read(std::int64_t index, ReadBuffer& buffer) const {
  std::atomic<const Picture*>& place = pictures_.at(static_cast<std::size_t>(index));
  if (const Picture* const picture = place.load(std::memory_order_acquire)) return picture->view();
  const EncodedImage image = source_->read(index, buffer);
  keep(place, image);
  return image;
}

/// If two threads read the same image, one of them keeps it.
void CachedSource::keep(std::atomic<const Picture*>& place, const EncodedImage& image) const {
  const std::int64_t cost = Picture::cost(image);
  if (!budget_->take(cost)) return;
  std::unique_ptr<const Picture> picture;
  try {
    picture =
        std::make_unique<const Picture>(Picture{.bytes = {image.bytes.begin(), image.bytes.end()},
                                                .boxes = {image.boxes.begin(), image.boxes.end()}});
  } catch (const std::bad_alloc&) {  // do not fail because of a cache
    budget_->give_back(cost);
    return;
  }
  const Picture* empty = nullptr;
  if (place.compare_exchange_strong(empty, picture.get(), std::memory_order_acq_rel)) {
    (void)picture.release();
  } else {
    budget_->give_back(cost);
  }
}

}  // namespace millrace::io
