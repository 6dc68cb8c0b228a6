// SPDX-License-Identifier: Apache-2.0
#include "train/stage_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/compat.hpp"
#include "io/hdf5.hpp"
#include "io/tensor_checks.hpp"
#include "train/memory.hpp"
#include "train/warm_start.hpp"

namespace millrace::training {
namespace {

io::TensorInfo info_of(const models::Parameter& parameter) {
  return {parameter.name, parameter.trainable() ? io::TensorRole::Parameter : io::TensorRole::State,
          DType::F32, parameter.shape};
}

io::TensorInfo info_of(const models::Parameter& parameter, const UpdateSlot& slot) {
  return {fmt::format("{}/{}", parameter.name, slot.name), io::TensorRole::Slot, DType::F32,
          parameter.shape};
}

/// The name under which checkpoints have the moving average of a parameter or running statistic.
constexpr std::string_view kAverage = "ema";

/// Whether a parameter has a moving average: not if it is frozen.
bool is_averaged(const models::Parameter& parameter) {
  return parameter.learns() || !parameter.trainable();
}

io::TensorInfo average_of(const models::Parameter& parameter) {
  return {fmt::format("{}/{}", parameter.name, kAverage), io::TensorRole::Slot, DType::F32,
          parameter.shape};
}

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
       "`optimiser` that wrote it",
       checkpoint.path().string(), slot.name, millrace::name_of(rule), describe_slots(checkpoint));
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

StageTensors::StageTensors(const models::Graph& graph, std::vector<pipeline::LocalStage> units,
                           std::optional<UpdateRule> rule, bool averages)
    : graph_(&graph), units_(std::move(units)), rule_(rule), averages_(averages) {}

void StageTensors::visit_slots(const pipeline::Parameters& parameters, models::ParameterId id,
                               const Visit& f) const {
  if (!parameters.owns(id)) return;
  const models::Parameter& parameter = graph_->parameter(id);
  for (std::size_t i = 0; i < parameters.slots().size(); ++i)
    f(info_of(parameter, parameters.slots()[i]), parameters.stored_slot(i, id));
}

void StageTensors::visit(Replicas replicas, const Visit& f) const {
  for (const pipeline::LocalStage& unit : units_) {
    const bool answers = replicas == Replicas::All || unit.replica == 0;
    const pipeline::Parameters& parameters = unit.state->parameters();
    if (!answers && parameters.share_borders().size() == 2) continue;  // its slots are not divided
    for (const models::ParameterId id : parameters.ids()) {
      const models::Parameter& parameter = graph_->parameter(id);
      if (answers) f(info_of(parameter), parameters.stored(id));
      if (answers && averages_ && is_averaged(parameter))
        f(average_of(parameter), parameters.stored_average(id));
      if (parameter.learns()) visit_slots(parameters, id, f);
    }
  }
}

void StageTensors::load_tensor(const io::CheckpointReader& checkpoint, const io::TensorInfo& wanted,
                               const pipeline::StoredValues& values) const {
  const io::TensorInfo* found = checkpoint.find(wanted.name);
  if (found == nullptr && wanted.role == io::TensorRole::Slot) {
    fail(ErrorKind::Checkpoint,
         "{}: has no slot {}, which {} needs; its slots: {}. Continue with the `optimiser` that "
         "wrote it",
         checkpoint.path().string(), wanted.name, millrace::name_of(rule_.value()),
         describe_slots(checkpoint));
  }
  if (found == nullptr) {
    fail(ErrorKind::Checkpoint, "{}: has no tensor {}, which {} needs; it was written for {}",
         checkpoint.path().string(), wanted.name, graph_->name, checkpoint.header().model);
  }
  if (found->shape != wanted.shape || found->type != wanted.type) {
    fail(ErrorKind::Checkpoint,
         "{}: tensor {} has {} elements of {}, but {} needs {} of {}; it was written for {}",
         checkpoint.path().string(), wanted.name, found->elements(), name_of(found->type),
         graph_->name, wanted.elements(), name_of(wanted.type), checkpoint.header().model);
  }
  std::vector<float> host(static_cast<std::size_t>(wanted.elements()));
  checkpoint.read(wanted.name, std::as_writable_bytes(std::span(host)));
  if (const std::string bad = io::bad_value(host, wanted.shape, wanted.name); !bad.empty()) {
    fail(ErrorKind::Checkpoint,
         "{}: {}{}: no network can compute with it: use another checkpoint, or import the weights "
         "again",
         checkpoint.path().string(), wanted.name, bad);
  }
  pipeline::write_values(values, host);
}

/// Updates the copies that kernels read from newly loaded masters.
void StageTensors::refresh_copies() const {
  const device::ExecutionSpace space;
  for (const pipeline::LocalStage& unit : units_) unit.state->parameters().refresh_copies(space);
  device::fence(space);
}

/// Moving averages begin with the current values.
void StageTensors::begin_averages() const {
  if (!averages_) return;
  const device::ExecutionSpace space;
  for (const pipeline::LocalStage& unit : units_) unit.state->parameters().begin_averages(space);
  device::fence(space);
}

void StageTensors::begin_with(const io::CheckpointReader& checkpoint,
                              std::span<const std::string> fresh) const {
  const std::set<std::string> taken =
      tensors_to_take(*graph_, checkpoint.tensors(), fresh, checkpoint.path().string());
  visit(Replicas::All, [&](const io::TensorInfo& wanted, const pipeline::StoredValues& values) {
    if (taken.contains(wanted.name)) load_tensor(checkpoint, wanted, values);
  });
  refresh_copies();
  begin_averages();
}

void StageTensors::begin_with(const io::NetworkFile& file, const std::filesystem::path& path,
                              std::span<const std::string> fresh) const {
  std::vector<io::TensorInfo> infos;
  std::map<std::string, models::ParameterId> ids;
  for (const models::Parameter& parameter : file.graph.parameters) {
    ids[parameter.name] = {static_cast<std::int32_t>(infos.size())};
    infos.push_back(info_of(parameter));
  }
  const std::set<std::string> taken = tensors_to_take(*graph_, infos, fresh, path.string());
  visit(Replicas::All, [&](const io::TensorInfo& wanted, const pipeline::StoredValues& values) {
    if (!taken.contains(wanted.name)) return;
    const std::vector<float> host = file.values(ids.at(wanted.name));
    if (const std::string bad = io::bad_value(host, wanted.shape, wanted.name); !bad.empty())
      fail(ErrorKind::Data,
           "{}: {}{}: no network can compute with it: export the network again, or give "
           "`init-fresh` {}",
           path.string(), wanted.name, bad, wanted.name);
    pipeline::write_values(values, host);
  });
  refresh_copies();
  begin_averages();
}

void StageTensors::load(const io::CheckpointReader& checkpoint) const {
  visit(Replicas::All, [&](const io::TensorInfo& wanted, const pipeline::StoredValues& values) {
    load_tensor(checkpoint, wanted, values);
  });
  refresh_copies();
  require_known(checkpoint);
}

/// All tensors of the checkpoint must have a place here.
void StageTensors::require_known(const io::CheckpointReader& checkpoint) const {
  std::set<std::string_view> known;
  for (const models::Parameter& parameter : graph_->parameters) known.insert(parameter.name);
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.role == io::TensorRole::Slot) {
      const bool average = averages_ && slot_name(tensor) == kAverage;
      if (rule_ && !average) require_slot_of_rule(checkpoint, tensor, *rule_);
      continue;
    }
    if (known.contains(tensor.name)) continue;
    fail(ErrorKind::Checkpoint,
         "{}: tensor {} belongs to no parameter of {}; it was written for {}",
         checkpoint.path().string(), tensor.name, graph_->name, checkpoint.header().model);
  }
}

namespace {

/// The values of whichever rank gives some, on every rank. Collective.
std::vector<float> from_owner(const comm::World& world, const pipeline::StoredValues& own,
                              std::int64_t elements) {
  std::vector<float> values(own.data == nullptr ? 0 : static_cast<std::size_t>(elements));
  if (own.data != nullptr) pipeline::read_values(own, values);
  if (world.size() == 1) return values;
  const auto* const bytes = reinterpret_cast<const char*>(values.data());
  const std::string all = world.gather_everywhere({bytes, values.size() * sizeof(float)});
  values.resize(all.size() / sizeof(float));
  std::memcpy(values.data(), all.data(), all.size());
  return values;
}

}  // namespace

std::vector<float> StageTensors::values(std::string_view name, std::int64_t elements,
                                        const comm::World& world) const {
  pipeline::StoredValues own;
  visit(Replicas::First, [&](const io::TensorInfo& info, const pipeline::StoredValues& values) {
    if (info.name == name) own = values;
  });
  return from_owner(world, own, elements);
}

std::vector<float> StageTensors::gradient(models::ParameterId id, const comm::World& world) const {
  pipeline::StoredValues own;
  for (const pipeline::LocalStage& unit : units_) {
    const pipeline::Parameters& parameters = unit.state->parameters();
    const bool answers = unit.replica == 0 || parameters.share_borders().size() > 2;
    if (answers && std::ranges::find(parameters.ids(), id) != parameters.ids().end() &&
        parameters.owns(id))
      own.data = reinterpret_cast<std::byte*>(parameters.gradient(id));
  }
  return from_owner(world, own, graph_->parameter(id).elements());
}

void StageTensors::set(const std::map<std::string, std::vector<float>>& values) const {
  visit(Replicas::All, [&](const io::TensorInfo& info, const pipeline::StoredValues& stored) {
    auto found = values.find(info.name);
    if (found == values.end() && slot_name(info) == kAverage)
      found = values.find(info.name.substr(0, info.name.rfind('/')));
    if (found != values.end()) pipeline::write_values(stored, found->second);
  });
  refresh_copies();
}

Snapshot StageTensors::make_snapshot() const {
  std::vector<io::TensorInfo> infos;
  visit(Replicas::First,
        [&](const io::TensorInfo& info, const pipeline::StoredValues&) { infos.push_back(info); });
  return Snapshot(std::move(infos));
}

void StageTensors::take(Snapshot& snapshot) const {
  std::vector<pipeline::StoredValues> all;
  visit(Replicas::First, [&](const io::TensorInfo&, const pipeline::StoredValues& values) {
    all.push_back(values);
  });
  snapshot.take(all);
}

Snapshot StageTensors::snapshot() const {
  Snapshot result = make_snapshot();
  take(result);
  return result;
}

std::int64_t StageTensors::checkpoint_bytes(bool reads_back) const {
  std::int64_t copied = 0;
  std::int64_t largest = 0;
  visit(Replicas::First, [&](const io::TensorInfo& info, const pipeline::StoredValues&) {
    copied += info.bytes();
    largest = std::max(largest, info.bytes());
  });
  // HDF5 holds a piece of a tensor twice while it is written.
  std::int64_t more = 2 * std::min(largest, io::kHdf5PieceBytes);
  if (!reads_back) return copied + more;
  for (const io::TensorInfo& info : checkpoint_tensors())  // of the whole network
    largest = std::max(largest, info.bytes());
  // The library holds a piece of it, too.
  more = std::max(more, largest + std::min(largest, io::kHdf5PieceBytes));
  return copied + more;
}

std::vector<io::TensorInfo> StageTensors::checkpoint_tensors() const {
  return checkpoint_tensors(pipeline::whole(*graph_));
}

std::vector<io::TensorInfo> StageTensors::checkpoint_tensors(const pipeline::OpRange& stage) const {
  std::vector<io::TensorInfo> all;
  for (const models::Parameter& parameter : graph_->parameters) {
    if (!stage.contains(parameter.op)) continue;
    all.push_back(info_of(parameter));
    if (averages_ && is_averaged(parameter)) all.push_back(average_of(parameter));
    if (!parameter.learns()) continue;
    for (const UpdateSlot& slot : update_slots(rule_.value()))
      all.push_back(info_of(parameter, slot));
  }
  return all;
}

namespace {

/// The CRC-32C of bytes on the device, which are copied piece by piece.
std::uint32_t checksum_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::vector<std::byte> host(std::min(kPiece, bytes.size()));
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::span<const std::byte> piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    device::copy_to_host(host.data(), piece.data(), std::ssize(piece));
    sum = crc32c(std::span(host).first(piece.size()), sum);
  }
  return sum;
}

}  // namespace

void StageTensors::compare_replicas(const pipeline::PipelinePlan& plan,
                                    const comm::World& world) const {
  const auto stages = static_cast<std::size_t>(plan.schedule.stages);
  const auto replicas = static_cast<std::size_t>(plan.ranks.replicas);
  std::vector<double> sums(stages * replicas);
  for (const pipeline::LocalStage& unit : units_)
    sums[static_cast<std::size_t>(unit.stage) * replicas + static_cast<std::size_t>(unit.replica)] =
        static_cast<double>(checksum_of(unit.state->parameters().trained()));
  world.add(sums);
  for (std::size_t s = 0; s < stages; ++s)
    for (std::size_t r = 1; r < replicas; ++r)
      if (sums[s * replicas + r] != sums[s * replicas])
        fail(ErrorKind::Peer,
             "stage {}: replica {} has different weights than replica 0: a device or a link "
             "between them computes or carries wrong bits",
             s, r);
}

}  // namespace millrace::training
