// SPDX-License-Identifier: Apache-2.0
//
// A ring of slots, one batch each. Slot b % slots holds batch b. Reading threads claim small ranges
// of samples in order of position and fill them without the lock; the consumer waits until all
// samples of its batch are there.
//
//   batch       0   1   2   3   4   5 ...
//               |   |_______|   |_________ claimed next, as soon as slot 4 % slots is free
//               |       |_________________ ready, or being filled by several threads at once
//               |_________________________ with the consumer until it calls next() again
#include "io/data/loader.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "core/bfloat16.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "core/random.hpp"

namespace millrace::io {

SampleOrder::SampleOrder(std::uint64_t seed, std::int64_t size, Order order)
    : seed_(seed), size_(size), order_(order) {
  if (size < 1)
    fail(ErrorKind::Data, "a data set of {} samples has no order: the set is empty", size);
}

SampleOrder SampleOrder::shuffled(std::uint64_t seed, std::int64_t size) {
  return {seed, size, Order::Shuffled};
}

SampleOrder SampleOrder::sequential(std::int64_t size) { return {0, size, Order::Sequential}; }

SampleOrder::Place SampleOrder::at(std::int64_t position) const {
  MILLRACE_ASSERT(position >= 0);
  const auto epoch = static_cast<std::uint64_t>(position / size_);
  const std::int64_t within = position % size_;
  if (order_ == Order::Sequential) return {epoch, within};
  const Permutation permutation(seed_, epoch, static_cast<std::uint64_t>(size_));
  return {epoch, static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(within)))};
}

namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and a full vector register

std::shared_ptr<std::byte> system_memory(std::size_t bytes) {
  constexpr auto kFree = [](std::byte* memory) {
    ::operator delete (memory, std::align_val_t{kAlignment});
  };
  return {static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment})), kFree};
}

/// A batch and the state of its filling. The mutex guards everything except pixels and labels.
struct Slot {
  Batch batch;
  std::shared_ptr<std::byte> images;
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> indices;
  std::vector<float> weights;
  float weight_scale = 1.0f;
  std::vector<PixelScaling> scaling;
  std::vector<ImageMixing> mixing;
  std::int64_t samples_missing = 0;
  std::exception_ptr error;
  std::int64_t error_sample = 0;  ///< of several errors, that of the first sample is kept
};

/// Samples `begin` .. `end`-1 of a batch.
struct Claim {
  std::int64_t batch = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

LoaderOptions checked(const LoaderOptions& options, const Dataset& dataset,
                      const SampleOrder& order) {
  constexpr std::int64_t kMaxBatchBytes = std::int64_t{1} << 40;
  const std::int64_t image_bytes = dataset.image_shape().elements() * size_of(options.type);
  MILLRACE_ASSERT(order.size() == dataset.size());
  MILLRACE_ASSERT(options.type != DType::I32);
  MILLRACE_ASSERT(!options.resident || options.end_position == -1);
  MILLRACE_ASSERT(options.first_position >= 0);
  MILLRACE_ASSERT(options.replica >= 0 && options.replica < options.replicas);
  MILLRACE_ASSERT(options.end_position == -1 || options.end_position >= options.first_position);
  MILLRACE_ASSERT(!options.mixing.on() || options.end_position == -1);
  check_mixing(options.mixing, options.batch_size);
  MILLRACE_ASSERT(dataset.has_floats() || dataset.image_shape().c <= kMaxByteChannels);
  MILLRACE_ASSERT(!dataset.has_floats() || options.type != DType::U8);
  if (options.batch_size < 1 || options.batch_size > kMaxBatchBytes / image_bytes)
    fail(ErrorKind::Config,
         "batch size {} of {} images is outside 1 .. {}: choose a batch size in that range",
         options.batch_size, dataset.image_shape(), kMaxBatchBytes / image_bytes);
  if (options.threads < 0 || options.batches_ahead < 1)
    fail(ErrorKind::Config,
         "{} reading threads with {} batches ahead: at least 0 threads and 1 batch are needed",
         options.threads, options.batches_ahead);
  return options;
}

/// Samples per claim: few enough that all threads work on the next batch, and enough that claiming
/// costs little compared with reading.
std::int64_t samples_per_claim(const LoaderOptions& options, std::int64_t image_elements) {
  constexpr std::int64_t kMinElements = 32768;
  const std::int64_t least = std::max<std::int64_t>(1, kMinElements / image_elements);
  const std::int64_t threads = std::max(1, options.threads);
  const std::int64_t share = (options.batch_size + threads - 1) / threads;
  return std::min(options.batch_size, std::max(least, share));
}

}  // namespace

class Loader::State {
 public:
  State(std::shared_ptr<const Dataset> dataset, SampleOrder order, const LoaderOptions& options)
      : dataset_(std::move(dataset)),
        order_(order),
        options_(checked(options, *dataset_, order)),
        image_elements_(static_cast<std::size_t>(dataset_->image_shape().elements())),
        image_bytes_(image_elements_ * static_cast<std::size_t>(size_of(options.type))),
        claim_samples_(samples_per_claim(options, dataset_->image_shape().elements())) {
    // One more for the batch that the consumer holds.
    const int slots = options.threads == 0 ? 1 : options.batches_ahead + 1;
    for (int s = 0; s < slots; ++s) slots_.push_back(make_slot());
    scratch_.resize(static_cast<std::size_t>(std::max(1, options.threads)));
    if (options.type != DType::U8)
      for (Pixels& pixels : scratch_)
        pixels.resize(image_elements_ * (dataset_->has_floats() ? sizeof(float) : 1));
  }

  ~State() {
    {
      const std::lock_guard lock(mutex_);
      stop_.store(true, std::memory_order_relaxed);
    }
    slot_freed_.notify_all();
  }  // the threads are joined as the first member to be destroyed

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// Separate from the constructor, so that the destructor joins the other threads if one cannot be
  /// started.
  void start_threads() {
    threads_.reserve(static_cast<std::size_t>(options_.threads));
    for (std::size_t t = 0; t < static_cast<std::size_t>(options_.threads); ++t)
      threads_.emplace_back([this, t] { read_ahead(scratch_[t]); });
  }

  const Batch* next() {
    std::unique_lock lock(mutex_);
    free_current(lock);
    if (!exists(current_)) return nullptr;
    Slot& slot = slot_of(current_);
    if (options_.threads == 0) read_now(lock);
    slot_filled_.wait(lock,
                      [&] { return next_claim_.batch > current_ && slot.samples_missing == 0; });
    if (slot.error) std::rethrow_exception(slot.error);
    lent_ = true;
    stand_ins_ += slot.batch.stand_ins;
    return &slot.batch;
  }

  [[nodiscard]] std::int64_t stand_ins() const { return stand_ins_; }

 private:
  using Pixels = std::vector<std::uint8_t>;

  [[nodiscard]] Slot make_slot() const {
    Slot slot;
    const auto samples = static_cast<std::size_t>(options_.batch_size);
    if (options_.content != Content::Labels) {
      if (options_.resident) {
        slot.batch.images = {options_.resident->images, samples * image_bytes_};
        slot.batch.on_device = true;
        if (options_.type == DType::U8) slot.scaling.resize(samples, options_.resident->scaling);
      } else {
        slot.images = (options_.memory ? options_.memory : system_memory)(samples * image_bytes_);
        slot.batch.images = {slot.images.get(), samples * image_bytes_};
        if (options_.type == DType::U8) slot.scaling.resize(samples);
      }
      slot.batch.scaling = slot.scaling;
    }
    if (options_.mixing.on()) slot.mixing.resize(samples);
    slot.batch.mixing = slot.mixing;
    slot.labels.resize(samples);
    slot.indices.resize(samples);
    if (options_.content == Content::Images) return slot;
    slot.batch.labels = slot.labels;
    slot.batch.indices = slot.indices;
    if (options_.weighted_over > 0) slot.weights.resize(samples);
    slot.batch.weights = slot.weights;
    return slot;
  }

  [[nodiscard]] Slot& slot_of(std::int64_t batch) {
    return slots_[static_cast<std::size_t>(batch) % slots_.size()];
  }

  [[nodiscard]] std::int64_t first_position_of(std::int64_t batch) const {
    return options_.first_position +
           (batch * options_.replicas + options_.replica) * options_.batch_size;
  }

  /// Number of samples in batch `batch`; 0 after the end.
  [[nodiscard]] std::int64_t samples_in(std::int64_t batch) const {
    if (options_.end_position < 0) return options_.batch_size;
    return std::clamp<std::int64_t>(options_.end_position - first_position_of(batch), 0,
                                    options_.batch_size);
  }

  /// Whether batch `batch` exists.
  [[nodiscard]] bool exists(std::int64_t batch) const {
    return options_.batches < 0 ? samples_in(batch) > 0 : batch < options_.batches;
  }

  void free_current(const std::unique_lock<std::mutex>&) {
    if (!lent_) return;
    lent_ = false;
    ++current_;
    slot_freed_.notify_all();
  }

  /// Whether the slot of the next claim is free.
  [[nodiscard]] bool can_claim() const {
    return next_claim_.batch < current_ + static_cast<std::int64_t>(slots_.size()) &&
           exists(next_claim_.batch);
  }

  /// Takes the next samples in order of position. The first claim of a batch opens its slot.
  Claim claim(const std::unique_lock<std::mutex>&) {
    Claim taken = next_claim_;
    taken.end = std::min(taken.begin + claim_samples_, options_.batch_size);
    if (taken.begin == 0) {
      Slot& slot = slot_of(taken.batch);
      slot.batch.first_position = first_position_of(taken.batch);
      slot.batch.count = samples_in(taken.batch);
      slot.batch.stand_ins = 0;
      slot.weight_scale = weight_scale_of(slot.batch.first_position);
      slot.samples_missing = options_.batch_size;
      slot.error = nullptr;
    }
    if (taken.end == options_.batch_size)
      next_claim_ = {.batch = taken.batch + 1};
    else
      next_claim_.begin = taken.end;
    return taken;
  }

  /// What gives the weights of the update at this position the mean 1.
  float weight_scale_of(std::int64_t position) {
    const std::int64_t images = options_.weighted_over;
    if (images == 0) return 1.0f;
    const std::int64_t first = position - (position - options_.first_position) % images;
    if (std::exchange(weighted_, first) == first) return weight_scale_;
    double sum = 0.0;
    for (std::int64_t i = 0; i < images; ++i)
      sum += static_cast<double>(dataset_->weight(order_.at(first + i).index));
    weight_scale_ = sum > 0.0 ? static_cast<float>(static_cast<double>(images) / sum) : 0.0f;
    return weight_scale_;
  }

  /// Result of a claim: number of stand-ins; `error` is that of sample `at`, or null.
  void settle(const Claim& done, std::int64_t stand_ins, const std::exception_ptr& error,
              std::int64_t at) {
    Slot& slot = slot_of(done.batch);
    slot.batch.stand_ins += stand_ins;
    slot.samples_missing -= done.end - done.begin;
    if (error && (!slot.error || at < slot.error_sample)) {
      slot.error = error;
      slot.error_sample = at;
    }
    if (slot.samples_missing == 0 && done.batch == current_) slot_filled_.notify_one();
  }

  /// Reads the samples of a claim without the lock, then records the result with the lock.
  void fulfil(std::unique_lock<std::mutex>& lock, Pixels& scratch) {
    const Claim taken = claim(lock);
    Slot& slot = slot_of(taken.batch);
    const std::int64_t first = slot.batch.first_position;
    const std::int64_t count = slot.batch.count;
    lock.unlock();
    std::exception_ptr error;
    std::int64_t sample = taken.begin;
    std::int64_t stand_ins = 0;
    try {
      for (; sample < taken.end && !stop_.load(std::memory_order_relaxed); ++sample) {
        if (sample >= count)
          clear_sample(sample, slot);
        else if (read_sample(first + sample, sample, slot, scratch) == Sample::StandIn)
          ++stand_ins;
      }
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    settle(taken, stand_ins, error, sample);
  }

  void read_now(std::unique_lock<std::mutex>& lock) {
    while (next_claim_.batch <= current_) fulfil(lock, scratch_[0]);
  }

  void read_ahead(Pixels& scratch) {
    std::unique_lock lock(mutex_);
    for (;;) {
      slot_freed_.wait(lock, [&] { return stop_.load(std::memory_order_relaxed) || can_claim(); });
      if (stop_.load(std::memory_order_relaxed)) return;
      fulfil(lock, scratch);
    }
  }

  Sample read_sample(std::int64_t position, std::int64_t sample, Slot& slot,
                     Pixels& scratch) const {
    const SampleOrder::Place place = order_.at(position);
    const auto at = static_cast<std::size_t>(sample);
    const std::int32_t label = dataset_->label(place.index);
    if (label < 0 || label >= dataset_->classes())
      fail(ErrorKind::Data, "{}: image {} has label {}, but the labels are 0 to {}",
           dataset_->name(), place.index, label, dataset_->classes() - 1);
    slot.labels[at] = label;
    slot.indices[at] = place.index;
    if (!slot.weights.empty()) slot.weights[at] = dataset_->weight(place.index) * slot.weight_scale;
    if (options_.mixing.on())
      slot.mixing[at] = draw_mixing(options_.mixing, options_.seed, position, sample,
                                    options_.batch_size, dataset_->image_shape());
    if (options_.content == Content::Labels || options_.resident) return Sample::Own;
    const ReadKey key{.seed = options_.seed, .epoch = place.epoch, .augment = options_.augment};
    std::byte* const out = slot.images.get() + at * image_bytes_;
    // The memory comes from operator new, so it may hold objects of any of the types.
    if (options_.type == DType::U8)
      return dataset_->read(place.index, key,
                            {reinterpret_cast<std::uint8_t*>(out), image_elements_},
                            slot.scaling[at]);
    PixelScaling scaling;
    const Sample read = dataset_->has_floats()
                            ? dataset_->read_floats(place.index, key, floats_in(scratch))
                            : dataset_->read(place.index, key, scratch, scaling);
    if (options_.type == DType::F16)
      store<float16>(scratch, scaling, out);
    else if (options_.type == DType::BF16)
      store<bfloat16>(scratch, scaling, out);
    else
      store<float>(scratch, scaling, out);
    return read;
  }

  [[nodiscard]] std::span<float> floats_in(Pixels& pixels) const {
    return {reinterpret_cast<float*>(pixels.data()), image_elements_};
  }

  template <class T>
  void store(Pixels& pixels, const PixelScaling& scaling, std::byte* out) const {
    const std::span image(reinterpret_cast<T*>(out), image_elements_);
    if (dataset_->has_floats())
      std::ranges::transform(floats_in(pixels), image.begin(), store_as<T>);
    else
      normalise_bytes<T>(pixels, scaling, dataset_->image_shape(), image);
  }

  void clear_sample(std::int64_t sample, Slot& slot) const {
    slot.labels[static_cast<std::size_t>(sample)] = -1;
    if (options_.content == Content::Labels) return;
    if (options_.type == DType::U8) slot.scaling[static_cast<std::size_t>(sample)] = {};
    std::fill_n(slot.images.get() + static_cast<std::size_t>(sample) * image_bytes_, image_bytes_,
                std::byte{0});
  }

  const std::shared_ptr<const Dataset> dataset_;
  const SampleOrder order_;
  const LoaderOptions options_;
  const std::size_t image_elements_;
  const std::size_t image_bytes_;
  const std::int64_t claim_samples_;
  std::vector<Pixels> scratch_;  ///< one image per thread, before it is normalized

  std::mutex mutex_;
  std::condition_variable slot_freed_;   ///< the consumer took the next batch, or the loader stops
  std::condition_variable slot_filled_;  ///< a batch is complete
  std::vector<Slot> slots_;
  Claim next_claim_;
  std::int64_t current_ = 0;    ///< number of the batch that next() has returned or will return
  bool lent_ = false;           ///< whether the consumer holds it
  std::int64_t stand_ins_ = 0;  ///< returned so far; used by the consumer only
  std::int64_t weighted_ = -1;  ///< first position of the update that has weight_scale_
  float weight_scale_ = 1.0f;
  std::atomic<bool> stop_ = false;

  std::vector<std::jthread> threads_;  ///< last, so that it is destroyed first
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, SampleOrder order,
               const LoaderOptions& options)
    : state_(std::make_unique<State>(std::move(dataset), order, options)) {
  state_->start_threads();
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

const Batch* Loader::next() { return state_->next(); }

std::int64_t Loader::stand_ins() const { return state_->stand_ins(); }

}  // namespace millrace::io
