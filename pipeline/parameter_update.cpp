// SPDX-License-Identifier: Apache-2.0
//
// What changes the values of parameters in a step: their update, and their moving averages.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "core/error.hpp"
#include "device/compat.hpp"
#include "device/queues.hpp"
#include "ops/elementwise.hpp"
#include "ops/norm.hpp"
#include "pipeline/parameters.hpp"

namespace millrace::pipeline {

using models::Parameter;
using models::ParameterId;

template <class M>
ops::UpdateArrays<M> Parameters::arrays(Which which) const {
  const bool own = which == Which::Own;
  return {.weights = reinterpret_cast<M*>(weights_),
          .velocity = reinterpret_cast<M*>(slots_[0]),
          .mean_square = reinterpret_cast<M*>(slots_[1]),
          .first_slot = borders_[static_cast<std::size_t>(options_.share)],
          .gradients = gradients_,
          .copy = copy_,
          .copy_type = options_.precision.activations,
          .vectors = vectors_,
          .stochastic = options_.stochastic_rounding,
          .spans = device_spans_ + (own ? first_own_span_ : 0),
          .num_spans = own ? own_spans_ : std::ssize(spans_),
          .tensors = device_tensors_,
          .num_tensors = std::ssize(tensors_),
          .squares = squares_,
          .ratios = ratios_};
}

namespace {

/// Sets *flag if not all values are finite.
void flag_non_finite(const device::ExecutionSpace& space, const StoredValues& values,
                     std::int64_t elements, std::uint32_t* flag) {
  device::dispatch(values.type, [&]<class T>() {
    ops::flag_non_finite(space, elements, reinterpret_cast<const T*>(values.data), flag);
  });
  device::settle(space);
}

}  // namespace

void Parameters::refresh_copies(const device::ExecutionSpace& space) const {
  copy_masters(space);
  round_averages(space);
}

void Parameters::copy_masters(const device::ExecutionSpace& space) const {
  device::dispatch(options_.precision.master,
                   [&]<class M>() { ops::refresh_copies(space, arrays<M>(Which::All)); });
}

void Parameters::begin_step(const device::ExecutionSpace& space,
                            const ops::StepValues& after_update,
                            const ops::StepValues& after_skip) const {
  ops::begin_step(space, step_, after_update, after_skip);
  device::settle(space);
}

void Parameters::queue_finding(const device::ExecutionSpace& space, const StoredValues& values,
                               std::int64_t elements, std::byte* finding) const {
  flag_non_finite(space, values, elements, &step_->skips);
  device::queue_copy(space, device::Direction::ToHost, finding,
                     reinterpret_cast<const std::byte*>(&step_->skips), kFlagBytes);
}

bool Parameters::found_none(const std::byte* finding) {
  std::uint32_t flag = 0;
  std::memcpy(&flag, finding, sizeof flag);
  return flag == 0;
}

bool Parameters::finite(const device::ExecutionSpace& space, const StoredValues& values,
                        std::int64_t elements) const {
  device::queue_clear(space, reinterpret_cast<std::byte*>(flag_), kFlagBytes);
  flag_non_finite(space, values, elements, flag_);
  std::array<std::byte, kFlagBytes> finding = {};
  device::copy_to_host(finding.data(), reinterpret_cast<const std::byte*>(flag_), kFlagBytes);
  return found_none(finding.data());
}

void Parameters::square_gradients(const device::ExecutionSpace& space, std::span<double> squares) {
  MILLRACE_ASSERT(options_.clips);
  ops::square_gradients(space, device_spans_ + first_own_span_, own_spans_, gradients_, squares_);
  device::fence(space);
  device::copy_to_host(reinterpret_cast<std::byte*>(span_squares_.data()),
                       reinterpret_cast<const std::byte*>(squares_),
                       own_spans_ * static_cast<std::int64_t>(sizeof(ops::Accumulator)));
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto first = span_squares_.begin() + tensors_[t].first;
    squares[own_[t].at()] = std::accumulate(
        first, first + tensors_[t].spans, 0.0,
        [](double sum, ops::Accumulator span) { return sum + static_cast<double>(span); });
  }
}

void Parameters::update(const device::ExecutionSpace& space, std::int64_t micro_batches) const {
  device::dispatch(options_.precision.master, [&]<class M>() {
    ops::update_weights(space, options_.rule, step_, arrays<M>(Which::Own));
  });
  ops::update_running(space, device_running_spans_, std::ssize(running_spans_), state_, sums_,
                      micro_batches, &step_->skips);
}

StoredValues Parameters::stored_average(ParameterId id) const {
  const Parameter& parameter = graph_->parameter(id);
  MILLRACE_ASSERT(options_.averages && (parameter.learns() || !parameter.trainable()));
  float* const values = parameter.trainable() ? average_weights_ : average_state_;
  if (values == nullptr) return {nullptr, DType::F32};  // not bound yet
  return {reinterpret_cast<std::byte*>(values + offsets_[place(id)]), DType::F32};
}

void Parameters::begin_averages(const device::ExecutionSpace& space) const {
  begin_step(space, {});  // with a decay of 0
  move_averages(space);
}

void Parameters::move_averages(const device::ExecutionSpace& space) const {
  MILLRACE_ASSERT(options_.averages);
  device::dispatch(options_.precision.master, [&]<class M>() {
    ops::move_average(space, learning_elements_, average_weights_,
                      reinterpret_cast<const M*>(weights_), step_);
  });
  ops::move_average<float>(space, state_elements_, average_state_, state_, step_);
  round_averages(space);
}

void Parameters::round_averages(const device::ExecutionSpace& space) const {
  if (rounded_averages_ == nullptr) return;
  device::dispatch(options_.precision.master, [&]<class M>() {
    ops::round_average(space, learning_elements_, average_weights_,
                       reinterpret_cast<M*>(rounded_averages_));
  });
}

void Parameters::exchange_averages(const device::ExecutionSpace& space) const {
  MILLRACE_ASSERT(options_.averages);
  auto* const averages =
      narrow() ? rounded_averages_ : reinterpret_cast<std::byte*>(average_weights_);
  device::dispatch(options_.precision.master, [&]<class M>() {
    ops::exchange(space, learning_elements_, reinterpret_cast<M*>(averages),
                  reinterpret_cast<M*>(weights_));
  });
  ops::exchange(space, state_elements_, average_state_, state_);
  copy_masters(space);
  device::fence(space);
}

}  // namespace millrace::pipeline
