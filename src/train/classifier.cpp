// SPDX-License-Identifier: Apache-2.0
#include "train/classifier.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "io/checkpoint.hpp"
#include "io/data/loose_images.hpp"
#include "io/data/parallel.hpp"
#include "run/complete.hpp"
#include "train/agreement.hpp"
#include "train/network_facts.hpp"
#include "train/open_run.hpp"
#include "train/runtime_call.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"

namespace millrace::training {

std::vector<Prediction> top(std::span<const float> logits, std::int64_t count) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int64_t label) {
    return static_cast<double>(logits[static_cast<std::size_t>(label)]);
  };
  const auto end = order.begin() + std::clamp<std::int64_t>(count, 0, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](std::int64_t a, std::int64_t b) {
    return logit(a) > logit(b) || (logit(a) == logit(b) && a < b);
  });
  std::vector<Prediction> predictions;
  if (order.begin() == end) return predictions;
  const double most = logit(order.front());
  double total = 0.0;
  for (const float value : logits) total += std::exp(static_cast<double>(value) - most);
  for (auto label = order.begin(); label != end; ++label)
    predictions.push_back({.label = *label,
                           .logit = logit(*label),
                           .probability = std::exp(logit(*label) - most) / total});
  return predictions;
}

/// Batches of the floats that a caller has. What is missing of the last one is zero.
class FloatFeed final : public io::BatchSource {
 public:
  FloatFeed(std::int64_t batch, std::int64_t elements)
      : whole_(static_cast<std::size_t>(batch * elements)),
        labels_(static_cast<std::size_t>(batch), -1) {
    batch_.count = batch;
    batch_.labels = labels_;
  }
  void give(std::span<const float> images) { left_ = images; }
  [[nodiscard]] const io::Batch* next() override {
    std::span<const float> images = left_.first(std::min(left_.size(), whole_));
    left_ = left_.subspan(images.size());
    if (images.size() < whole_) {
      padded_.assign(images.begin(), images.end());
      padded_.resize(whole_);
      images = padded_;
    }
    batch_.images = std::as_bytes(images);
    return &batch_;
  }
  [[nodiscard]] std::int64_t stand_ins() const override { return 0; }

 private:
  std::size_t whole_;  ///< floats of a batch
  std::vector<std::int32_t> labels_;
  std::span<const float> left_;
  std::vector<float> padded_;
  io::Batch batch_;
};

/// The network for passes of one number of images.
class Passes {
 public:
  Passes(const run::Run& config, const comm::World& world, const io::CheckpointReader& checkpoint)
      : batch_(config.validation_batch_size), session_(config, Use::Serving, world) {
    session_.allocate();
    session_.load(checkpoint);
    for (std::size_t unit = 0; unit < session_.units().size(); ++unit)
      floats_.pointers.push_back(
          &feeds_.emplace_back(batch_, session_.graph().input_shape.elements()));
  }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] const models::Graph& graph() const { return session_.graph(); }

  void run(std::span<const float> images, std::int64_t count, const TakeLogits& take) {
    for (FloatFeed& feed : feeds_) feed.give(images);
    run(floats_, count, take);
  }
  void run(const std::shared_ptr<const io::Dataset>& images, const TakeLogits& take) {
    run(session_.feeder().validation(images), images->size(), take);
  }

 private:
  void run(const Feeds& feeds, std::int64_t count, const TakeLogits& take) {
    (void)session_.evaluate(
        feeds, count, [](std::int64_t) { return false; }, take);
  }

  std::int64_t batch_;
  Session session_;
  std::deque<FloatFeed> feeds_;  ///< by unit
  Feeds floats_;                 ///< those
};

namespace {

/// The run of a checkpoint as a validation that reads none of its data.
run::Run recorded_run(const io::CheckpointReader& checkpoint, const ClassifierOptions& options) {
  const std::string where = (checkpoint.path() / "manifest.json").string();
  const std::optional<NetworkFacts> known = parse_facts(checkpoint.header().network, where);
  run::Patch recorded = options_for_use(recorded_in(checkpoint));
  if (!known || recorded.find("dataset") == nullptr)
    fail(ErrorKind::Checkpoint,
         "{}: does not say what its network reads: continue its run with this millrace, and take "
         "the checkpoint that this saves",
         checkpoint.path().string());
  if (const std::string& asked = options.precision; !asked.empty()) {
    const run::Field& field = *run::find_field("precision");
    impose(recorded, field.name,
           parse_value(field, asked, run::Origin::CommandLine, "ClassifierOptions::precision"));
    if (asked == "32.32") recorded.erase("half");
  }
  const run::DatasetFacts facts = {.validation_size = 1,
                                   .classes = known->classes,
                                   .image = known->image,
                                   .directory = {},
                                   .class_names = known->class_names,
                                   .preparation = known->preparation};
  return run::complete(run::validated_options(std::move(recorded)), facts, {}).run;
}

/// With its layout. Bytes of images become floats here, as callers have floats, too.
run::Run config_of(const io::CheckpointReader& checkpoint, const comm::World& world, int threads,
                   const ClassifierOptions& options) {
  run::Run config = recorded_run(checkpoint, options);
  config.data.image_type = DType::F32;
  config.data.loader_threads = options.threads;
  config.micro_batches = 2 * (std::ssize(options.splits) + world.size());
  config.layout.splits = options.splits;
  config.layout.ranks = world.size();
  if (options.splits.empty() && world.size() > 1) {
    config.layout.splits = {"auto"};
    config.layout.shards = world.size();
  }
  const models::Graph graph = network_of(config);
  return decided(graph, world, threads, std::move(config));
}

std::vector<float> prepared(const io::LooseImages& images, std::int64_t first, std::int64_t count,
                            int threads) {
  const auto elements = static_cast<std::size_t>(images.image_shape().elements());
  std::vector<float> floats(static_cast<std::size_t>(count) * elements);
  io::parallel_for(static_cast<std::size_t>(count), static_cast<unsigned>(threads),
                   [&](std::size_t i) {
                     const std::int64_t index = first + static_cast<std::int64_t>(i);
                     std::vector<std::uint8_t> bytes(elements);
                     PixelScaling scaling;
                     if (images.read(index, {}, bytes, scaling) == io::Sample::StandIn)
                       fail(ErrorKind::Data, "{}", images.problem(index));
                     io::normalise_bytes<float>(bytes, scaling, images.image_shape(),
                                                std::span(floats).subspan(i * elements, elements));
                   });
  return floats;
}

/// Images as the readers know them. Pixels of other kinds become RGB in `converted`.
std::vector<io::StoredImage> stored(std::span<const Image> images,
                                    std::deque<std::vector<std::uint8_t>>& converted) {
  std::vector<io::StoredImage> all;
  for (const auto& [bytes, width, height, channels] : images) {
    std::span<const std::uint8_t> rgb = bytes;
    if (width != 0) {
      const std::int64_t pixels = std::int64_t{width} * height;
      if (width < 1 || height < 1 || (channels != 1 && channels != 3 && channels != 4) ||
          std::ssize(bytes) != pixels * channels)
        fail(ErrorKind::Data,
             "image {}: has {} bytes for {} x {} pixels of {} channels: give width x height x "
             "channels bytes, of 1, 3 or 4 channels",
             all.size(), bytes.size(), width, height, channels);
      if (channels != 3) {
        std::vector<std::uint8_t>& own = converted.emplace_back();
        for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(channels))
          for (std::size_t c = 0; c < 3; ++c) own.push_back(bytes[at + (channels == 1 ? 0 : c)]);
        rgb = own;
      }
    }
    all.push_back({.bytes = std::as_bytes(rgb), .height = height, .width = width});
  }
  return all;
}

}  // namespace

struct Classifier::Parts {
  Parts(const comm::World& of, const io::CheckpointReader& checkpoint, const run::Run& with,
        std::vector<std::int64_t> batch_sizes)
      : world(of), config(with), place(checkpoint.path()) {
    std::ranges::sort(batch_sizes, std::greater<>());
    for (const std::int64_t batch : batch_sizes) {
      config.validation_batch_size = batch;
      passes.emplace_back(config, world, checkpoint);
    }
  }
  /// What may fail in one process before the network computes fails in all, which may go on.
  void prepare(const std::function<void()>& work);
  [[nodiscard]] std::vector<float> run(std::span<const float> images);
  [[nodiscard]] std::vector<float> logits_of(const io::LooseImages& images);
  [[nodiscard]] const run::Preparation& preparation() const;

  const comm::World& world;
  run::Run config;
  std::filesystem::path place;
  std::vector<std::string> notices;
  std::mutex turn;            ///< held while the network computes
  std::deque<Passes> passes;  ///< the largest first
};

void Classifier::Parts::prepare(const std::function<void()>& work) {
  if (world.size() == 1) return work();  // beside what other threads do
  const std::lock_guard lock(turn);
  const RuntimeCall call(world);
  FailTogether(world).run(work);
}

std::vector<float> Classifier::Parts::run(std::span<const float> images) {
  const std::lock_guard lock(turn);
  const RuntimeCall call(world);
  const auto elements = static_cast<std::size_t>(config.model.image.elements());
  const auto row = static_cast<std::size_t>(passes.front().graph().logits());
  std::vector<float> logits(images.size() / elements * row);
  bool computed = false;
  for (std::size_t done = 0; done * elements < images.size();) {
    const auto left = static_cast<std::int64_t>(images.size() / elements - done);
    const auto fitting =
        std::ranges::find_if(passes, [&](const Passes& p) { return 4 * left >= 3 * p.batch(); });
    Passes& pass = fitting == passes.end() ? passes.back() : *fitting;
    const std::int64_t count = left - (left < pass.batch() ? 0 : left % pass.batch());
    pass.run(images.subspan(done * elements), count,
             [&](std::int64_t first, std::span<const float> of_some) {
               const std::size_t at = (done + static_cast<std::size_t>(first)) * row;
               std::ranges::copy(of_some, std::span(logits).subspan(at).begin());
               computed = true;
             });
    done += static_cast<std::size_t>(count);
  }
  if (world.size() == 1) return logits;
  const auto bytes = std::as_writable_bytes(std::span(logits));
  const std::string shared = world.gather_everywhere(
      computed ? std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) : "");
  std::memcpy(bytes.data(), shared.data(), bytes.size());
  return logits;
}

std::vector<float> Classifier::Parts::logits_of(const io::LooseImages& images) {
  const std::int64_t size = images.size();
  const std::int64_t most = passes.front().batch();
  const auto begin = [&](std::launch when, std::int64_t first) {
    return std::async(when, [&, first] {
      return prepared(images, first, std::min(most, size - first), config.data.loader_threads);
    });
  };
  std::vector<float> logits;
  std::future<std::vector<float>> next = begin(std::launch::deferred, 0);
  for (std::int64_t first = 0; first < size; first += most) {
    std::vector<float> floats;
    prepare([&] { floats = next.get(); });
    if (first + most < size) next = begin(std::launch::async, first + most);
    const std::vector<float> own = run(floats);
    logits.insert(logits.end(), own.begin(), own.end());
  }
  return logits;
}

const run::Preparation& Classifier::Parts::preparation() const {
  if (!config.data.preparation)
    fail(ErrorKind::Checkpoint,
         "{}: does not say how its images are prepared: give floats, as the network saw them, or "
         "train with a Dataset that has preparation()",
         place.string());
  return *config.data.preparation;
}

Classifier::Classifier(const Runtime& runtime, const std::filesystem::path& checkpoint_or_run,
                       const ClassifierOptions& options) {
  const comm::World& world = world_of(runtime);
  const RuntimeCall call(world);
  const auto& sizes = options.batch_sizes;
  if (sizes.empty() || std::ranges::min(sizes) < 1 || options.threads < 1)
    fail(ErrorKind::Config,
         "a Classifier of {} threads, and of {} batch sizes from {} on: give at least 1 of each",
         options.threads, sizes.size(), sizes.empty() ? 0 : std::ranges::min(sizes));
  std::vector<std::string> notices;
  const io::CheckpointReader checkpoint = agreed_newest(world, checkpoint_or_run, notices);
  run::Run config;
  FailTogether(world).run(
      [&] { config = config_of(checkpoint, world, runtime.threads(), options); });
  parts_ = std::make_unique<Parts>(world, checkpoint, config, sizes);
  parts_->notices = std::move(notices);
}

void classify(const run::Run& config, const comm::World& world,
              const io::CheckpointReader& checkpoint,
              const std::shared_ptr<const io::Dataset>& images, const TakeLogits& take) {
  Passes(config, world, checkpoint).run(images, take);
}

Classifier::~Classifier() {
  const device::Turn turn;
  parts_.reset();
}

Shape Classifier::image_shape() const { return parts_->config.model.image; }
std::int64_t Classifier::classes() const { return parts_->passes.front().graph().logits(); }
const std::vector<std::string>& Classifier::class_names() const {
  return parts_->config.data.class_names;
}
const std::vector<std::string>& Classifier::notices() const { return parts_->notices; }

std::vector<float> Classifier::logits(std::span<const float> images) const {
  const std::int64_t elements = image_shape().elements();
  parts_->prepare([&] {
    if (std::ssize(images) % elements != 0)
      fail(ErrorKind::Data, "{} floats are no whole images: an image of {} has {}", images.size(),
           image_shape(), elements);
  });
  return parts_->run(images);
}

std::vector<float> Classifier::logits(std::span<const Image> images) const {
  if (images.empty()) return {};
  std::deque<std::vector<std::uint8_t>> converted;
  std::optional<io::ImagesInMemory> set;
  parts_->prepare([&] {
    set.emplace(stored(images, converted), parts_->preparation(), image_shape(), classes());
  });
  return parts_->logits_of(*set);
}

std::vector<float> Classifier::logits(std::span<const std::filesystem::path> files) const {
  if (files.empty()) return {};
  return parts_->logits_of(io::NamedImages({files.begin(), files.end()}, parts_->preparation(),
                                           image_shape(), classes()));
}

void Classifier::logits(const std::shared_ptr<const io::Dataset>& images,
                        const TakeLogits& take) const {
  if (!images) fail(ErrorKind::Config, "a Classifier was given no data set");
  require_matching(parts_->passes.front().graph(), *images);
  const std::lock_guard lock(parts_->turn);
  const RuntimeCall call(parts_->world);
  parts_->passes.front().run(images, take);
}

}  // namespace millrace::training
