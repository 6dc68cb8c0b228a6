// SPDX-License-Identifier: Apache-2.0
#include "io/picture_dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/images/normalise.hpp"
#include "io/images/reader.hpp"

namespace millrace::io {
namespace {

DrawKey draw_key(const ReadKey& key, std::int64_t sample) {
  return {.seed = key.seed, .epoch = key.epoch, .index = static_cast<std::uint64_t>(sample)};
}

}  // namespace

class PictureDataset::Worker {
 public:
  explicit Worker(std::mutex& large) : reader(large) {}
  ImageReader reader;
  Resampler resampler;
  ReadBuffer buffer;
  std::vector<std::uint8_t> pixels;  ///< of an image before conversion to floats
};

/// Borrows a worker for the lifetime of this object.
class PictureDataset::Borrowed {
 public:
  explicit Borrowed(const PictureDataset& set) : set_(set) {
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
  const PictureDataset& set_;
  std::unique_ptr<Worker> worker_;
};

PictureDataset::PictureDataset(PictureOptions options)
    : options_(std::move(options)),
      scaling_(scaling_of(options_.preset.normalisation, options_.side)) {}

PictureDataset::~PictureDataset() = default;

Shape PictureDataset::image_shape() const {
  return {.h = options_.side, .w = options_.side, .c = 3};
}

Sample PictureDataset::read_bytes(std::int64_t index, const ReadKey& key,
                                  std::span<std::uint8_t> image, PixelScaling& scaling) const {
  const Borrowed worker(*this);
  scaling = scaling_;
  return read_or_replace(index, key, *worker, image);
}

template <class T>
Sample PictureDataset::read_normalised(std::int64_t index, const ReadKey& key,
                                       std::span<T> image) const {
  const Borrowed worker(*this);
  std::vector<std::uint8_t>& pixels = (*worker).pixels;
  pixels.resize(image.size());
  const Sample sample = read_or_replace(index, key, *worker, pixels);
  normalise_pixels(pixels, scaling_, image);
  return sample;
}

Sample PictureDataset::read(std::int64_t index, const ReadKey& key, std::span<float> image) const {
  return read_normalised(index, key, image);
}

Sample PictureDataset::read_rounded(std::int64_t index, const ReadKey& key, std::span<float>,
                                    std::span<bfloat16> image) const {
  return read_normalised(index, key, image);
}

Sample PictureDataset::read_rounded(std::int64_t index, const ReadKey& key, std::span<float>,
                                    std::span<float16> image) const {
  return read_normalised(index, key, image);
}

std::vector<std::string> PictureDataset::replaced() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  lines.reserve(bad_.size());
  for (const auto& [index, what] : bad_) lines.push_back(what);
  return lines;
}

// The replacement must not depend on earlier bad images, so every image is tried again.
Sample PictureDataset::read_or_replace(std::int64_t index, const ReadKey& key, Worker& worker,
                                       std::span<std::uint8_t> image) const {
  for (std::int64_t at = index;;) {
    try {
      read_picture(at, index, key, worker, image);
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

// Errors of sources name the place; errors of decoders do not.
void PictureDataset::note_bad(std::int64_t index, const std::string& problem) const {
  const std::lock_guard lock(mutex_);
  const std::string what = problem_at(where(index), problem);
  if (bad_.emplace(index, what).second && options_.report) options_.report(what);
}

std::int64_t PictureDataset::next_of_class(std::int64_t index) const {
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

namespace {

/// Number of images sampled to characterize a set; up to twice as many in small sets.
constexpr std::int64_t kSampled = 64;

/// A checksum over evenly spaced images of `size`; "unreadable" replaces those that cannot be read.
template <class Read>
std::uint32_t checksum_of_some(std::int64_t size, Read read) {
  const std::int64_t step = std::max<std::int64_t>(1, size / kSampled);
  std::uint32_t crc = 0;
  for (std::int64_t i = 0; i < size; i += step) {
    try {
      crc = crc32c(read(i), crc);
    } catch (const Error& error) {  // readers will report it
      crc = crc32c(std::as_bytes(std::span(std::string_view("unreadable"))), crc);
    }
  }
  return crc;
}

/// Decodes at every read.
class EncodedPictures final : public PictureDataset {
 public:
  EncodedPictures(std::shared_ptr<const EncodedSource> source, PictureOptions options)
      : PictureDataset(std::move(options)), source_(std::move(source)) {}

  [[nodiscard]] std::string name() const override { return source_->name(); }
  [[nodiscard]] std::int64_t size() const override { return source_->size(); }
  [[nodiscard]] std::int64_t classes() const override { return source_->classes(); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return source_->label(index);
  }
  [[nodiscard]] std::uint32_t fingerprint() const override { return source_->fingerprint(); }
  [[nodiscard]] std::uint32_t sampled_content() const override {
    ReadBuffer buffer;
    return checksum_of_some(size(), [&](std::int64_t i) { return source_->read(i, buffer).bytes; });
  }
  [[nodiscard]] std::int64_t reading_bytes(int threads) const override {
    // Maximum ratio of pixel bytes to file bytes for photos of usual quality.
    constexpr std::int64_t kDecoded = 16;
    constexpr auto kUsual = static_cast<std::int64_t>(kUsualPictureBytes);
    std::int64_t largest = 0;
    for (std::int64_t i = 0; i < size(); ++i)
      largest = std::max(largest, static_cast<std::int64_t>(source_->stored_bytes(i)));
    const std::int64_t decoded =
        std::min(std::max(kDecoded * largest, sampled_bytes()), ImageReader::kMostPictureBytes);
    const std::int64_t each = std::min(decoded, kUsual) + largest + image_shape().elements();
    return threads * each + std::max<std::int64_t>(decoded - kUsual, 0);
  }
  [[nodiscard]] std::int64_t kept_bytes() const override { return source_->kept_bytes(); }

 protected:
  void read_picture(std::int64_t index, std::int64_t sample, const ReadKey& key, Worker& worker,
                    std::span<std::uint8_t> image) const override {
    const EncodedImage encoded = source_->read(index, worker.buffer);
    const ImagePreset& preset = options().preset;
    const ImageReader::Report report =
        key.augment ? worker.reader.read_training(encoded.bytes, encoded.boxes, preset,
                                                  draw_key(key, sample), options().side, image)
                    : worker.reader.read_validation(encoded.bytes, preset, options().side, image);
    if (report.state == PictureState::Damaged) fail(ErrorKind::Data, "{}", report.warning);
  }
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return source_->where(index);
  }

 private:
  /// Memory of the largest of evenly spaced sample images: drawings have more pixels than photos of
  /// equal file size.
  [[nodiscard]] std::int64_t sampled_bytes() const {
    const std::int64_t step = std::max<std::int64_t>(1, size() / kSampled);
    std::int64_t most = 0;
    ReadBuffer buffer;
    for (std::int64_t i = 0; i < size(); i += step) {
      try {
        const ImageHeader header = read_header(source_->read(i, buffer).bytes);
        most = std::max(most, decoding_bytes(header, header.height));
      } catch (const Error& error) {  // readers will report it
        if (error.kind() != ErrorKind::Data) throw;
      }
    }
    return most;
  }

  std::shared_ptr<const EncodedSource> source_;
};

/// Reads images that were decoded in advance.
class DecodedPictures final : public PictureDataset {
 public:
  DecodedPictures(std::shared_ptr<const PackedPictures> pictures, std::string name,
                  PictureOptions options)
      : PictureDataset(std::move(options)),
        pictures_(std::move(pictures)),
        name_(std::move(name)) {}

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override { return pictures_->size(); }
  [[nodiscard]] std::int64_t classes() const override { return pictures_->classes(); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return pictures_->label(index);
  }
  [[nodiscard]] std::uint32_t fingerprint() const override { return pictures_->fingerprint(); }
  [[nodiscard]] std::uint32_t sampled_content() const override {
    ReadBuffer buffer;
    return checksum_of_some(size(),
                            [&](std::int64_t i) { return pictures_->read(i, buffer).pixels; });
  }
  [[nodiscard]] std::int64_t reading_bytes(int threads) const override {
    const auto largest = static_cast<std::int64_t>(pictures_->largest_bytes());
    return threads * (largest + image_shape().elements());
  }

 protected:
  void read_picture(std::int64_t index, std::int64_t sample, const ReadKey& key, Worker& worker,
                    std::span<std::uint8_t> image) const override {
    const PackedPicture picture = pictures_->read(index, worker.buffer);
    const ImageHeader header{.width = picture.width, .height = picture.height};
    const ImagePreset& preset = options().preset;
    const ImageWindow window =
        key.augment
            ? draw_window(preset.crop, draw_key(key, sample), header, picture.boxes, options().side)
            : evaluation_window(preset.evaluation, header, options().side);
    (void)worker.resampler.prepare(window, key.augment ? preset.training : preset.validation,
                                   options().side);
    // The file's bytes may be accessed as any byte type.
    const PixelView view{
        .pixels = reinterpret_cast<const std::uint8_t*>(picture.pixels.data()),
        .stride = std::int64_t{3} * picture.width,
        .box = {.top = 0, .left = 0, .bottom = picture.height, .right = picture.width}};
    worker.resampler.resample(view, image);
  }
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return pictures_->where(index);
  }

 private:
  std::shared_ptr<const PackedPictures> pictures_;
  std::string name_;
};

}  // namespace

std::shared_ptr<PictureDataset> make_picture_dataset(std::shared_ptr<const EncodedSource> source,
                                                     PictureOptions options) {
  return std::make_shared<EncodedPictures>(std::move(source), std::move(options));
}

std::shared_ptr<PictureDataset> make_packed_dataset(std::shared_ptr<const PackedPictures> pictures,
                                                    std::string name, PictureOptions options) {
  return std::make_shared<DecodedPictures>(std::move(pictures), std::move(name),
                                           std::move(options));
}

}  // namespace millrace::io
