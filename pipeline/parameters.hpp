// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/update_rule.hpp"
#include "device/arena.hpp"
#include "models/graph.hpp"
#include "ops/optimiser.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// What the update rule needs to know of the parameters.
struct ParameterOptions {
  UpdateRule rule = UpdateRule::Sgd;
  std::vector<std::string> decay_excludes;  ///< substrings of names that do not decay
  std::vector<std::string> lars_skips;      ///< LARS: of names that neither adapt nor decay
};

/// Master parameters of a stage in device memory: weights, the slots that the update rule keeps and
/// gradients as flat float32 arrays of equal order, running statistics and their per-step sums as
/// another pair. The update is one pass over the flat arrays whatever the number of tensors; what
/// replicas add up (gradients and running sums) is one array, too.
class Parameters {
 public:
  Parameters(const Graph& graph, OpRange range, const ParameterOptions& options);

  /// Bytes that bind() will be given.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  void bind(std::byte* memory);

  /// Parameters of the range in graph order, state included.
  [[nodiscard]] const std::vector<models::ParameterId>& ids() const { return ids_; }
  [[nodiscard]] std::span<const UpdateSlot> slots() const { return update_slots(options_.rule); }

  // Device pointers, valid after bind().
  [[nodiscard]] float* value(models::ParameterId id) const;
  [[nodiscard]] float* gradient(models::ParameterId id) const;
  /// Of a trainable parameter, by place in slots().
  [[nodiscard]] float* slot(std::size_t index, models::ParameterId id) const;
  /// Sum over the step's micro-batches from which a running statistic moves.
  [[nodiscard]] float* running_sum(models::ParameterId id) const;

  /// Everything that a step adds up: gradients, then running sums. A multiple of 64 bytes.
  [[nodiscard]] std::span<float> accumulated() const {
    return {gradients_, static_cast<std::size_t>(accumulated_elements())};
  }
  [[nodiscard]] std::int64_t accumulated_elements() const {
    return trainable_elements_ + state_elements_;
  }
  /// All that training changes, for comparing replicas.
  [[nodiscard]] std::span<const float> trained() const {
    return {weights_, static_cast<std::size_t>(gradients_ - weights_)};
  }

  /// Initial values from (seed, name), slots as their table says.
  void initialise(std::uint64_t seed);
  /// One weight update, and the running statistics' move by the mean over `micro_batches`.
  void update(const device::ExecutionSpace& space, const ops::Update& update,
              std::int64_t micro_batches);

 private:
  [[nodiscard]] std::size_t place(models::ParameterId id) const;
  void add_spans(const models::Parameter& parameter, std::int64_t offset);

  const Graph* graph_;
  ParameterOptions options_;
  std::vector<models::ParameterId> ids_;
  std::vector<std::int64_t> offsets_;  ///< by place in ids_, elements in the flat arrays
  std::vector<std::size_t> place_;     ///< by ParameterId
  std::vector<ops::ParameterSpan> spans_;
  std::vector<ops::TensorSpans> tensors_;  ///< LARS alone
  std::int64_t trainable_elements_ = 0;    ///< padded
  std::int64_t state_elements_ = 0;        ///< padded
  std::int64_t bytes_ = 0;
  float* weights_ = nullptr;
  std::array<float*, kUpdateSlots.size()> slots_ = {};  ///< null where the rule keeps none
  float* gradients_ = nullptr;
  float* state_ = nullptr;
  float* sums_ = nullptr;
  ops::UpdateArrays update_;
};

}  // namespace millrace::pipeline
