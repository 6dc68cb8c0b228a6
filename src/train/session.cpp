// SPDX-License-Identifier: Apache-2.0
#include "train/session.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

namespace millrace::train {
namespace {

using Clock = std::chrono::steady_clock;

pipeline::StageOptions stage_options(const TrainConfig& config, Session::Use use) {
  pipeline::StageOptions options;
  options.batch = use == Session::Use::Training ? config.batch_size : 0;
  options.evaluation_batch =
      use == Session::Use::Evaluation || config.validation != ValidationMode::None
          ? config.validation_batch_size
          : 0;
  options.type = config.precision.activations;
  options.recompute = config.recompute == RecomputePolicy::Stage ? pipeline::Recompute::Stage
                                                                 : pipeline::Recompute::None;
  options.label_smoothing = static_cast<float>(config.label_smoothing);
  options.parameters.momentum =
      use == Session::Use::Training && config.optimiser.kind == OptimiserKind::Momentum;
  options.parameters.decay_excludes = config.optimiser.decay_excludes;
  return options;
}

}  // namespace

void Snapshot::add(io::TensorInfo info, const std::byte* device) {
  const auto bytes = static_cast<std::size_t>(info.bytes());
  if constexpr (!device::kHostAccessible) {
    data_.emplace_back(bytes);
    device::copy_to_host(data_.back().data(), device, info.bytes());
    device = data_.back().data();
  }
  tensors_.push_back({std::move(info), {device, bytes}});
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

Session::Session(const TrainConfig& config, Use use)
    : config_(config),
      graph_(models::build_model(config.model)),
      backend_(ops::make_default_backend()),
      stage_(std::make_unique<pipeline::Stage>(graph_, pipeline::whole(graph_),
                                               stage_options(config, use), *backend_)) {}

std::int64_t Session::library_bytes() const {
  // Measured, as no library tells.
  constexpr std::int64_t kFirstUse = 1'500'000;
  constexpr std::int64_t kPerKernel = 60'000;
  const auto kernels = std::count_if(
      graph_.parameters.begin(), graph_.parameters.end(),
      [](const models::Parameter& p) { return p.role == models::ParameterRole::Kernel; });
  return kFirstUse + kernels * kPerKernel;
}

std::int64_t Session::checkpoint_bytes() const {
  // What HDF5 takes for itself and for each data set of an open file; measured.
  constexpr std::int64_t kHdf5 = 4'000'000;
  constexpr std::int64_t kHdf5PerTensor = 32'000;
  const bool momentum = stage_->parameters().has_velocity();
  std::int64_t largest = 0;
  std::int64_t all = 0;
  std::int64_t tensors = 0;
  for (const models::Parameter& parameter : graph_.parameters) {
    const std::int64_t copies = parameter.trainable() && momentum ? 2 : 1;
    const auto bytes = parameter.elements() * static_cast<std::int64_t>(sizeof(float));
    largest = std::max(largest, bytes);
    all += copies * bytes;
    tensors += copies;
  }
  // A tensor is read back next to what HDF5 holds of it; devices that the host cannot read are
  // copied.
  return kHdf5 + tensors * kHdf5PerTensor + 2 * largest + (device::kHostAccessible ? 0 : all);
}

void Session::allocate() {
  arena_ = std::make_unique<device::Arena>(stage_->bytes());
  stage_->bind(arena_->at(0));
}

template <class F>
void Session::for_tensors(F&& f) {
  pipeline::Parameters& parameters = stage_->parameters();
  for (const models::ParameterId id : parameters.ids()) {
    const models::Parameter& parameter = graph_.parameter(id);
    const bool trainable = parameter.trainable();
    f(io::TensorInfo{parameter.name, trainable ? io::TensorRole::Parameter : io::TensorRole::State,
                     DType::F32, parameter.shape},
      parameters.value(id));
    if (!trainable || !parameters.has_velocity()) continue;
    f(io::TensorInfo{parameter.name + "/momentum", io::TensorRole::Slot, DType::F32,
                     parameter.shape},
      parameters.velocity(id));
  }
}

void Session::load(const io::CheckpointReader& checkpoint) {
  std::set<std::string> known;
  std::vector<std::byte> host;
  for_tensors([&](const io::TensorInfo& wanted, float* device) {
    const io::TensorInfo* found = checkpoint.find(wanted.name);
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
    host.resize(static_cast<std::size_t>(wanted.bytes()));
    checkpoint.read(wanted.name, host);
    device::copy_to_device(reinterpret_cast<std::byte*>(device), host.data(), wanted.bytes());
    known.insert(wanted.name);
  });
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    const bool needed = tensor.role != io::TensorRole::Slot;
    if (needed && !known.contains(tensor.name)) {
      fail(ErrorKind::Checkpoint,
           "{}: tensor {} belongs to no parameter of {}; it was written for {}",
           checkpoint.path().string(), tensor.name, graph_.name, checkpoint.header().model);
    }
  }
}

Snapshot Session::snapshot() {
  Snapshot result;
  for_tensors([&](const io::TensorInfo& info, const float* device) {
    result.add(info, reinterpret_cast<const std::byte*>(device));
  });
  return result;
}

StepResult Session::step(io::Loader& loader, double learning_rate) {
  pipeline::BoundProgram& program = stage_->training();
  const auto scaling = static_cast<float>(config_.loss_scaling);
  program.begin_step(space_, scaling);
  StepResult result;
  pipeline::RunContext context;
  for (std::int64_t m = 0; m < config_.micro_batches; ++m) {
    const Clock::time_point start = Clock::now();
    const io::Batch* batch = loader.next();
    result.loader_seconds += std::chrono::duration<double>(Clock::now() - start).count();
    MILLRACE_ASSERT(batch != nullptr && batch->count == config_.batch_size);
    context.first = m == 0;
    pipeline::Stage::load(program, context, batch->images, batch->labels);
    program.run(space_, pipeline::Phase::Forward, context);
    result.metrics += stage_->metrics(program, context);
    program.run(space_, pipeline::Phase::BackwardInput, context);
  }
  ops::SgdUpdate update;
  update.rate = static_cast<float>(learning_rate);
  update.momentum = static_cast<float>(config_.optimiser.momentum);
  update.weight_decay = static_cast<float>(config_.optimiser.weight_decay);
  update.gradient_scale = 1.0f / (scaling * static_cast<float>(config_.micro_batches));
  stage_->parameters().update(space_, update, config_.micro_batches);
  device::fence(space_);
  return result;
}

pipeline::MicroBatchMetrics Session::evaluate(io::Loader& loader,
                                              const std::function<bool()>& cancelled) {
  pipeline::BoundProgram& program = stage_->evaluation();
  program.begin_step(space_, 1.0f);
  pipeline::MicroBatchMetrics total;
  const pipeline::RunContext context;
  while (!cancelled()) {
    const io::Batch* batch = loader.next();
    if (batch == nullptr) break;
    pipeline::Stage::load(program, context, batch->images, batch->labels);
    program.run(space_, pipeline::Phase::Forward, context);
    total += stage_->metrics(program, context);
  }
  return total;
}

}  // namespace millrace::train
