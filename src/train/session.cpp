// SPDX-License-Identifier: Apache-2.0
#include "train/session.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "core/error.hpp"
#include "pipeline/stage_messages.hpp"
#include "train/setup.hpp"

namespace millrace::training {
namespace {

/// Micro-batches of validation between two checks for signals.
constexpr std::int64_t kGroup = 32;
/// Values per micro-batch in the sums of metrics.
constexpr std::size_t kSums = 4;

/// `updates` is the number of updates of the run with this one; Adam corrects its means by it.
ops::Update update_of(const run::OptimiserConfig& optimiser, double rate, std::int64_t updates) {
  const auto correction = [&](double decay) {
    return static_cast<float>(1.0 / (1.0 - std::pow(decay, static_cast<double>(updates))));
  };
  const double square = optimiser.decay_form == run::DecayForm::Square ? 2.0 : 1.0;
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

double seconds_awaiting_images(const pipeline::Executor& executor) {
  double seconds = 0.0;
  for (const pipeline::Piece& piece : executor.recording().pieces())
    if (piece.doing == pipeline::Doing::AwaitImages)
      seconds += 1e-9 * static_cast<double>(piece.end - piece.begin);
  return seconds;
}

/// The decay of a moving average at its update number `updates`. It rises at first, so that the
/// initial weights are soon forgotten.
double average_decay(const run::AveragingConfig& averaging, std::int64_t updates) {
  const auto n = static_cast<double>(updates);
  return std::min(averaging.ema_decay, (1.0 + n) / (10.0 + n));
}

/// Each image was counted by one rank.
void add_over_ranks(const comm::World& world, std::span<pipeline::ClassCounts> counts) {
  if (world.size() == 1 || counts.empty()) return;
  std::vector<double> sums;  // numbers of images, which a double holds exactly
  for (const pipeline::ClassCounts& own : counts)
    for (const std::int64_t count : {own.images, own.top1, own.top5})
      sums.push_back(static_cast<double>(count));
  world.add(sums);
  auto at = sums.begin();
  for (pipeline::ClassCounts& own : counts)
    for (std::int64_t* count : {&own.images, &own.top1, &own.top5})
      *count = static_cast<std::int64_t>(*at++);
}

}  // namespace

Session::Session(const run::Run& config, Use use, const comm::World& world)
    : Session(config, network_of(config), use, world) {}

Session::Session(const run::Run& config, models::Graph graph, Use use, const comm::World& world)
    : Session(config, std::move(graph), use, world, world.rank(),
              comm::make_transport(world, pipeline::device_memory())) {
  MILLRACE_ASSERT(config_.pipeline.ranks.ranks == world.size());
}

Session::Session(const run::Run& config, Use use, const comm::World& world, int rank)
    : Session(config, network_of(config), use, world, rank,
              comm::make_transport_alone(world, rank, pipeline::device_memory())) {}

Session::Session(const run::Run& config, models::Graph graph, Use use, const comm::World& world,
                 int rank, std::unique_ptr<comm::Transport> transport)
    : config_(config),
      world_(&world),
      rank_(rank),
      graph_(std::move(graph)),
      transport_(std::move(transport)),
      scaling_(first_scaling(config.loss_scaling)) {
  if (config_.pipeline.ranges.empty())
    config_.pipeline =
        pipeline::plan_of_one_stage(graph_, static_cast<std::int32_t>(config.micro_batches));
  if (evaluates(config_, use)) plan_evaluation(use);
  if (use == Use::Inference) plan_inference();
  make_stages(use);
  make_executors(use);
  const bool trains = use == Use::Training;
  tensors_.emplace(graph_, units_, trains ? std::optional(config_.optimiser.kind) : std::nullopt,
                   trains && config_.averaging.ema_decay > 0.0);
  const pipeline::Executor* const evaluating =
      groups_.empty() ? nullptr : groups_.front().executor.get();
  const bool infers = use == Use::Inference;
  feeder_.emplace(config_, graph_.input_shape, units_, infers ? evaluating : training_.get(),
                  infers ? nullptr : evaluating);
}

Session::~Session() {
  // A step that threw on its way may have queued a part of its work.
  if (goes_ahead_) device::fence(space_);
}

void Session::plan_evaluation(Use use) {
  std::vector<std::int64_t> sizes;
  if (use == Use::Serving) {
    for (std::int64_t size = world_->size() > 1 ? kGroup : 1; size > 0; size /= 2)
      sizes.push_back(size);
  } else if (const std::int64_t batches = validation_batches(config_, config_.data.validation_size);
             batches > 0) {
    const std::int64_t whole = std::min(kGroup, batches);
    sizes = {whole, batches % whole};
  }
  for (const std::int64_t size : sizes)
    if (size > 0)
      groups_.push_back(
          {pipeline::forward_plan(graph_, config_.pipeline, static_cast<std::int32_t>(size)),
           nullptr});
}

void Session::plan_inference() {
  const auto count = static_cast<std::int32_t>(config_.micro_batches);
  groups_.push_back({pipeline::forward_plan(graph_, config_.pipeline, count), nullptr});
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
  backend = ops::make_default_backend(caps, config_.allow_nondeterministic);
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
  const pipeline::StageOptions common = stage_options(config_, use);
  for (std::int32_t r = 0; r < plan.ranks.replicas; ++r) {
    for (std::int32_t s = 0; s < plan.schedule.stages; ++s) {
      if (plan.rank_of(r, s) != rank_) continue;
      const auto at = static_cast<std::size_t>(s);
      const auto unit = static_cast<std::size_t>(plan.unit(r, s));
      pipeline::StageOptions options = common;
      if (!config_.chosen_segments.empty())
        static_cast<pipeline::ProgramOptions&>(options) = with_chosen(
            static_cast<const pipeline::ProgramOptions&>(common), config_.chosen_segments.at(at));
      options.slots = slots[unit];
      options.evaluation_slots = evaluation_slots[unit];
      if (config_.optimiser.sharded && use == Use::Training) {
        options.parameters.shares = plan.ranks.replicas;
        options.parameters.share = r;
      }
      stages_.push_back(
          std::make_unique<pipeline::Stage>(graph_, plan.ranges[at], options, backend_of(s)));
      units_.push_back({r, s, stages_.back().get()});
    }
  }
}

void Session::make_executors(Use use) {
  if (use == Use::Training)
    training_ = std::make_unique<pipeline::Executor>(graph_, config_.pipeline, units_, rank_);
  if (training_ && config_.trace_detail == run::TraceDetail::Kernels) training_->prepare_timing();
  goes_ahead_ = training_ && training_->goes_ahead() && config_.trace.empty() &&
                !config_.check_exceptions && config_.optimiser.clip_norm <= 0.0;
  for (Group& group : groups_)
    group.executor = std::make_unique<pipeline::Executor>(graph_, group.plan, units_, rank_);
  const auto replicas = static_cast<std::size_t>(config_.pipeline.ranks.replicas);
  const auto most = std::max<std::int64_t>(config_.micro_batches, kGroup);
  sums_.resize(replicas * static_cast<std::size_t>(most) * kSums + 1);
}

std::int64_t Session::arena_bytes() const {
  std::int64_t bytes = feeder_->device_bytes() + (training_ ? training_->bytes() : 0);
  for (const auto& stage : stages_) bytes += device::aligned(stage->bytes());
  return bytes;
}

std::vector<partition::DeviceMemory> Session::device_memory() const {
  std::vector<partition::DeviceMemory> devices;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const std::int32_t device = config_.pipeline.schedule.device(units_[u].stage);
    const auto same = [&](const partition::DeviceMemory& d) {
      return config_.pipeline.is_joint() || (d.replica == units_[u].replica && d.device == device);
    };
    auto at = std::find_if(devices.begin(), devices.end(), same);
    if (at == devices.end())
      at = devices.insert(at, {.replica = units_[u].replica, .device = device});
    const pipeline::StageSize size = units_[u].state->size();
    at->state += size.state;
    at->activations += size.activations;
    at->kernels += device::aligned(size.total()) - size.state - size.activations;
    if (training_) at->sums += training_->bytes(u);
  }
  if (!devices.empty()) devices.front().images = feeder_->device_bytes();
  return devices;
}

std::int64_t Session::staging_bytes() const {
  if (!transport_->is_staged()) return 0;
  std::int64_t bytes = training_ ? training_->message_bytes() : 0;
  for (const Group& group : groups_) bytes += group.executor->message_bytes();
  return bytes;
}

std::int64_t Session::initial_bytes() const {
  std::int64_t largest = 0;
  for (const auto& stage : stages_) largest = std::max(largest, stage->parameters().largest());
  return largest * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t Session::pieces() const {
  return device::Arena::pieces(arena_bytes() - feeder_->device_bytes());
}

void Session::allocate(const std::function<void()>& placed) {
  arena_ = std::make_unique<device::Arena>(arena_bytes() - feeder_->device_bytes(), placed);
  std::int64_t offset = 0;
  for (const auto& stage : stages_) {
    stage->bind(arena_->at(offset));
    offset += device::aligned(stage->bytes());
  }
  if (training_) training_->bind(arena_->at(offset), *transport_, *world_);
  for (const Group& group : groups_) group.executor->bind(nullptr, *transport_, *world_);
}

void Session::initialise(std::uint64_t seed) {
  for (const auto& stage : stages_) stage->parameters().initialise(seed);
  packed_ = false;
}

void Session::load(const io::CheckpointReader& checkpoint) {
  tensors_->load(checkpoint);
  packed_ = false;
  if (training_) scaling_ = parse_scaling(checkpoint.header().scaling_state, config_.loss_scaling);
}

std::vector<float> Session::gradient(models::ParameterId id) const {
  std::vector<float> gradient = tensors_->gradient(id, *world_);
  for (float& value : gradient) value *= training_->gradient_scale();
  return gradient;
}

void Session::exchange_averages() {
  for (const auto& stage : stages_) stage->parameters().exchange_averages(space_);
}

void Session::run(pipeline::Executor& executor, const pipeline::StepSettings& settings,
                  const Feeds& feeds) {
  active_ = &executor;
  executor.run(space_, settings, feeds.pointers);
}

pipeline::MicroBatchMetrics Session::collect(const pipeline::Executor& executor,
                                             std::int64_t stand_ins) {
  const std::span<const pipeline::MicroBatchMetrics> own = executor.metrics();
  const std::span<double> sums(sums_.data(), own.size() * kSums + 1);
  for (std::size_t m = 0; m < own.size(); ++m) {
    double* to = &sums[m * kSums];
    to[0] = own[m].loss;
    to[1] = static_cast<double>(own[m].top1);
    to[2] = static_cast<double>(own[m].top5);
    to[3] = static_cast<double>(own[m].samples);
  }
  sums.back() = static_cast<double>(stand_ins);
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

pipeline::StepSettings Session::settings_of(std::int64_t iteration, double learning_rate,
                                            bool time_kernels) const {
  const auto numbers = [&](const ScalingState& scaling) {
    const std::int64_t updates = iteration + 1 - scaling.skipped;
    return pipeline::StepNumbers{.loss_scaling = static_cast<float>(scaling.scale),
                                 .average_decay = average_decay(config_.averaging, updates),
                                 .update = update_of(config_.optimiser, learning_rate, updates)};
  };
  pipeline::StepSettings settings;
  const auto set = [&](const pipeline::StepNumbers& to) {
    static_cast<pipeline::StepNumbers&>(settings) = to;
  };
  if (queued_.empty()) {
    set(numbers(scaling_));
  } else {
    set(numbers(after_step(config_.loss_scaling, scaling_, false)));
    settings.after_skip = numbers(after_step(config_.loss_scaling, scaling_, true));
  }
  settings.seed = config_.seed;
  settings.iteration = iteration;
  settings.clip_norm = config_.optimiser.clip_norm;
  settings.check_exceptions = config_.check_exceptions;
  settings.time_kernels = time_kernels;
  settings.loss = loss_ ? &loss_ : nullptr;
  return settings;
}

/// Of the executor's last step.
StepResult Session::result(const QueuedStep& step) {
  StepResult result;
  training_->exchange([&] { result.metrics = collect(*training_, step.stand_ins); });
  trained_stand_ins_ = stand_ins_;
  result.skipped = training_->skipped();
  scaling_ = after_step(config_.loss_scaling, scaling_, result.skipped);
  result.loader_seconds = step.loader_seconds;
  return result;
}

StepResult Session::step(const Feeds& feeds, std::int64_t iteration, double learning_rate,
                         bool time_kernels) {
  run(*training_, settings_of(iteration, learning_rate, time_kernels), feeds);
  return result({feeds.stand_ins(), seconds_awaiting_images(*training_)});
}

void Session::queue_step(const Feeds& feeds, std::int64_t iteration, double learning_rate,
                         bool time_kernels) {
  const pipeline::StepSettings settings = settings_of(iteration, learning_rate, time_kernels);
  active_ = training_.get();
  if (goes_ahead())
    training_->queue(space_, settings, feeds.pointers);
  else
    training_->run(space_, settings, feeds.pointers);
  queued_.push_back({feeds.stand_ins(), seconds_awaiting_images(*training_)});
}

StepResult Session::finish_step() {
  if (goes_ahead()) training_->finish();
  const QueuedStep step = queued_.front();
  queued_.pop_front();
  return result(step);
}

/// A skipped step leaves gradients that may have to be looked at, and bad images may end the run
/// with the weights that it has then.
bool Session::may_queue_ahead() const {
  return goes_ahead() && queued_.size() == 1 && scaling_.skipped_in_row == 0 &&
         queued_.front().stand_ins == trained_stand_ins_;
}

StepResult Session::infer(const Feeds& feeds) {
  pipeline::Executor& executor = *groups_.front().executor;
  pipeline::StepSettings settings;
  settings.weights_packed = std::exchange(packed_, true);
  run(executor, settings, feeds);
  StepResult result;
  executor.exchange([&] { result.metrics = collect(executor, feeds.stand_ins()); });
  result.loader_seconds = seconds_awaiting_images(executor);
  return result;
}

pipeline::MicroBatchMetrics Session::evaluate(const Feeds& feeds, std::int64_t images,
                                              const std::function<bool(std::int64_t)>& cancelled,
                                              const TakeLogits& take,
                                              std::span<pipeline::ClassCounts> by_class) {
  pipeline::MicroBatchMetrics total;
  const std::int64_t batches = validation_batches(config_, images);
  std::int64_t left = batches;
  pipeline::StepSettings settings;
  settings.by_class = by_class;
  settings.loss = loss_ ? &loss_ : nullptr;
  if (take)
    settings.logits = [&](std::int64_t at, std::span<const float> logits) {
      const std::int64_t batch = config_.validation_batch_size;
      const std::int64_t before = (batches - left) * config_.pipeline.ranks.replicas;
      const std::int64_t first = (before + at) * batch;
      const std::int64_t real = std::clamp<std::int64_t>(images - first, 0, batch);
      take(first, logits.first(logits.size() / static_cast<std::size_t>(batch) *
                               static_cast<std::size_t>(real)));
    };
  while (left > 0) {
    if (world_->maximum(cancelled(total.samples) ? 1 : 0) != 0) break;
    const auto group = std::ranges::find_if(
        groups_, [&](const Group& g) { return g.plan.schedule.micro_batches <= left; });
    MILLRACE_ASSERT(group != groups_.end());
    pipeline::Executor& executor = *group->executor;
    settings.weights_packed = !training_ && std::exchange(packed_, true);
    run(executor, settings, feeds);
    total += collect(executor, feeds.stand_ins());
    left -= executor.plan().schedule.micro_batches;
  }
  add_over_ranks(*world_, by_class);
  return total;
}

}  // namespace millrace::training
