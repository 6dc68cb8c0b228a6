// SPDX-License-Identifier: Apache-2.0
#include "train/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "core/crc32c.hpp"
#include "core/text.hpp"
#include "device/host_buffer.hpp"
#include "io/tensor_values.hpp"
#include "train/memory.hpp"
#include "train/network.hpp"
#include "train/warm_start.hpp"

namespace millrace::train {
namespace {

using Clock = std::chrono::steady_clock;

/// Micro-batches of validation between two checks for signals.
constexpr std::int64_t kGroup = 32;
/// Values per micro-batch in the sums of metrics.
constexpr std::size_t kSums = 4;

bool evaluates(const TrainConfig& config, Session::Use use) {
  return use == Session::Use::Evaluation || config.validation != ValidationMode::None;
}

pipeline::StageOptions stage_options(const TrainConfig& config, Session::Use use) {
  pipeline::StageOptions options;
  const pipeline::ProgramOptions program = training_program(config);
  options.batch = use == Session::Use::Training ? program.batch : 0;
  options.evaluation_batch = evaluates(config, use) ? config.validation_batch_size : 0;
  options.backward = splits_backward(config.pipeline.schedule) ? pipeline::Backward::Split
                                                               : pipeline::Backward::Joined;
  options.type = program.type;
  options.recompute = program.recompute;
  options.recompute_layers = program.recompute_layers;
  options.label_smoothing = {static_cast<float>(config.label_smoothing), config.smoothing};
  options.images = program.images;
  options.mixing = program.mixing;
  if (use == Session::Use::Training) {
    options.parameters.rule = config.optimiser.kind;
    options.parameters.clips = config.optimiser.clip_norm > 0.0;
  }
  options.parameters.decay_excludes = config.optimiser.decay_excludes;
  options.parameters.lars_skips = config.optimiser.lars_skips;
  options.parameters.precision = config.precision;
  options.parameters.stochastic_rounding = config.stochastic_rounding;
  options.parameters.seed = config.seed;
  return options;
}

/// `updates` is the number of updates of the run with this one; Adam corrects its means by it.
ops::Update update_of(const OptimiserConfig& optimiser, double rate, std::int64_t updates) {
  const auto correction = [&](double decay) {
    return static_cast<float>(1.0 / (1.0 - std::pow(decay, static_cast<double>(updates))));
  };
  const double square = optimiser.decay_form == DecayForm::Square ? 2.0 : 1.0;
  ops::Update update;
  update.rate = static_cast<float>(rate);
  update.momentum = static_cast<float>(optimiser.momentum);
  update.weight_decay = static_cast<float>(square * optimiser.weight_decay);
  update.mean_square_decay = static_cast<float>(optimiser.mean_square_decay);
  update.epsilon = static_cast<float>(optimiser.epsilon);
  update.trust = static_cast<float>(optimiser.trust);
  update.momentum_correction = correction(optimiser.momentum);
  update.mean_square_correction = correction(optimiser.mean_square_decay);
  return update;
}

/// Type in which images are copied to the device.
DType image_type(const TrainConfig& config) {
  return config.data.image_type.value_or(config.precision.activations);
}

/// Micro-batches per replica in a validation of `images`.
std::int64_t validation_batches(const TrainConfig& config, std::int64_t images) {
  const std::int64_t together = config.validation_batch_size * config.pipeline.ranks.replicas;
  return (images + together - 1) / together;
}

}  // namespace

Snapshot::Snapshot(std::vector<io::TensorInfo> infos) {
  std::int64_t elements = 0;
  for (const io::TensorInfo& info : infos) elements += info.elements();
  data_.resize(static_cast<std::size_t>(elements));
  const std::byte* at = reinterpret_cast<const std::byte*>(data_.data());
  for (io::TensorInfo& info : infos) {
    const auto bytes = static_cast<std::size_t>(info.bytes());
    tensors_.push_back({std::move(info), {at, bytes}});
    at += bytes;
  }
}

void Snapshot::take(std::span<const pipeline::StoredValues> values) {
  MILLRACE_ASSERT(values.size() == tensors_.size());
  std::vector<device::HostCopy> copies;
  float* to = data_.data();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const io::TensorInfo& info = tensors_[i].info;
    if (values[i].type == DType::F32)
      copies.push_back({reinterpret_cast<std::byte*>(to), values[i].data, info.bytes()});
    else
      pipeline::read_values(values[i], {to, static_cast<std::size_t>(info.elements())});
    to += info.elements();
  }
  device::copy_to_host(copies);
}

std::string first_not_finite(const Snapshot& snapshot) {
  for (const io::NamedTensor& tensor : snapshot.tensors()) {
    const auto* values = reinterpret_cast<const float*>(tensor.data.data());
    const bool finite = std::all_of(values, values + tensor.info.elements(),
                                    [](float x) { return std::isfinite(x); });
    if (!finite) return tensor.info.name;
  }
  return {};
}

Session::Session(const TrainConfig& config, Use use, const comm::World& world)
    : config_(config),
      world_(&world),
      graph_(network_of(config)),
      transport_(comm::make_transport(world, device::copy_within)),
      scaling_(first_scaling(config.loss_scaling)) {
  if (config_.pipeline.ranges.empty())
    config_.pipeline =
        pipeline::plan_of_one_stage(graph_, static_cast<std::int32_t>(config.micro_batches));
  MILLRACE_ASSERT(config_.pipeline.ranks.ranks == world.size());
  if (evaluates(config_, use)) {
    const auto add = [&](std::int64_t batches) {
      if (batches > 0)
        groups_.push_back(
            {pipeline::forward_plan(graph_, config_.pipeline, static_cast<std::int32_t>(batches)),
             nullptr});
    };
    const std::int64_t batches = validation_batches(config_, config_.data.validation_size);
    const std::int64_t whole = std::min(kGroup, batches);
    add(whole);
    if (whole > 0 && batches % whole != 0) add(batches % whole);
  }
  make_stages(use);
  make_executors(use);
}

/// Caps 2 s and 2 s + 1 belong to stage s; a single cap applies to all.
ops::Backend& Session::backend_of(std::int32_t stage) {
  std::unique_ptr<ops::Backend>& backend = backends_[stage];
  if (backend) return *backend;
  const std::vector<std::int64_t>& given = config_.scratch_caps;
  const std::size_t at = given.size() > 1 ? 2 * static_cast<std::size_t>(stage) : 0;
  ops::ScratchCaps caps;
  if (!given.empty())
    caps = {.convolution = given.at(at), .dense = given.at(given.size() > 1 ? at + 1 : 0)};
  backend = ops::make_default_backend(caps);
  return *backend;
}

void Session::make_stages(Use use) {
  const pipeline::PipelinePlan& plan = config_.pipeline;
  const std::vector<pipeline::Slots> slots = slots_of(graph_, plan);
  std::vector<pipeline::Slots> evaluation_slots(slots.size());
  for (const Group& group : groups_) {
    const std::vector<pipeline::Slots> needed = slots_of(graph_, group.plan);
    for (std::size_t s = 0; s < slots.size(); ++s)
      evaluation_slots[s].stash = std::max(evaluation_slots[s].stash, needed[s].stash);
  }
  pipeline::StageOptions options = stage_options(config_, use);
  for (std::int32_t r = 0; r < plan.ranks.replicas; ++r) {
    for (std::int32_t s = 0; s < plan.schedule.stages; ++s) {
      if (plan.ranks.rank_of(r, plan.schedule.device(s)) != world_->rank()) continue;
      const auto at = static_cast<std::size_t>(s);
      options.slots = slots[at];
      options.evaluation_slots = evaluation_slots[at];
      if (config_.optimiser.sharded && use == Use::Training) {
        options.parameters.shares = plan.ranks.replicas;
        options.parameters.share = r;
      }
      stages_.push_back(
          {r, s,
           std::make_unique<pipeline::Stage>(graph_, plan.ranges[at], options, backend_of(s))});
    }
  }
}

std::vector<pipeline::Unit> Session::units() const {
  std::vector<pipeline::Unit> units;
  for (const HeldStage& held : stages_) units.push_back({held.replica, held.stage, held.run.get()});
  return units;
}

void Session::make_executors(Use use) {
  const int rank = world_->rank();
  if (use == Use::Training)
    training_ = std::make_unique<pipeline::Executor>(graph_, config_.pipeline, units(), rank);
  for (Group& group : groups_)
    group.executor = std::make_unique<pipeline::Executor>(graph_, group.plan, units(), rank);
  const auto replicas = static_cast<std::size_t>(config_.pipeline.ranks.replicas);
  const auto most = std::max<std::int64_t>(config_.micro_batches, kGroup);
  sums_.resize(replicas * static_cast<std::size_t>(most) * kSums + 1);
}

/// Number of stages of this process that read images; 0 unless it holds the first device.
int Session::image_readers(const pipeline::Executor& executor) const {
  int readers = 0;
  for (std::size_t u = 0; u < stages_.size(); ++u) readers += executor.reads_images(u) ? 1 : 0;
  return readers;
}

/// Threads per stage that reads images: at most the number of images in the batches read ahead.
int Session::loader_threads(const pipeline::Executor& executor) const {
  const std::int64_t batch = std::max(config_.batch_size, config_.validation_batch_size);
  const std::int64_t images = (io::LoaderOptions{}.batches_ahead + 1) * batch;
  const auto useful = static_cast<int>(std::min<std::int64_t>(config_.data.loader_threads, images));
  if (config_.data.max_cpus == 0) return useful;
  const int most = config_.data.max_cpus / std::max(1, image_readers(executor));
  return std::min(useful, std::max(1, most));
}

int Session::reading_threads() const {
  const pipeline::Executor& executor = training_ ? *training_ : *groups_.front().executor;
  return image_readers(executor) * loader_threads(executor);
}

/// Bytes of a micro-batch of images that stays on the device.
std::int64_t Session::resident_bytes() const {
  if (!training_ || config_.data.source != ImageSource::Device || image_readers(*training_) == 0)
    return 0;
  return device::aligned(config_.batch_size * graph_.input_shape.elements() *
                         size_of(image_type(config_)));
}

std::int64_t Session::arena_bytes() const {
  std::int64_t bytes = resident_bytes() + (training_ ? training_->bytes() : 0);
  for (const HeldStage& held : stages_) bytes += device::aligned(held.run->bytes());
  return bytes;
}

std::int64_t Session::library_bytes() const {
  // Measured, because no library reports it.
  constexpr std::int64_t kFirstUse = 1'500'000;
  constexpr std::int64_t kPerKernel = 60'000;
  std::int64_t kernels = 0;
  std::int64_t own = 0;
  for (const HeldStage& held : stages_)
    for (const models::ParameterId id : held.run->parameters().ids())
      kernels += graph_.parameter(id).role == models::ParameterRole::Kernel ? 1 : 0;
  for (const auto& [stage, backend] : backends_) own = std::max(own, backend->own_bytes());
  return kFirstUse + own + kernels * kPerKernel;
}

std::int64_t Session::initial_bytes() const {
  std::int64_t largest = 0;
  for (const HeldStage& held : stages_)
    largest = std::max(largest, held.run->parameters().largest());
  return largest * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t Session::loader_bytes(std::int64_t validation_images) const {
  std::int64_t image = graph_.input_shape.elements() * size_of(image_type(config_));
  if (image_type(config_) == DType::U8) image += static_cast<std::int64_t>(sizeof(PixelScaling));
  if (config_.data.mixing.on()) image += static_cast<std::int64_t>(sizeof(ImageMixing));
  const std::int64_t batches = io::LoaderOptions{}.batches_ahead + 1;
  std::int64_t images = 0;
  for (std::size_t u = 0; u < stages_.size(); ++u) {
    if (training_ && training_->reads_images(u) && config_.data.source != ImageSource::Device)
      images += batches * config_.batch_size;
    if (!groups_.empty() && groups_[0].executor->reads_images(u))
      images += std::min(batches * config_.validation_batch_size, validation_images);
  }
  return images * image;
}

std::int64_t Session::checkpoint_bytes() const {
  std::int64_t largest = 0;
  std::int64_t copied = 0;
  std::int64_t tensors = 0;
  for_tensors(Replicas::First, [&](const io::TensorInfo& info, const pipeline::StoredValues&) {
    largest = std::max(largest, info.bytes());
    ++tensors;
    copied += info.bytes();
  });
  // A tensor is read back next to HDF5's copy of it.
  return open_checkpoint_bytes(tensors) + 2 * largest + copied;
}

void Session::allocate() {
  arena_ = std::make_unique<device::Arena>(arena_bytes() - resident_bytes());
  std::int64_t offset = 0;
  for (const HeldStage& held : stages_) {
    held.run->bind(arena_->at(offset));
    offset += device::aligned(held.run->bytes());
  }
  if (training_) training_->bind(arena_->at(offset), *transport_, *world_);
  for (const Group& group : groups_) group.executor->bind(nullptr, *transport_, *world_);
}

void Session::initialise(std::uint64_t seed) {
  for (const HeldStage& held : stages_) held.run->parameters().initialise(seed);
}

namespace {

io::TensorInfo info_of(const models::Parameter& parameter) {
  return {parameter.name, parameter.trainable() ? io::TensorRole::Parameter : io::TensorRole::State,
          DType::F32, parameter.shape};
}

io::TensorInfo info_of(const models::Parameter& parameter, const UpdateSlot& slot) {
  return {fmt::format("{}/{}", parameter.name, slot.name), io::TensorRole::Slot, DType::F32,
          parameter.shape};
}

}  // namespace

template <class F>
void Session::for_slots(const HeldStage& held, models::ParameterId id, F&& f) const {
  const pipeline::Parameters& parameters = held.run->parameters();
  if (!parameters.owns(id)) return;
  const models::Parameter& parameter = graph_.parameter(id);
  for (std::size_t i = 0; i < parameters.slots().size(); ++i)
    f(info_of(parameter, parameters.slots()[i]), parameters.stored_slot(i, id));
}

template <class F>
void Session::for_tensors(Replicas replicas, F&& f) const {
  for (const HeldStage& held : stages_) {
    const bool answers = replicas == Replicas::All || held.replica == 0;
    const pipeline::Parameters& parameters = held.run->parameters();
    // Replicas hold the same tensors, except for sharded slots.
    if (!answers && parameters.share_borders().size() == 2) continue;
    for (const models::ParameterId id : parameters.ids()) {
      const models::Parameter& parameter = graph_.parameter(id);
      if (answers) f(info_of(parameter), parameters.stored(id));
      if (parameter.learns()) for_slots(held, id, f);
    }
  }
}

namespace {

std::string_view slot_name(const io::TensorInfo& slot) {
  return std::string_view(slot.name).substr(slot.name.rfind('/') + 1);
}

/// Names of the slots in a checkpoint.
std::string describe_slots(const io::CheckpointReader& checkpoint) {
  std::set<std::string_view> names;
  for (const io::TensorInfo& tensor : checkpoint.tensors())
    if (tensor.role == io::TensorRole::Slot) names.insert(slot_name(tensor));
  return names.empty() ? "none" : join(std::vector(names.begin(), names.end()), ", ");
}

void require_slot_of_rule(const io::CheckpointReader& checkpoint, const io::TensorInfo& slot,
                          UpdateRule rule) {
  for (const UpdateSlot& kept : update_slots(rule))
    if (kept.name == slot_name(slot)) return;
  fail(ErrorKind::Checkpoint,
       "{}: holds the slot {}, which {} does not keep; its slots: {}. Continue with the "
       "--optimiser that wrote it",
       checkpoint.path().string(), slot.name, millrace::name_of(rule), describe_slots(checkpoint));
}

}  // namespace

void Session::load_tensor(const io::CheckpointReader& checkpoint, const io::TensorInfo& wanted,
                          const pipeline::StoredValues& values) const {
  const io::TensorInfo* found = checkpoint.find(wanted.name);
  if (found == nullptr && wanted.role == io::TensorRole::Slot) {
    fail(ErrorKind::Checkpoint,
         "{}: has no slot {}, which {} needs; its slots: {}. Continue with the --optimiser that "
         "wrote it",
         checkpoint.path().string(), wanted.name, millrace::name_of(config_.optimiser.kind),
         describe_slots(checkpoint));
  }
  if (found == nullptr) {
    fail(ErrorKind::Checkpoint, "{}: has no tensor {}, which {} needs; it was written for {}",
         checkpoint.path().string(), wanted.name, graph_.name, checkpoint.header().model);
  }
  if (found->shape != wanted.shape || found->type != wanted.type) {
    fail(ErrorKind::Checkpoint,
         "{}: tensor {} has {} elements of {}, but {} needs {} of {}; it was written for {}",
         checkpoint.path().string(), wanted.name, found->elements(), name_of(found->type),
         graph_.name, wanted.elements(), name_of(wanted.type), checkpoint.header().model);
  }
  std::vector<float> host(static_cast<std::size_t>(wanted.elements()));
  checkpoint.read(wanted.name, std::as_writable_bytes(std::span(host)));
  if (const std::string bad = io::bad_value(host, wanted.shape, io::value_rule(wanted.name));
      !bad.empty()) {
    fail(ErrorKind::Checkpoint,
         "{}: {}{}: no network can compute with it: use another checkpoint, or import the weights "
         "again",
         checkpoint.path().string(), wanted.name, bad);
  }
  pipeline::write_values(values, host);
}

/// Updates the copies that kernels read from newly loaded masters.
void Session::refresh_copies() const {
  for (const HeldStage& held : stages_) held.run->parameters().refresh_copies(space_);
  device::fence(space_);
}

void Session::begin_with(const io::CheckpointReader& checkpoint,
                         std::span<const std::string> fresh) {
  const std::set<std::string> taken =
      tensors_to_take(graph_, checkpoint.tensors(), fresh, checkpoint.path().string());
  for_tensors(Replicas::All,
              [&](const io::TensorInfo& wanted, const pipeline::StoredValues& values) {
                if (taken.contains(wanted.name)) load_tensor(checkpoint, wanted, values);
              });
  refresh_copies();
}

void Session::load(const io::CheckpointReader& checkpoint) {
  for_tensors(Replicas::All,
              [&](const io::TensorInfo& wanted, const pipeline::StoredValues& values) {
                load_tensor(checkpoint, wanted, values);
              });
  refresh_copies();
  if (training_) scaling_ = parse_scaling(checkpoint.header().scaling_state, config_.loss_scaling);
  std::set<std::string_view> known;
  for (const models::Parameter& parameter : graph_.parameters) known.insert(parameter.name);
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.role == io::TensorRole::Slot) {
      if (training_) require_slot_of_rule(checkpoint, tensor, config_.optimiser.kind);
      continue;
    }
    if (known.contains(tensor.name)) continue;
    fail(ErrorKind::Checkpoint,
         "{}: tensor {} belongs to no parameter of {}; it was written for {}",
         checkpoint.path().string(), tensor.name, graph_.name, checkpoint.header().model);
  }
}

Snapshot Session::make_snapshot() const {
  std::vector<io::TensorInfo> infos;
  for_tensors(Replicas::First, [&](const io::TensorInfo& info, const pipeline::StoredValues&) {
    infos.push_back(info);
  });
  return Snapshot(std::move(infos));
}

void Session::take(Snapshot& snapshot) const {
  std::vector<pipeline::StoredValues> all;
  for_tensors(Replicas::First, [&](const io::TensorInfo&, const pipeline::StoredValues& values) {
    all.push_back(values);
  });
  snapshot.take(all);
}

Snapshot Session::snapshot() const {
  Snapshot result = make_snapshot();
  take(result);
  return result;
}

std::vector<io::TensorInfo> Session::checkpoint_tensors() const {
  std::vector<io::TensorInfo> all;
  for (const models::Parameter& parameter : graph_.parameters) {
    all.push_back(info_of(parameter));
    if (!parameter.learns()) continue;
    for (const UpdateSlot& slot : update_slots(config_.optimiser.kind))
      all.push_back(info_of(parameter, slot));
  }
  return all;
}

void Session::check_replicas() {
  const pipeline::PipelinePlan& plan = config_.pipeline;
  const auto stages = static_cast<std::size_t>(plan.schedule.stages);
  const auto replicas = static_cast<std::size_t>(plan.ranks.replicas);
  std::vector<double> sums(stages * replicas);
  std::vector<std::byte> host;
  for (const HeldStage& held : stages_) {
    const std::span<const std::byte> trained = held.run->parameters().trained();
    host.resize(trained.size_bytes());
    device::copy_to_host(host.data(), trained.data(),
                         static_cast<std::int64_t>(trained.size_bytes()));
    sums[static_cast<std::size_t>(held.stage) * replicas + static_cast<std::size_t>(held.replica)] =
        static_cast<double>(crc32c(host));
  }
  world_->add(sums);
  for (std::size_t s = 0; s < stages; ++s)
    for (std::size_t r = 1; r < replicas; ++r)
      if (sums[s * replicas + r] != sums[s * replicas])
        fail(ErrorKind::Peer,
             "stage {}: replica {} has different weights than replica 0: a device or a link "
             "between them computes or carries wrong bits",
             s, r);
}

/// Reads the first micro-batch of the run, for every replica.
io::ResidentImages Session::make_resident(const std::shared_ptr<const io::Dataset>& dataset,
                                          io::LoaderOptions options) {
  options.first_position = 0;
  options.threads = 0;
  options.content = io::Content::Images;
  options.mixing = {};
  io::Loader loader(dataset, io::SampleOrder::shuffled(config_.seed, dataset->size()), options);
  const io::Batch& batch = *loader.next();
  resident_images_ = std::make_unique<device::Arena>(resident_bytes());
  device::copy_to_device(resident_images_->at(0), batch.images.data(), std::ssize(batch.images));
  return {.images = resident_images_->at(0),
          .scaling = batch.scaling.empty() ? PixelScaling{} : batch.scaling.front()};
}

Feeds Session::feeds(const pipeline::Executor& executor,
                     const std::shared_ptr<const io::Dataset>& dataset,
                     const io::SampleOrder& order, const io::LoaderOptions& options) const {
  Feeds result;
  for (std::size_t u = 0; u < stages_.size(); ++u) {
    const bool images = executor.reads_images(u);
    const bool labels = executor.reads_labels(u);
    result.loaders.emplace_back();
    result.pointers.push_back(nullptr);
    if (!images && !labels) continue;
    io::LoaderOptions own = options;
    own.replicas = config_.pipeline.ranks.replicas;
    own.replica = stages_[u].replica;
    own.content = images && labels ? io::Content::Both
                  : images         ? io::Content::Images
                                   : io::Content::Labels;
    // Labels are available at once.
    own.threads = images && !own.resident ? loader_threads(executor) : 0;
    own.memory = device::host_buffer;
    result.loaders.back() = std::make_unique<io::Loader>(dataset, order, own);
    result.pointers.back() = result.loaders.back().get();
  }
  return result;
}

Feeds Session::training_feeds(const std::shared_ptr<const io::Dataset>& dataset,
                              std::int64_t first_position) {
  io::LoaderOptions options;
  options.batch_size = config_.batch_size;
  options.type = image_type(config_);
  options.seed = config_.seed;
  options.augment = config_.data.augment;
  options.mixing = config_.data.mixing;
  options.first_position = first_position;
  if (resident_bytes() > 0) options.resident = make_resident(dataset, options);
  return feeds(*training_, dataset, io::SampleOrder::shuffled(config_.seed, dataset->size()),
               options);
}

Feeds Session::validation_feeds(const std::shared_ptr<const io::Dataset>& dataset) const {
  io::LoaderOptions options;
  options.batch_size = config_.validation_batch_size;
  options.type = image_type(config_);
  options.seed = config_.seed;
  options.end_position = dataset->size();
  options.batches = validation_batches(config_, dataset->size());
  return feeds(*groups_.front().executor, dataset, io::SampleOrder::sequential(dataset->size()),
               options);
}

pipeline::Executor& Session::run(pipeline::Executor& executor,
                                 const pipeline::StepSettings& settings, const Feeds& feeds) {
  active_ = &executor;
  executor.run(space_, settings, feeds.pointers);
  return executor;
}

std::int64_t Feeds::stand_ins() const {
  std::int64_t sum = 0;
  for (const auto& loader : loaders) sum += loader ? loader->stand_ins() : 0;
  return sum;
}

pipeline::MicroBatchMetrics Session::collect(const pipeline::Executor& executor,
                                             const Feeds& feeds) {
  const std::span<const pipeline::MicroBatchMetrics> own = executor.metrics();
  const std::span<double> sums(sums_.data(), own.size() * kSums + 1);
  for (std::size_t m = 0; m < own.size(); ++m) {
    double* to = &sums[m * kSums];
    to[0] = own[m].loss;
    to[1] = static_cast<double>(own[m].top1);
    to[2] = static_cast<double>(own[m].top5);
    to[3] = static_cast<double>(own[m].samples);
  }
  sums.back() = static_cast<double>(feeds.stand_ins());
  world_->add(sums);
  stand_ins_ = static_cast<std::int64_t>(sums.back());
  pipeline::MicroBatchMetrics total;
  for (std::size_t m = 0; m < own.size(); ++m) {
    const double* from = &sums[m * kSums];
    total += {from[0], static_cast<std::int64_t>(from[1]), static_cast<std::int64_t>(from[2]),
              static_cast<std::int64_t>(from[3])};
  }
  return total;
}

StepResult Session::step(const Feeds& feeds, std::int64_t iteration, double learning_rate) {
  pipeline::StepSettings settings;
  settings.seed = config_.seed;
  settings.iteration = iteration;
  settings.loss_scaling = static_cast<float>(scaling_.scale);
  settings.update = update_of(config_.optimiser, learning_rate, iteration + 1 - scaling_.skipped);
  settings.clip_norm = config_.optimiser.clip_norm;
  settings.check_exceptions = config_.check_exceptions;
  StepResult result;
  result.metrics = collect(run(*training_, settings, feeds), feeds);
  result.skipped = training_->skipped();
  scaling_ = after_step(config_.loss_scaling, scaling_, result.skipped);
  for (const pipeline::ActionRecord& record : training_->records())
    result.loader_seconds += 1e-9 * static_cast<double>(record.load_wait);
  return result;
}

pipeline::MicroBatchMetrics Session::evaluate(const Feeds& feeds, std::int64_t images,
                                              const std::function<bool(std::int64_t)>& cancelled) {
  pipeline::MicroBatchMetrics total;
  std::int64_t left = validation_batches(config_, images);
  while (left > 0) {
    if (world_->maximum(cancelled(total.samples) ? 1 : 0) != 0) break;
    const std::int64_t whole = groups_.front().plan.schedule.micro_batches;
    pipeline::Executor& executor =
        left >= whole ? *groups_.front().executor : *groups_.back().executor;
    total += collect(run(executor, {}, feeds), feeds);
    left -= executor.plan().schedule.micro_batches;
  }
  return total;
}

}  // namespace millrace::train
