// SPDX-License-Identifier: Apache-2.0
#include "pipeline/parameters.hpp"

#include <algorithm>

#include "core/random.hpp"
#include "core/text.hpp"
#include "device/compat.hpp"
#include "models/graph.hpp"

namespace millrace::pipeline {
namespace {

using device::aligned;
using models::Parameter;
using models::ParameterId;

/// Share of parameters that no replica updates.
constexpr std::int32_t kFrozen = -1;

StoredValues behind(const StoredValues& values, std::int64_t elements) {
  if (values.data == nullptr) return values;  // not bound yet
  return {values.data + elements * size_of(values.type), values.type};
}

void fill(const StoredValues& to, std::int64_t elements, float value) {
  constexpr std::int64_t kChunk = 65536;
  const std::vector<float> chunk(static_cast<std::size_t>(std::min(elements, kChunk)), value);
  for (std::int64_t at = 0; at < elements; at += kChunk)
    write_values(behind(to, at),
                 std::span(chunk).first(static_cast<std::size_t>(std::min(elements - at, kChunk))));
}

/// Hands out aligned ranges of the memory; without memory it only counts bytes.
class BumpAllocator {
 public:
  explicit BumpAllocator(std::byte* memory) : memory_(memory) {}
  std::byte* bytes_of(std::int64_t bytes) {
    const std::int64_t here = end_;
    end_ += aligned(bytes);
    return memory_ == nullptr ? nullptr : memory_ + here;
  }
  template <class T>
  T* array(std::int64_t elements) {
    return reinterpret_cast<T*>(bytes_of(elements * static_cast<std::int64_t>(sizeof(T))));
  }
  template <class T>
  const T* copy_of(const std::vector<T>& host) {
    T* here = array<T>(std::ssize(host));
    if (here != nullptr)
      device::copy_to_device(reinterpret_cast<std::byte*>(here),
                             reinterpret_cast<const std::byte*>(host.data()),
                             static_cast<std::int64_t>(host.size() * sizeof(T)));
    return here;
  }
  [[nodiscard]] std::int64_t bytes() const { return end_; }

 private:
  std::byte* memory_;
  std::int64_t end_ = 0;
};

}  // namespace

void write_values(const StoredValues& to, std::span<const float> from) {
  if (to.type == DType::F32)
    return device::copy_to_device(to.data, reinterpret_cast<const std::byte*>(from.data()),
                                  static_cast<std::int64_t>(from.size_bytes()));
  device::dispatch(to.type, [&]<class T>() {
    std::vector<T> narrow(from.size());
    std::transform(from.begin(), from.end(), narrow.begin(), store_as<T>);
    device::copy_to_device(to.data, reinterpret_cast<const std::byte*>(narrow.data()),
                           static_cast<std::int64_t>(narrow.size() * sizeof(T)));
  });
}

void read_values(const StoredValues& from, std::span<float> to) {
  if (from.type == DType::F32)
    return device::copy_to_host(reinterpret_cast<std::byte*>(to.data()), from.data,
                                static_cast<std::int64_t>(to.size_bytes()));
  device::dispatch(from.type, [&]<class T>() {
    std::vector<T> narrow(to.size());
    device::copy_to_host(reinterpret_cast<std::byte*>(narrow.data()), from.data,
                         static_cast<std::int64_t>(narrow.size() * sizeof(T)));
    std::transform(narrow.begin(), narrow.end(), to.begin(), [](T x) { return to_float(x); });
  });
}

Parameters::Parameters(const Graph& graph, OpRange range, const ParameterOptions& options)
    : graph_(&graph), options_(options), place_(graph.parameters.size(), graph.parameters.size()) {
  MILLRACE_ASSERT(!narrow() || options_.precision.activations == options_.precision.master);
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    if (!range.contains(parameter.op)) continue;
    place_[i] = ids_.size();
    ids_.push_back(ParameterId{static_cast<std::int32_t>(i)});
  }
  offsets_.resize(ids_.size());
  vectors_at_.resize(ids_.size(), -1);
  unread_.resize(ids_.size(), -1);
  const std::vector<std::int32_t> owner = owners();
  for (std::int32_t share = 0; share < options_.shares; ++share) {
    const bool own = share == options_.share;
    if (own) first_own_span_ = std::ssize(spans_);
    for (std::size_t at = 0; at < ids_.size(); ++at)
      if (owner[at] == share) add_parameter(at, own);
    if (own) own_spans_ = std::ssize(spans_) - first_own_span_;
    borders_.push_back(trainable_elements_);
  }
  learning_elements_ = trainable_elements_;
  for (std::size_t at = 0; at < ids_.size(); ++at)
    if (owner[at] == kFrozen) add_frozen(at);
  if (options_.clips) span_squares_.resize(static_cast<std::size_t>(own_spans_));
  bytes_ = lay_out(nullptr);
}

/// The share of each parameter. Tensors are assigned largest first, each to the share that has the
/// least. Running statistics belong to all shares and are listed with the first; frozen parameters
/// belong to none.
std::vector<std::int32_t> Parameters::owners() const {
  std::vector<std::int32_t> owner(ids_.size(), 0);
  std::vector<std::size_t> order;
  for (std::size_t at = 0; at < ids_.size(); ++at) {
    if (graph_->parameter(ids_[at]).learns()) order.push_back(at);
    if (graph_->parameter(ids_[at]).frozen) owner[at] = kFrozen;
  }
  const auto elements = [&](std::size_t at) { return graph_->parameter(ids_[at]).elements(); };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return elements(a) > elements(b); });
  std::vector<std::int64_t> load(static_cast<std::size_t>(options_.shares));
  for (const std::size_t at : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += elements(at);
    owner[at] = static_cast<std::int32_t>(least - load.begin());
  }
  return owner;
}

void Parameters::add_parameter(std::size_t at, bool own) {
  const Parameter& parameter = graph_->parameter(ids_[at]);
  std::int64_t& end = parameter.trainable() ? trainable_elements_ : state_elements_;
  offsets_[at] = end;
  end += padded(parameter.elements());
  if (!parameter.trainable()) return add_running_spans(parameter, offsets_[at]);
  if (narrow() && parameter.role != models::ParameterRole::Kernel) {
    vectors_at_[at] = vector_elements_;
    vector_elements_ += padded(parameter.elements());
  }
  const std::int64_t first = std::ssize(spans_);
  add_spans(parameter, offsets_[at], own);
  if (own) own_.push_back(ids_[at]);
  for (std::int64_t s = first; vectors_at_[at] >= 0 && s < std::ssize(spans_); ++s) {
    ops::ParameterSpan& span = spans_[static_cast<std::size_t>(s)];
    span.vector = vectors_at_[at] + span.first;
  }
}

void Parameters::add_running_spans(const Parameter& parameter, std::int64_t offset) {
  const auto& norm = std::get<models::BatchNorm>(graph_->op(parameter.op).kind);
  for (std::int64_t at = 0; at < parameter.elements(); at += ops::kRunningElements)
    running_spans_.push_back({.offset = offset + at,
                              .elements = static_cast<std::int32_t>(
                                  std::min(ops::kRunningElements, parameter.elements() - at)),
                              .decay = static_cast<float>(norm.decay)});
}

void Parameters::add_frozen(std::size_t at) {
  add_parameter(at, false);
  const Parameter& parameter = graph_->parameter(ids_[at]);
  if (!models::learns(*graph_, parameter.op)) return;
  unread_[at] = unread_elements_;
  unread_elements_ += padded(parameter.elements());
}

void Parameters::add_spans(const Parameter& parameter, std::int64_t offset, bool own) {
  const bool lars = options_.rule == UpdateRule::Lars;
  const bool skipped = lars && contains_any(parameter.name, options_.lars_skips);
  const bool decays = !skipped && !contains_any(parameter.name, options_.decay_excludes);
  const RandomStream stream(options_.seed, RandomPurpose::Rounding, hash_name(parameter.name));
  const std::int64_t first = std::ssize(spans_);
  for (std::int64_t at = 0; at < parameter.elements(); at += ops::kSpanElements)
    spans_.push_back({.offset = offset + at,
                      .elements = std::min(ops::kSpanElements, parameter.elements() - at),
                      .decays = decays,
                      .adapts = lars && !skipped,
                      .tensor = static_cast<std::int32_t>(tensors_.size()),
                      .first = at,
                      .rounding = stream});
  if (own) tensors_.push_back({first - first_own_span_, std::ssize(spans_) - first});
}

/// Elements of a tensor in a flat array with padding, so that the next one is aligned in each
/// array.
std::int64_t Parameters::padded(std::int64_t elements) const {
  const std::int64_t smallest = size_of(options_.precision.activations);
  return aligned(elements * smallest) / smallest;
}

std::int64_t Parameters::lay_out(std::byte* memory) {
  BumpAllocator allocate(memory);
  const std::int64_t master = size_of(options_.precision.master);
  const auto share = static_cast<std::size_t>(options_.share);
  const std::int64_t own = borders_[share + 1] - borders_[share];
  weights_ = allocate.bytes_of(trainable_elements_ * master);
  state_ = allocate.array<float>(state_elements_);
  if (options_.averages) {
    average_weights_ = allocate.array<float>(learning_elements_);
    average_state_ = allocate.array<float>(state_elements_);
  }
  trained_bytes_ = allocate.bytes();
  for (std::size_t i = 0; i < slots().size(); ++i) slots_.at(i) = allocate.bytes_of(own * master);
  if (options_.shares == 1) trained_bytes_ = allocate.bytes();
  gradients_ = allocate.array<float>(learning_elements_);
  sums_ = allocate.array<float>(state_elements_);
  unread_gradients_ = allocate.array<float>(unread_elements_);
  if (copies())
    copy_ = allocate.bytes_of(trainable_elements_ * size_of(options_.precision.activations));
  if (narrow()) vectors_ = allocate.array<float>(vector_elements_);
  if (narrow() && options_.averages)
    rounded_averages_ = allocate.bytes_of(learning_elements_ * master);
  step_ = allocate.array<ops::StepState>(1);
  flag_ = allocate.array<std::uint32_t>(2);
  device_spans_ = allocate.copy_of(spans_);
  device_running_spans_ = allocate.copy_of(running_spans_);
  if (options_.clips || options_.rule == UpdateRule::Lars)
    squares_ = allocate.array<ops::Accumulator>(2 * own_spans_);
  if (options_.rule == UpdateRule::Lars) {
    device_tensors_ = allocate.copy_of(tensors_);
    ratios_ = allocate.array<float>(std::ssize(tensors_));
  }
  return allocate.bytes();
}

void Parameters::bind(std::byte* memory) { lay_out(memory); }

std::size_t Parameters::place(ParameterId id) const {
  const std::size_t at = place_.at(id.at());
  MILLRACE_ASSERT(at < ids_.size());
  return at;
}

bool Parameters::owns(ParameterId id) const {
  MILLRACE_ASSERT(graph_->parameter(id).trainable());
  const std::int64_t offset = offsets_[place(id)];
  const auto share = static_cast<std::size_t>(options_.share);
  return offset >= borders_[share] && offset < borders_[share + 1];
}

std::vector<Elements> Parameters::gradients_of(std::size_t first, std::size_t last) const {
  std::vector<Elements> elements;
  for (std::size_t share = 0; share + 1 < borders_.size(); ++share) {
    Elements own{borders_[share], borders_[share]};
    for (std::size_t at = first; at < last; ++at) {
      const Parameter& parameter = graph_->parameter(ids_[at]);
      const std::int64_t offset = offsets_[at];
      if (!parameter.learns() || offset < borders_[share] || offset >= borders_[share + 1])
        continue;
      if (own.count() == 0) own.first = offset;
      own.last = offset + padded(parameter.elements());
    }
    elements.push_back(own);
  }
  return elements;
}

StoredValues Parameters::stored(ParameterId id) const {
  const std::int64_t offset = offsets_[place(id)];
  if (!graph_->parameter(id).trainable())
    return behind({reinterpret_cast<std::byte*>(state_), DType::F32}, offset);
  return behind(masters(), offset);
}

StoredValues Parameters::stored_slot(std::size_t index, ParameterId id) const {
  MILLRACE_ASSERT(index < slots().size() && owns(id));
  const auto share = static_cast<std::size_t>(options_.share);
  return behind({slots_.at(index), options_.precision.master},
                offsets_[place(id)] - borders_[share]);
}

float* Parameters::value(ParameterId id) const {
  const std::int64_t vector = vectors_at_[place(id)];
  if (vector >= 0) return vectors_ + vector;
  const StoredValues values = stored(id);
  MILLRACE_ASSERT(values.type == DType::F32);
  return reinterpret_cast<float*>(values.data);
}

const std::byte* Parameters::kernel(ParameterId id) const {
  MILLRACE_ASSERT(graph_->parameter(id).role == models::ParameterRole::Kernel);
  if (copies()) return copy_ + offsets_[place(id)] * size_of(options_.precision.activations);
  return stored(id).data;
}

float* Parameters::gradient(ParameterId id) const {
  MILLRACE_ASSERT(graph_->parameter(id).trainable());
  if (graph_->parameter(id).learns()) return gradients_ + offsets_[place(id)];
  const std::int64_t unread = unread_[place(id)];
  return unread >= 0 ? unread_gradients_ + unread : nullptr;
}

float* Parameters::running_sum(ParameterId id) const {
  MILLRACE_ASSERT(!graph_->parameter(id).trainable());
  return sums_ + offsets_[place(id)];
}

std::int64_t Parameters::largest() const {
  std::int64_t elements = 0;
  for (const ParameterId id : ids_) elements = std::max(elements, graph_->parameter(id).elements());
  return elements;
}

void Parameters::initialise(std::uint64_t seed) {
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(largest()));
  for (const ParameterId id : ids_) {
    const Parameter& parameter = graph_->parameter(id);
    values.resize(static_cast<std::size_t>(parameter.elements()));
    models::initialise(parameter, seed, values);
    write_values(stored(id), values);
  }
  const auto share = static_cast<std::size_t>(options_.share);
  for (std::size_t i = 0; i < slots().size(); ++i)
    fill({slots_.at(i), options_.precision.master}, borders_[share + 1] - borders_[share],
         slots()[i].initial);
  const device::ExecutionSpace space;
  begin_step(space, {});
  refresh_copies(space);
  if (options_.averages) begin_averages(space);
  device::fence(space);
}

}  // namespace millrace::pipeline
