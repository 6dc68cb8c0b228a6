// SPDX-License-Identifier: Apache-2.0
//
// Moving averages of parameters.
#include "core/error.hpp"
#include "device/compat.hpp"
#include "ops/elementwise.hpp"
#include "pipeline/parameters.hpp"

namespace millrace::pipeline {

using models::Parameter;
using models::ParameterId;

StoredValues Parameters::stored_average(ParameterId id) const {
  const Parameter& parameter = graph_->parameter(id);
  MILLRACE_ASSERT(options_.averages && (parameter.learns() || !parameter.trainable()));
  float* const values = parameter.trainable() ? average_weights_ : average_state_;
  if (values == nullptr) return {nullptr, DType::F32};  // not bound yet
  return {reinterpret_cast<std::byte*>(values + offsets_[place(id)]), DType::F32};
}

void Parameters::begin_averages(const device::ExecutionSpace& space) const {
  move_averages(space, 0.0);
}

void Parameters::move_averages(const device::ExecutionSpace& space, double decay) const {
  MILLRACE_ASSERT(options_.averages);
  const auto kept = static_cast<float>(decay);
  device::dispatch(options_.precision.master, [&]<class M>() {
    ops::move_average(space, learning_elements_, average_weights_,
                      reinterpret_cast<const M*>(weights_), kept);
  });
  ops::move_average<float>(space, state_elements_, average_state_, state_, kept);
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
