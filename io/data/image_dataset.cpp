// SPDX-License-Identifier: Apache-2.0
#include "io/data/image_dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/counted.hpp"
#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::io {
namespace {

/// Number of images sampled to characterize a set; up to twice as many in small sets.
constexpr std::int64_t kSampled = 64;

/// Calls visit(i) for evenly spaced images.
template <class Visit>
void for_some(std::int64_t size, const Visit& visit) {
  const std::int64_t step = std::max<std::int64_t>(1, size / kSampled);
  for (std::int64_t i = 0; i < size; i += step) visit(i);
}

}  // namespace

/// Buffers of one reading thread, reused by the next.
struct ImageDataset::Worker {
  explicit Worker(std::mutex& large) : reader(large) {}
  ImageReader reader;
  ReadBuffer buffer;
  std::vector<std::uint8_t> scratch;  ///< for augmentation
};

/// Borrows a worker for the lifetime of this object.
class ImageDataset::Borrowed {
 public:
  explicit Borrowed(const ImageDataset& set) : set_(set) {
    const std::lock_guard lock(set_.mutex_);
    if (set_.idle_.empty()) {
      worker_ = std::make_unique<Worker>(set_.large_);
    } else {
      worker_ = std::move(set_.idle_.back());
      set_.idle_.pop_back();
    }
  }
  ~Borrowed() {
    const std::lock_guard lock(set_.mutex_);
    set_.idle_.push_back(std::move(worker_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  [[nodiscard]] Worker& operator*() const { return *worker_; }

 private:
  const ImageDataset& set_;
  std::unique_ptr<Worker> worker_;
};

/// A copy of a stored image.
struct ImageDataset::Kept {
  std::vector<std::byte> bytes;
  std::vector<ObjectBox> boxes;
  std::int32_t height = 0;
  std::int32_t width = 0;
  /// Memory besides the bytes, including the allocator's overhead and two boxes.
  static constexpr std::int64_t kBeside = 160;
};

ImageDataset::ImageDataset() { prepare_for({}); }
ImageDataset::~ImageDataset() = default;

void ImageDataset::prepare_for(ImageOptions options) {
  options_ = std::move(options);
  scaling_ = scaling_of(options_.preset.statistics(), options_.side);
}

void ImageDataset::keep_in_memory(std::int64_t bytes) {
  std::int64_t all = 0;
  for (std::int64_t i = 0; i < size(); ++i)
    all += static_cast<std::int64_t>(stored_bytes(i)) + Kept::kBeside;
  most_kept_ = std::min(bytes, all);
  if (most_kept_ > 0) kept_.resize(static_cast<std::size_t>(size()));
}

Shape ImageDataset::image_shape() const { return {.h = options_.side, .w = options_.side, .c = 3}; }

std::uint32_t ImageDataset::sampled_content() const {
  std::uint32_t crc = 0;
  ReadBuffer buffer;
  for_some(size(), [&](std::int64_t i) {
    try {
      crc = crc32c(stored(i, buffer).bytes, crc);
    } catch (const Error&) {  // readers will report it
      crc = crc32c(std::as_bytes(std::span(std::string_view("unreadable"))), crc);
    }
  });
  return crc;
}

std::int64_t ImageDataset::reading_bytes(int threads) const {
  // Maximum ratio of pixel bytes to file bytes for photos of usual quality.
  constexpr std::int64_t kDecoded = 16;
  constexpr auto kUsual = static_cast<std::int64_t>(kUsualImageBytes);
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < size(); ++i)
    largest = std::max(largest, static_cast<std::int64_t>(stored_bytes(i)));
  const std::int64_t decoded =
      std::min(std::max(kDecoded * largest, most_decoded_bytes()), ImageReader::kMostImageBytes);
  const std::int64_t pixels = image_shape().elements();
  const std::int64_t scratch = options_.augmentation.changes_pixels() ? pixels : 0;
  const std::int64_t each = std::min(decoded, kUsual) + largest + pixels + scratch;
  return threads * each + std::max<std::int64_t>(decoded - kUsual, 0);
}

/// Memory of the largest of evenly spaced images: drawings have more pixels than photos of equal
/// file size.
std::int64_t ImageDataset::most_decoded_bytes() const {
  std::int64_t most = 0;
  ReadBuffer buffer;
  for_some(size(), [&](std::int64_t i) {
    try {
      const ImageHeader header = read_header(stored(i, buffer).bytes);
      most = std::max(most, decoding_bytes(header, header.height));
    } catch (const Error& error) {  // readers will report it
      if (error.kind() != ErrorKind::Data) throw;
    }
  });
  return most;
}

// The replacement must not depend on earlier bad images, so every image is tried again.
Sample ImageDataset::read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
                          PixelScaling& scaling) const {
  const Borrowed worker(*this);
  std::optional<DrawKey> draw;
  if (key.augment)
    draw = {.seed = key.seed, .epoch = key.epoch, .index = static_cast<std::uint64_t>(index)};
  scaling = scaling_;
  for (std::int64_t at = index;;) {
    try {
      read_image(at, draw, *worker, image);
      if (draw) augment(*draw, *worker, image, scaling);
      return at == index ? Sample::Own : Sample::StandIn;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Data) throw;
      note_bad(at, error.what());
    }
    at = next_of_class(at);
    if (at == index)
      fail(ErrorKind::Data,
           "{}: no image of class {} can be decoded, so none can replace this one: repair one, or "
           "leave the class out",
           where(index), label(index));
  }
}

/// Writes image `index` with this crop.
void ImageDataset::read_image(std::int64_t index, const std::optional<DrawKey>& draw,
                              Worker& worker, std::span<std::uint8_t> image) const {
  const ImageReader::Report report = worker.reader.read(
      stored_or_kept(index, worker.buffer), options_.preset, draw, options_.side, image);
  if (report.state == ImageState::Damaged) fail(ErrorKind::Data, "{}", report.warning);
}

void ImageDataset::augment(const DrawKey& draw, Worker& worker, std::span<std::uint8_t> image,
                           PixelScaling& scaling) const {
  const Augmentation& augmentation = options_.augmentation;
  const std::int32_t side = options_.side;
  if (augmentation.changes_pixels()) {
    worker.scratch.resize(image.size());
    augment_pixels(augmentation, draw, {.bytes = image, .height = side, .width = side},
                   worker.scratch);
  }
  scaling.erased = draw_erased(augmentation, draw, side, side);
}

StoredImage ImageDataset::stored_or_kept(std::int64_t index, ReadBuffer& buffer) const {
  if (most_kept_ == 0) return stored(index, buffer);
  {
    const std::lock_guard lock(mutex_);
    if (const Kept* const kept = kept_[static_cast<std::size_t>(index)].get())
      return {
          .bytes = kept->bytes, .boxes = kept->boxes, .height = kept->height, .width = kept->width};
  }
  const StoredImage image = stored(index, buffer);
  keep(index, image);
  return image;
}

/// If two threads read the same image, one of them keeps it.
void ImageDataset::keep(std::int64_t index, const StoredImage& image) const {
  const auto cost = Kept::kBeside + static_cast<std::int64_t>(image.bytes.size());
  std::unique_ptr<const Kept>& place = kept_[static_cast<std::size_t>(index)];
  const std::lock_guard lock(mutex_);
  if (place || cost > most_kept_ - kept_bytes_) return;
  kept_bytes_ += cost;
  place = std::make_unique<const Kept>(Kept{.bytes = {image.bytes.begin(), image.bytes.end()},
                                            .boxes = {image.boxes.begin(), image.boxes.end()},
                                            .height = image.height,
                                            .width = image.width});
}

std::vector<std::string> ImageDataset::replaced() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  lines.reserve(bad_.size());
  for (const auto& [index, what] : bad_) lines.push_back(what);
  return lines;
}

// Errors of storage name the place; errors of decoders do not.
void ImageDataset::note_bad(std::int64_t index, const std::string& problem) const {
  const std::lock_guard lock(mutex_);
  const std::string what = problem_at(where(index), problem);
  if (bad_.emplace(index, what).second && options_.report) options_.report(what);
}

std::int64_t ImageDataset::next_of_class(std::int64_t index) const {
  const auto before = [this](std::int32_t a, std::int32_t b) {
    return std::pair(label(a), a) < std::pair(label(b), b);
  };
  const std::lock_guard lock(mutex_);
  if (by_class_.empty()) {
    by_class_.resize(static_cast<std::size_t>(size()));
    std::iota(by_class_.begin(), by_class_.end(), 0);
    std::sort(by_class_.begin(), by_class_.end(), before);
  }
  const auto own = static_cast<std::int32_t>(index);
  const auto behind = std::upper_bound(by_class_.begin(), by_class_.end(), own, before);
  if (behind != by_class_.end() && label(*behind) == label(index)) return *behind;
  return *std::lower_bound(
      by_class_.begin(), by_class_.end(), label(index),
      [this](std::int32_t at, std::int32_t wanted) { return label(at) < wanted; });
}

std::string without_place(std::string_view problem, std::string_view place) {
  const auto parted = std::ranges::mismatch(problem, place);
  const auto same = static_cast<std::size_t>(parted.in1 - problem.begin());
  const std::string_view more = place.substr(same);
  const bool begins_with_it = same > 0 && (more.empty() || more.starts_with(", ")) &&
                              problem.substr(same).starts_with(": ");
  if (begins_with_it) return std::string(problem.substr(same + 2));
  std::string rest(problem);
  // As the errors of opening and reading a file are worded.
  if (const std::size_t at = rest.find(fmt::format(" {}: ", place));
      rest.starts_with("cannot ") && at != std::string::npos)
    rest.erase(at, 1 + place.size());
  return rest;
}

std::string problem_at(const std::string& place, const std::string& problem) {
  return printable(fmt::format("{}: {}", place, without_place(problem, place)));
}

std::int64_t most_bad(std::int64_t all, double max_fraction) noexcept {
  if (max_fraction <= 0.0) return 0;
  const std::int64_t least = all > 1 ? 1 : 0;
  return std::max(least, static_cast<std::int64_t>(max_fraction * static_cast<double>(all)));
}

std::string describe_limit(std::int64_t all, double max_fraction) {
  return fmt::format("`max-bad-fraction` {:g} allows at most {}", max_fraction,
                     with_commas(most_bad(all, max_fraction)));
}

void BadImages::add(const std::string& problem) {
  if (count_++ == 0) first_ = problem;
  if (report_) report_(problem);
  if (count_ > most_bad(images_, max_fraction_)) refuse();
}

void BadImages::refuse_if_all() const {
  if (count_ > 0 && count_ == images_) refuse();
}

void BadImages::refuse() const {
  fail(ErrorKind::Data, "{} of {} {} bad so far, the first: {}; {}", count_,
       counted(images_, "image"), is_or_are(count_), first_,
       describe_limit(images_, max_fraction_));
}

void leave_out_bad(const BadShare& share, const std::string& count, const std::string& head,
                   std::vector<std::string>& notices,
                   const std::function<std::string(std::size_t)>& describe) {
  constexpr std::int64_t kNamed = 5;
  if (share.bad == 0) return;
  if (share.bad == share.all || share.bad > most_bad(share.all, share.max_fraction))
    fail(ErrorKind::Data, "{}, the first: {}; {}", count, describe(0),
         describe_limit(share.all, share.max_fraction));
  notices.push_back(printable(head));
  const std::int64_t named = std::min(share.bad, kNamed);
  for (std::int64_t i = 0; i < named; ++i)
    notices.push_back(
        printable(fmt::format("left out: {}", describe(static_cast<std::size_t>(i)))));
  if (named < share.bad) notices.push_back(fmt::format("and {} more", share.bad - named));
}

}  // namespace millrace::io
