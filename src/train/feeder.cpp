// SPDX-License-Identifier: Apache-2.0
#include "train/feeder.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/compat.hpp"

namespace millrace::training {
namespace {

/// Type in which images are copied to the device.
DType image_type(const run::Run& config) {
  return config.data.image_type.value_or(config.precision.activations);
}

}  // namespace

std::int64_t validation_batches(const run::Run& config, std::int64_t images) {
  const std::int64_t together = config.validation_batch_size * config.pipeline.ranks.replicas;
  return (images + together - 1) / together;
}

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

std::int64_t Feeds::stand_ins() const {
  std::int64_t sum = 0;
  for (const auto& source : sources) sum += source ? source->stand_ins() : 0;
  return sum;
}

Feeder::Feeder(const run::Run& config, const Shape& image,
               std::span<const pipeline::LocalStage> units, const pipeline::Executor* endless,
               const pipeline::Executor* evaluation)
    : config_(&config), image_(image), units_(units), endless_(endless), evaluation_(evaluation) {}

/// Number of stages of this process that read images; 0 unless it holds the first device.
int Feeder::image_readers(const pipeline::Executor& executor) const {
  int readers = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) readers += executor.reads_images(u) ? 1 : 0;
  return readers;
}

/// Threads per stage that reads images: at most the number of images in the batches read ahead.
int Feeder::threads_of_loader(const pipeline::Executor& executor) const {
  const std::int64_t batch = std::max(config_->batch_size, config_->validation_batch_size);
  const std::int64_t images = (io::LoaderOptions{}.batches_ahead + 1) * batch;
  const auto useful =
      static_cast<int>(std::min<std::int64_t>(config_->data.loader_threads, images));
  if (config_->data.max_cpus == 0) return useful;
  const int most = config_->data.max_cpus / std::max(1, image_readers(executor));
  return std::min(useful, std::max(1, most));
}

int Feeder::threads() const {
  const pipeline::Executor& executor = endless_ != nullptr ? *endless_ : *evaluation_;
  return image_readers(executor) * threads_of_loader(executor);
}

std::int64_t Feeder::image_bytes(std::int64_t batch) const {
  return batch * image_.elements() * size_of(image_type(*config_));
}

/// Bytes of a micro-batch of images that stays on the device.
std::int64_t Feeder::resident_bytes() const {
  if (endless_ == nullptr || config_->data.source != run::ImageSource::Device ||
      image_readers(*endless_) == 0)
    return 0;
  return device::aligned(image_bytes(config_->batch_size));
}

/// Bytes of the batches that are copied to the device while the one before is used.
std::int64_t Feeder::upload_bytes(const pipeline::Executor* executor, std::int64_t batch) const {
  if (device::kHostReadable || executor == nullptr) return 0;
  if (executor == endless_ && config_->data.source == run::ImageSource::Device) return 0;
  return image_readers(*executor) * UploadedFeed::bytes(image_bytes(batch));
}

std::int64_t Feeder::device_bytes() const {
  return resident_bytes() + upload_bytes(endless_, config_->batch_size) +
         upload_bytes(evaluation_, config_->validation_batch_size);
}

std::int64_t Feeder::loader_bytes(std::int64_t validation_images) const {
  std::int64_t image = image_.elements() * size_of(image_type(*config_));
  if (image_type(*config_) == DType::U8) image += static_cast<std::int64_t>(sizeof(PixelScaling));
  if (config_->data.mixing.on()) image += static_cast<std::int64_t>(sizeof(ImageMixing));
  const std::int64_t batches = io::LoaderOptions{}.batches_ahead + 1;
  std::int64_t images = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (endless_ != nullptr && endless_->reads_images(u) &&
        config_->data.source != run::ImageSource::Device)
      images += batches * config_->batch_size;
    if (evaluation_ != nullptr && evaluation_->reads_images(u))
      images += std::min(batches * config_->validation_batch_size, validation_images);
  }
  return images * image;
}

/// Reads the first micro-batch of the run, for every replica.
io::ResidentImages Feeder::make_resident(const std::shared_ptr<const io::Dataset>& dataset,
                                         const io::SampleOrder& order, io::LoaderOptions options) {
  options.first_position = 0;
  options.threads = 0;
  options.content = io::Content::Images;
  options.mixing = {};
  io::Loader loader(dataset, order, options);
  const io::Batch& batch = *loader.next();
  resident_images_ = std::make_unique<device::Arena>(resident_bytes());
  device::copy_to_device(resident_images_->at(0), batch.images.data(), std::ssize(batch.images));
  return {.images = resident_images_->at(0),
          .scaling = batch.scaling.empty() ? PixelScaling{} : batch.scaling.front()};
}

Feeds Feeder::feeds(const pipeline::Executor& executor,
                    const std::shared_ptr<const io::Dataset>& dataset, const io::SampleOrder& order,
                    const io::LoaderOptions& options) {
  Feeds result;
  std::byte* memory = nullptr;
  if (const std::int64_t bytes = upload_bytes(&executor, options.batch_size); bytes > 0)
    memory = uploads_.try_emplace(&executor, bytes).first->second.at(0);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const bool images = executor.reads_images(u);
    const bool labels = executor.reads_labels(u);
    result.sources.emplace_back();
    result.pointers.push_back(nullptr);
    if (!images && !labels) continue;
    io::LoaderOptions own = options;
    own.replicas = config_->pipeline.ranks.replicas;
    own.replica = units_[u].replica;
    own.content = images && labels ? io::Content::Both
                  : images         ? io::Content::Images
                                   : io::Content::Labels;
    // Labels are available at once.
    own.threads = images && !own.resident ? threads_of_loader(executor) : 0;
    own.memory = device::host_buffer;
    std::unique_ptr<io::BatchSource> source = std::make_unique<io::Loader>(dataset, order, own);
    if (images && memory != nullptr) {
      const std::int64_t batch = image_bytes(options.batch_size);
      source = std::make_unique<UploadedFeed>(std::move(source), memory, batch);
      memory += UploadedFeed::bytes(batch);
    }
    result.sources.back() = std::move(source);
    result.pointers.back() = result.sources.back().get();
  }
  return result;
}

Feeds Feeder::endless(const std::shared_ptr<const io::Dataset>& dataset,
                      const io::SampleOrder& order, io::LoaderOptions options) {
  options.batch_size = config_->batch_size;
  options.type = image_type(*config_);
  options.seed = config_->seed;
  if (resident_bytes() > 0) options.resident = make_resident(dataset, order, options);
  return feeds(*endless_, dataset, order, options);
}

Feeds Feeder::training(const std::shared_ptr<const io::Dataset>& dataset,
                       std::int64_t first_position) {
  io::LoaderOptions options;
  options.augment = config_->data.augment;
  options.mixing = config_->data.mixing;
  if (config_->data.weighted) options.weighted_over = config_->total_batch();
  options.first_position = first_position;
  return endless(dataset, io::SampleOrder::shuffled(config_->seed, dataset->size()), options);
}

Feeds Feeder::inference(const std::shared_ptr<const io::Dataset>& dataset) {
  return endless(dataset, io::SampleOrder::sequential(dataset->size()), {});
}

Feeds Feeder::validation(const std::shared_ptr<const io::Dataset>& dataset) {
  io::LoaderOptions options;
  options.batch_size = config_->validation_batch_size;
  options.type = image_type(*config_);
  options.seed = config_->seed;
  options.end_position = dataset->size();
  options.batches = validation_batches(*config_, dataset->size());
  return feeds(*evaluation_, dataset, io::SampleOrder::sequential(dataset->size()), options);
}

}  // namespace millrace::training
