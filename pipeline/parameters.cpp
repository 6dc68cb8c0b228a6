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

bool decays(const Parameter& parameter, const std::vector<std::string>& excludes) {
  return std::none_of(excludes.begin(), excludes.end(), [&](const std::string& part) {
    return parameter.name.find(part) != std::string::npos;
  });
}

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
    if (parameter.trainable()) {
      const bool decay = decays(parameter, options_.decay_excludes);
      for (std::int64_t at = 0; at < parameter.elements(); at += ops::kSpanElements) {
        spans_.push_back(
            {end + at, std::min(ops::kSpanElements, parameter.elements() - at), decay});
      }
    }
    end += padded(parameter.elements());
  }
  const std::int64_t copies = options_.momentum ? 3 : 2;
  bytes_ = (copies * trainable_elements_ + 2 * state_elements_) * kFloat +
           aligned(static_cast<std::int64_t>(spans_.size() * sizeof(ops::ParameterSpan)));
}

void Parameters::bind(std::byte* memory) {
  auto* next = reinterpret_cast<float*>(memory);
  const auto take = [&](std::int64_t elements) {
    float* here = next;
    next += elements;
    return here;
  };
  weights_ = take(trainable_elements_);
  if (options_.momentum) velocities_ = take(trainable_elements_);
  state_ = take(state_elements_);
  gradients_ = take(trainable_elements_);
  sums_ = take(state_elements_);
  device_spans_ = reinterpret_cast<ops::ParameterSpan*>(next);
  device::copy_to_device(reinterpret_cast<std::byte*>(next),
                         reinterpret_cast<const std::byte*>(spans_.data()),
                         static_cast<std::int64_t>(spans_.size() * sizeof(ops::ParameterSpan)));
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

float* Parameters::velocity(ParameterId id) const {
  MILLRACE_ASSERT(options_.momentum && graph_->parameter(id).trainable());
  return velocities_ + offsets_[place(id)];
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
  if (velocities_ == nullptr) return;
  device::clear(reinterpret_cast<std::byte*>(velocities_), trainable_elements_ * kFloat);
}

void Parameters::update(const device::ExecutionSpace& space, const ops::SgdUpdate& update,
                        std::int64_t micro_batches) {
  ops::sgd_update(space, update, weights_, velocities_, gradients_, device_spans_,
                  static_cast<std::int64_t>(spans_.size()));
  for (const ParameterId id : ids_) {
    const Parameter& parameter = graph_->parameter(id);
    if (parameter.trainable()) continue;
    const auto& norm = std::get<models::BatchNorm>(graph_->op(parameter.op).kind);
    ops::update_running(space, parameter.elements(), value(id), running_sum(id),
                        static_cast<float>(norm.decay), micro_batches);
  }
}

}  // namespace millrace::pipeline
