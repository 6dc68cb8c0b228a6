// SPDX-License-Identifier: Apache-2.0
#include "pipeline/parameters.hpp"

#include <algorithm>

#include "models/initialise.hpp"
#include "ops/norm.hpp"

namespace millrace::pipeline {
namespace {

using device::aligned;
using models::Parameter;
using models::ParameterId;

constexpr std::int64_t kFloat = sizeof(float);

/// Elements that a tensor takes in a flat array, so that the next one starts aligned.
std::int64_t padded(std::int64_t elements) { return aligned(elements * kFloat) / kFloat; }

bool names_any(const std::vector<std::string>& parts, const Parameter& parameter) {
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return parameter.name.find(part) != std::string::npos;
  });
}

template <class T>
std::int64_t bytes_of(std::int64_t elements) {
  return aligned(elements * static_cast<std::int64_t>(sizeof(T)));
}

void fill(float* to, std::int64_t elements, float value) {
  if (value == 0.0f) {
    device::clear(reinterpret_cast<std::byte*>(to), elements * kFloat);
    return;
  }
  constexpr std::int64_t kChunk = 65536;
  const std::vector<float> chunk(static_cast<std::size_t>(std::min(elements, kChunk)), value);
  for (std::int64_t at = 0; at < elements; at += kChunk)
    device::copy_to_device(reinterpret_cast<std::byte*>(to + at),
                           reinterpret_cast<const std::byte*>(chunk.data()),
                           std::min(elements - at, kChunk) * kFloat);
}

/// Hands out stretches of the memory, each aligned.
class Taker {
 public:
  explicit Taker(std::byte* memory) : next_(memory) {}
  template <class T>
  T* take(std::int64_t elements) {
    auto* here = reinterpret_cast<T*>(next_);
    next_ += bytes_of<T>(elements);
    return here;
  }
  template <class T>
  const T* copy(const std::vector<T>& host) {
    T* here = take<T>(std::ssize(host));
    device::copy_to_device(reinterpret_cast<std::byte*>(here),
                           reinterpret_cast<const std::byte*>(host.data()),
                           static_cast<std::int64_t>(host.size() * sizeof(T)));
    return here;
  }

 private:
  std::byte* next_;
};

}  // namespace

Parameters::Parameters(const Graph& graph, OpRange range, const ParameterOptions& options)
    : graph_(&graph), options_(options), place_(graph.parameters.size(), graph.parameters.size()) {
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    if (!range.contains(parameter.op)) continue;
    place_[i] = ids_.size();
    ids_.push_back(ParameterId{static_cast<std::int32_t>(i)});
    std::int64_t& end = parameter.trainable() ? trainable_elements_ : state_elements_;
    offsets_.push_back(end);
    if (parameter.trainable()) add_spans(parameter, end);
    end += padded(parameter.elements());
  }
  const std::int64_t copies = 2 + std::ssize(slots());
  bytes_ = (copies * trainable_elements_ + 2 * state_elements_) * kFloat +
           bytes_of<ops::ParameterSpan>(std::ssize(spans_));
  if (options_.rule != UpdateRule::Lars) return;
  bytes_ += bytes_of<ops::TensorSpans>(std::ssize(tensors_)) +
            bytes_of<double>(2 * std::ssize(spans_)) + bytes_of<float>(std::ssize(tensors_));
}

void Parameters::add_spans(const Parameter& parameter, std::int64_t offset) {
  const bool lars = options_.rule == UpdateRule::Lars;
  const bool skipped = lars && names_any(options_.lars_skips, parameter);
  const bool decays = !skipped && !names_any(options_.decay_excludes, parameter);
  const auto tensor = static_cast<std::int32_t>(tensors_.size());
  const std::int64_t first = std::ssize(spans_);
  for (std::int64_t at = 0; at < parameter.elements(); at += ops::kSpanElements)
    spans_.push_back({.offset = offset + at,
                      .elements = std::min(ops::kSpanElements, parameter.elements() - at),
                      .decays = decays,
                      .adapts = lars && !skipped,
                      .tensor = tensor});
  tensors_.push_back({first, std::ssize(spans_) - first});
}

void Parameters::bind(std::byte* memory) {
  Taker taker(memory);
  weights_ = taker.take<float>(trainable_elements_);
  for (std::size_t i = 0; i < slots().size(); ++i)
    slots_[i] = taker.take<float>(trainable_elements_);
  state_ = taker.take<float>(state_elements_);
  gradients_ = taker.take<float>(trainable_elements_);
  sums_ = taker.take<float>(state_elements_);
  update_ = {.weights = weights_,
             .velocity = slots_[0],
             .mean_square = slots_[1],
             .gradients = gradients_,
             .spans = taker.copy(spans_),
             .num_spans = std::ssize(spans_)};
  if (options_.rule != UpdateRule::Lars) return;
  update_.tensors = taker.copy(tensors_);
  update_.num_tensors = std::ssize(tensors_);
  update_.squares = taker.take<double>(2 * update_.num_spans);
  update_.ratios = taker.take<float>(update_.num_tensors);
}

std::size_t Parameters::place(ParameterId id) const {
  const std::size_t at = place_.at(id.at());
  MILLRACE_ASSERT(at < ids_.size());
  return at;
}

float* Parameters::value(ParameterId id) const {
  float* base = graph_->parameter(id).trainable() ? weights_ : state_;
  return base + offsets_[place(id)];
}

float* Parameters::gradient(ParameterId id) const {
  MILLRACE_ASSERT(graph_->parameter(id).trainable());
  return gradients_ + offsets_[place(id)];
}

float* Parameters::slot(std::size_t index, ParameterId id) const {
  MILLRACE_ASSERT(index < slots().size() && graph_->parameter(id).trainable());
  return slots_.at(index) + offsets_[place(id)];
}

float* Parameters::running_sum(ParameterId id) const {
  MILLRACE_ASSERT(!graph_->parameter(id).trainable());
  return sums_ + offsets_[place(id)];
}

void Parameters::initialise(std::uint64_t seed) {
  std::vector<float> values;
  for (const ParameterId id : ids_) {
    const Parameter& parameter = graph_->parameter(id);
    const auto elements = static_cast<std::size_t>(parameter.elements());
    if constexpr (device::kHostAccessible) {
      models::initialise(parameter, seed, {value(id), elements});
      continue;
    }
    values.resize(elements);
    models::initialise(parameter, seed, values);
    device::copy_to_device(reinterpret_cast<std::byte*>(value(id)),
                           reinterpret_cast<const std::byte*>(values.data()),
                           parameter.elements() * kFloat);
  }
  for (std::size_t i = 0; i < slots().size(); ++i)
    fill(slots_[i], trainable_elements_, slots()[i].initial);
}

void Parameters::update(const device::ExecutionSpace& space, const ops::Update& update,
                        std::int64_t micro_batches) {
  ops::update_weights(space, options_.rule, update, update_);
  for (const ParameterId id : ids_) {
    const Parameter& parameter = graph_->parameter(id);
    if (parameter.trainable()) continue;
    const auto& norm = std::get<models::BatchNorm>(graph_->op(parameter.op).kind);
    ops::update_running(space, parameter.elements(), value(id), running_sum(id),
                        static_cast<float>(norm.decay), micro_batches);
  }
}

}  // namespace millrace::pipeline
