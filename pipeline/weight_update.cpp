// SPDX-License-Identifier: Apache-2.0
#include "pipeline/weight_update.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"

namespace millrace::pipeline {
namespace {

/// Whether replicas divide the update of these parameters.
bool divided(const Parameters& parameters) { return parameters.share_borders().size() > 2; }

/// The sums of a unit, in the order in which they start: of each bucket of gradients, and of
/// running sums. If there is one bucket, the two are one where they can be. If the update is
/// divided, a replica adds up the gradients of the parameters that it updates, otherwise an equal
/// part.
std::vector<AllReduce> sums_of(const Parameters& parameters, const StageRun& run) {
  const std::int32_t replica = run.unit.replica;
  const auto equal = [&](Elements all) { return equal_parts(all, run.replicas); };
  const ReduceOptions& reduce = parameters.reduce();
  MILLRACE_ASSERT(reduce.replicas == run.replicas);
  const std::vector<BoundProgram::Bucket>& buckets = run.program->buckets();
  const bool one = buckets.size() == 1 && reduce.type == DType::F32 && !divided(parameters);
  if (one || run.replicas == 1)
    return {AllReduce(equal({0, parameters.accumulated_elements()}), {}, replica)};
  std::vector<AllReduce> sums;
  for (const BoundProgram::Bucket& bucket : buckets) {
    const std::vector<Elements> shares = parameters.gradients_of(bucket.first, bucket.last);
    const bool gathers = !divided(parameters);
    sums.emplace_back(gathers ? equal(shares.front()) : shares,
                      AllReduce::Options{.type = reduce.type, .gathers = gathers}, replica);
  }
  // Statistics are few, and in 16 bits they would stop moving.
  sums.emplace_back(equal({parameters.learning_elements(), parameters.accumulated_elements()}),
                    AllReduce::Options{}, replica);
  return sums;
}

std::optional<AllGather> gather_of_weights(const Parameters& parameters, const StageRun& run) {
  if (!divided(parameters)) return {};
  const std::span<const std::int64_t> shares = parameters.share_borders();
  Parts parts;
  for (std::size_t share = 0; share + 1 < shares.size(); ++share)
    parts.push_back({shares[share], shares[share + 1]});
  return AllGather(std::move(parts), run.unit.replica);
}

}  // namespace

WeightUpdate::WeightUpdate(const Graph& graph, const PipelinePlan& plan,
                           std::span<const StageRun> runs, Recording& recording, DeviceSpans& spans)
    : graph_(&graph), plan_(&plan), recording_(&recording), spans_(&spans) {
  if (!has_backward(plan.schedule)) return;
  squares_.resize(graph.parameters.size());
  for (const StageRun& run : runs) {
    const Parameters& parameters = run.unit.state->parameters();
    sums_.push_back({&run, sums_of(parameters, run), gather_of_weights(parameters, run)});
  }
  const std::span<const LocalEntry> entries = recording.entries();
  for (std::size_t entry = 0; entry < entries.size(); ++entry)
    if (entries[entry].action.kind == ActionKind::Update) sums_[entries[entry].unit].entry = entry;
}

std::int64_t WeightUpdate::bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t unit = 0; unit < sums_.size(); ++unit) bytes += WeightUpdate::bytes(unit);
  return bytes;
}

std::int64_t WeightUpdate::bytes(std::size_t unit) const {
  std::int64_t bytes = 0;
  if (unit < sums_.size())
    for (const AllReduce& part : sums_[unit].parts) bytes += part.bytes();
  return bytes;
}

std::vector<int> WeightUpdate::ranks_of(const Sums& sums) const {
  const RankMap& ranks = plan_->ranks;
  std::vector<int> rank_of;
  rank_of.reserve(static_cast<std::size_t>(ranks.replicas));
  for (std::int32_t r = 0; r < ranks.replicas; ++r)
    rank_of.push_back(plan_->rank_of(r, sums.run->unit.stage));
  return rank_of;
}

std::int64_t WeightUpdate::message_bytes() const {
  std::int64_t bytes = 0;
  for (const Sums& sums : sums_) {
    const std::vector<int> rank_of = ranks_of(sums);
    for (const AllReduce& part : sums.parts) bytes += part.message_bytes(rank_of);
    if (sums.weights)
      bytes += sums.weights->message_bytes(size_of(sums.parameters().masters().type), rank_of);
  }
  return bytes;
}

int WeightUpdate::tags() const {
  return plan_->schedule.stages * AllReduce::tags(plan_->ranks.replicas);
}

void WeightUpdate::bind(std::byte* memory, comm::Transport& transport, const comm::World& world,
                        int first_tag) {
  transport_ = &transport;
  world_ = &world;
  constexpr std::int64_t kFindings = 2 * device::kAlignment;
  findings_ = device::host_buffer(sums_.size() * kFindings);
  std::byte* findings = findings_.get();
  const RankMap& ranks = plan_->ranks;
  for (Sums& sums : sums_) {
    sums.findings = std::exchange(findings, findings + kFindings);
    const std::int32_t stage = sums.run->unit.stage;
    const std::vector<int> rank_of = ranks_of(sums);
    const Peers peers{&transport, rank_of, first_tag + stage * AllReduce::tags(ranks.replicas)};
    const Parameters& parameters = sums.parameters();
    for (AllReduce& part : sums.parts) {
      part.bind(parameters.accumulated().data(), memory, peers);
      memory += part.bytes();
    }
    // Weights come last, and so may use the tags of sums.
    if (!sums.weights) continue;
    const StoredValues masters = parameters.masters();
    sums.weights->bind(masters.data, size_of(masters.type), peers);
  }
}

void WeightUpdate::begin_step(const device::ExecutionSpace& space, const StepSettings& settings,
                              std::size_t turn, bool ahead) {
  space_ = &space;
  turn_ = turn;
  for (Sums& sums : sums_)
    for (AllReduce& part : sums.parts)
      if (transport_->receives_early()) part.expect();
  const ops::StepValues after_update = values_of(settings, settings);
  last_scale_ = after_update.update.gradient_scale;
  const ops::StepValues after_skip =
      ahead ? values_of(settings, settings.after_skip) : after_update;
  for (const Sums& sums : sums_) sums.parameters().begin_step(space, after_update, after_skip);
}

double WeightUpdate::gradient_scale(const StepNumbers& numbers) const {
  const std::int32_t total = plan_->schedule.micro_batches * plan_->ranks.replicas;
  return 1.0 / (static_cast<double>(numbers.loss_scaling) * static_cast<double>(total));
}

ops::StepValues WeightUpdate::values_of(const StepSettings& settings,
                                        const StepNumbers& numbers) const {
  ops::StepValues values{.update = numbers.update,
                         .loss_scaling = numbers.loss_scaling,
                         .average_decay = static_cast<float>(numbers.average_decay)};
  values.update.step = static_cast<std::uint64_t>(settings.iteration);
  values.update.gradient_scale = static_cast<float>(gradient_scale(numbers));
  return values;
}

void WeightUpdate::start(Sums& sums, std::size_t parts) {
  for (; sums.started < parts; ++sums.started) {
    sums.parts[sums.started].start(*space_);
    adding_ = true;
  }
}

void WeightUpdate::start_complete(std::size_t unit, std::size_t calls) {
  Sums& sums = sums_[unit];
  const std::vector<BoundProgram::Bucket>& buckets = sums.run->program->buckets();
  if (sums.run->replicas == 1) return;
  std::size_t complete = 0;
  while (complete < buckets.size() && buckets[complete].calls <= calls) ++complete;
  start(sums, complete);
}

void WeightUpdate::start(std::size_t unit) { start(sums_[unit], sums_[unit].parts.size()); }

bool WeightUpdate::advance(Sums& sums) {
  bool done = true;
  bool may_gather = true;
  for (AllReduce& part : std::span(sums.parts).first(sums.started)) {
    done = part.advance(*space_, may_gather) && done;
    may_gather = may_gather && part.lets_gather();
  }
  return done;
}

std::int32_t WeightUpdate::awaited(const Sums& sums) {
  for (const AllReduce& part : sums.parts)
    if (const std::int32_t replica = part.awaited(); replica >= 0) return replica;
  return -1;
}

void WeightUpdate::advance() {
  adding_ = false;
  for (Sums& sums : sums_)
    if (!advance(sums)) adding_ = true;
}

void WeightUpdate::await(std::size_t unit, const StepSettings& settings) {
  Sums& sums = sums_[unit];
  {
    const Recording::While waiting(*recording_, Doing::AwaitMessage);
    comm::Patience patience = world_->patience();
    for (; !advance(sums); patience.pause()) {
      recording_->await(awaited(sums));
      advance();
    }
  }
  sums.started = 0;
  for (const AllReduce& part : sums.parts) {
    const Elements& own = part.own();
    auto* const first =
        reinterpret_cast<std::byte*>(sums.parameters().accumulated().data() + own.first);
    sums.parameters().queue_finding(*space_, {first, DType::F32}, own.count(),
                                    finding(sums, turn_));
  }
  if (!settings.check_exceptions) return;
  device::fence(*space_);
  if (!Parameters::found_none(finding(sums, turn_))) {
    // The sum overflowed: all numbers that were added are finite.
    fail(ErrorKind::Numeric,
         "the sum over replicas of the gradient or statistic of {} is not finite, stage {}, "
         "update {}; use a smaller `loss-scaling`",
         graph_->parameter(*first_not_finite(sums_[unit])).name, sums_[unit].run->unit.stage,
         settings.iteration + 1);
  }
}

std::optional<models::ParameterId> WeightUpdate::first_not_finite(const Sums& sums) const {
  const Parameters& parameters = sums.parameters();
  float* const all = parameters.accumulated().data();
  for (const models::ParameterId id : parameters.ids()) {
    const models::Parameter& parameter = graph_->parameter(id);
    if (parameter.trainable() && !parameter.learns()) continue;
    const float* const sum =
        parameter.learns() ? parameters.gradient(id) : parameters.running_sum(id);
    for (const AllReduce& part : sums.parts) {
      // A part may begin and end inside a parameter.
      const std::int64_t begin = std::max(part.own().first, sum - all);
      const std::int64_t end = std::min(part.own().last, sum - all + parameter.elements());
      auto* const values = reinterpret_cast<std::byte*>(all + begin);
      if (begin < end && !parameters.finite(*space_, {values, DType::F32}, end - begin)) return id;
    }
  }
  return std::nullopt;
}

std::string WeightUpdate::first_not_finite() const {
  const auto none = static_cast<std::int64_t>(graph_->parameters.size());
  std::int64_t first = none;
  for (const Sums& sums : sums_)
    if (const auto id = first_not_finite(sums)) first = std::min(first, std::int64_t{id->value});
  first = -world_->maximum(-first);
  if (first != none) return graph_->parameters[static_cast<std::size_t>(first)].name;
  return norm_is_finite_ ? "" : "the norm of all gradients";
}

bool WeightUpdate::all_finite() const {
  transport_->flush();  // nobody asks for messages while all ranks agree
  device::fence(*space_);
  return found_finite(turn_);
}

bool WeightUpdate::found_finite(std::size_t turn) const {
  return std::ranges::all_of(
      sums_, [&](const Sums& sums) { return Parameters::found_none(finding(sums, turn)); });
}

bool WeightUpdate::finish(const StepSettings& settings) {
  recording_->enter(sums_.front().entry);
  {
    const Recording::While waiting(*recording_, Doing::AwaitAllRanks);
    norm_is_finite_ = true;
    if (world_->maximum(all_finite() ? 0 : 1) != 0) return false;
  }
  if (settings.clip_norm > 0.0 && !clip(settings)) return false;
  queue_if_finite();
  return true;
}

bool WeightUpdate::clip(const StepSettings& settings) {
  const double scale = gradient_scale(settings);
  const double norm = scale * norm_of_gradients();
  norm_is_finite_ = std::isfinite(norm);
  if (!norm_is_finite_ && settings.check_exceptions) {
    world_->fail_together();
    fail(ErrorKind::Numeric,
         "the norm of all gradients is not finite, though each gradient is, update {}; use a "
         "smaller `loss-scaling`",
         settings.iteration + 1);
  }
  if (!norm_is_finite_) return false;
  ops::StepValues values = values_of(settings, settings);
  const double clipping = norm > settings.clip_norm ? settings.clip_norm / norm : 1.0;
  values.update.gradient_scale = last_scale_ = static_cast<float>(scale * clipping);
  for (const Sums& sums : sums_) sums.parameters().begin_step(*space_, values);
  return true;
}

void WeightUpdate::queue_if_finite() {
  const auto on_each_stage = [&](const auto& work) {
    for (const Sums& sums : sums_) {
      recording_->enter(sums.entry);
      spans_->begin(*space_, sums.entry, Doing::Work);
      work(sums.parameters());
      spans_->end(*space_);
    }
    device::settle(*space_);
  };
  const std::int32_t total = plan_->schedule.micro_batches * plan_->ranks.replicas;
  on_each_stage([&](const Parameters& parameters) { parameters.update(*space_, total); });
  share_weights();
  if (sums_.front().parameters().averages())
    on_each_stage([&](const Parameters& parameters) { parameters.move_averages(*space_); });
}

/// Every gradient is squared by one replica, and all ranks add the squares in the order of the
/// parameters, so that the norm has the same bits everywhere and in every layout. The squares have
/// the range of a double or, on devices without 64-bit floats, of a float: there the norm is not
/// finite beyond 1.8e19, though all gradients are.
double WeightUpdate::norm_of_gradients() {
  std::fill(squares_.begin(), squares_.end(), 0.0);
  for (const Sums& sums : sums_) {
    recording_->enter(sums.entry);
    if (divided(sums.parameters()) || sums.run->unit.replica == 0)
      sums.parameters().square_gradients(*space_, squares_);
  }
  {
    const Recording::While waiting(*recording_, Doing::AwaitAllRanks);
    world_->add(squares_);
  }
  return std::sqrt(std::accumulate(squares_.begin(), squares_.end(), 0.0));
}

/// If the update is divided, each replica sends the weights that it updated to the others.
void WeightUpdate::share_weights() {
  for (Sums& sums : sums_)
    if (sums.weights) sums.weights->start();
  for (const Sums& sums : sums_) {
    if (!sums.weights) continue;
    recording_->enter(sums.entry);
    {
      const Recording::While waiting(*recording_, Doing::AwaitMessage);
      comm::Patience patience = world_->patience();
      for (; !sums.weights->done(); patience.pause()) recording_->await(sums.weights->awaited());
    }
    sums.parameters().refresh_copies(*space_);
  }
  device::settle(*space_);
}

}  // namespace millrace::pipeline
