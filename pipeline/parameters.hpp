// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/update_rule.hpp"
#include "device/arena.hpp"
#include "models/graph.hpp"
#include "ops/optimiser.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// What the update rule needs to know of the parameters.
struct ParameterOptions {
  UpdateRule rule = UpdateRule::Sgd;
  std::vector<std::string> decay_excludes = {};  ///< substrings of names that do not decay
  std::vector<std::string> lars_skips = {};      ///< LARS: of names that neither adapt nor decay
  Precision precision = {DType::F32, DType::F32};
  bool stochastic_rounding = true;  ///< 16-bit masters: else to nearest even
  std::uint64_t seed = 0;           ///< of stochastic rounding
  /// Replicas that whole tensors are shared out to, and which of them this is: it keeps slots and
  /// updates weights of its own tensors alone.
  std::int32_t shares = 1;
  std::int32_t share = 0;
};

/// Values on the device, in the type that they are kept in.
struct StoredValues {
  std::byte* data = nullptr;
  DType type = DType::F32;
};
/// Copy between host and device, and wait; what is written is rounded to nearest even.
void write_values(const StoredValues& to, std::span<const float> from);
void read_values(const StoredValues& from, std::span<float> to);

/// Parameters of a stage in device memory: master weights, the slots that the update rule keeps and
/// gradients as flat arrays of equal order, running statistics and their per-step sums as another
/// pair. The update is one pass over the flat arrays whatever the number of tensors; what replicas
/// add up (gradients and running sums) is one array, too.
///
///             master, slots   kernels are packed from      biases, gamma and beta are read from
///   32.32     float32         the masters                  the masters
///   16.32     float32         a 16-bit copy of all         the masters
///   16.16     16 bits         the masters                  a float32 copy of them
///
/// 16 bits are bfloat16 or float16, the type of the activations. The update stores copies as it
/// goes. Gradients, their sums and running statistics are float32 in every precision: a statistic
/// that moves by a hundredth a step would stand still in 16 bits.
///
/// With several shares the flat order is that of the shares, each a stretch of whole tensors.
/// Frozen parameters lie behind them and have values alone: no slots, no gradients.
class Parameters {
 public:
  Parameters(const Graph& graph, OpRange range, const ParameterOptions& options);

  /// Bytes that bind() will be given.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  void bind(std::byte* memory);

  /// Parameters of the range in graph order, state included.
  [[nodiscard]] const std::vector<models::ParameterId>& ids() const { return ids_; }
  [[nodiscard]] std::span<const UpdateSlot> slots() const { return update_slots(options_.rule); }
  /// Whether this share updates a trainable parameter and keeps its slots; nobody does of a frozen
  /// one.
  [[nodiscard]] bool owns(models::ParameterId id) const;

  // Device pointers, valid after bind().
  /// Float32 values as kernels read them; not of kernels whose masters have 16 bits.
  [[nodiscard]] float* value(models::ParameterId id) const;
  /// Of a convolution or dense op, in the compute precision.
  [[nodiscard]] const std::byte* kernel(models::ParameterId id) const;
  /// Of a frozen parameter: nullptr, or, where another one of the same op learns and one kernel
  /// makes the gradients of both, memory that nobody reads.
  [[nodiscard]] float* gradient(models::ParameterId id) const;
  /// Sum over the step's micro-batches from which a running statistic moves.
  [[nodiscard]] float* running_sum(models::ParameterId id) const;
  /// The master of a parameter, or a running statistic. Call refresh_copies() when written.
  [[nodiscard]] StoredValues stored(models::ParameterId id) const;
  /// Of a trainable parameter that is owned, by place in slots().
  [[nodiscard]] StoredValues stored_slot(std::size_t index, models::ParameterId id) const;

  /// Everything that a step adds up: gradients, then running sums. A multiple of 64 bytes.
  [[nodiscard]] std::span<float> accumulated() const {
    return {gradients_, static_cast<std::size_t>(accumulated_elements())};
  }
  [[nodiscard]] std::int64_t accumulated_elements() const {
    return learning_elements_ + state_elements_;
  }
  /// Elements that gradients have.
  [[nodiscard]] std::int64_t learning_elements() const { return learning_elements_; }
  /// Where the shares' stretches of the flat order begin, and the end of the last.
  [[nodiscard]] std::span<const std::int64_t> share_borders() const { return borders_; }
  /// The masters of all parameters, in the flat order.
  [[nodiscard]] StoredValues masters() const { return {weights_, options_.precision.master}; }
  /// All that training changes and every replica holds, for comparing replicas.
  [[nodiscard]] std::span<const std::byte> trained() const {
    return {weights_, static_cast<std::size_t>(trained_bytes_)};
  }

  /// Initial values from (seed, name), slots as their table says.
  void initialise(std::uint64_t seed);
  /// Elements of the largest parameter, of which initialise() takes a copy in float32.
  [[nodiscard]] std::int64_t largest() const;
  /// Brings what kernels read up to date with masters that update() did not change.
  void refresh_copies(const device::ExecutionSpace& space) const;
  /// Whether all `elements` of `values`, which lie anywhere on the device, are finite. Waits.
  [[nodiscard]] bool finite(const device::ExecutionSpace& space, const StoredValues& values,
                            std::int64_t elements) const;
  /// One weight update of what is owned, and the running statistics' move by the mean over
  /// `micro_batches`.
  void update(const device::ExecutionSpace& space, const ops::Update& update,
              std::int64_t micro_batches);

 private:
  /// Stretches of the span table.
  enum class Which { Own, All };

  [[nodiscard]] std::size_t place(models::ParameterId id) const;
  [[nodiscard]] std::vector<std::int32_t> owners() const;
  void add_parameter(std::size_t at, bool own);
  void add_frozen(std::size_t at);
  void add_spans(const models::Parameter& parameter, std::int64_t offset, bool own);
  std::int64_t lay_out(std::byte* memory);
  [[nodiscard]] bool narrow() const { return options_.precision.master != DType::F32; }
  [[nodiscard]] bool copies() const {
    return !narrow() && options_.precision.activations != DType::F32;
  }
  [[nodiscard]] std::int64_t padded(std::int64_t elements) const;
  template <class M>
  [[nodiscard]] ops::UpdateArrays<M> arrays(Which which) const;

  const Graph* graph_;
  ParameterOptions options_;
  std::vector<models::ParameterId> ids_;
  std::vector<std::int64_t> offsets_;     ///< by place in ids_, elements in the flat arrays
  std::vector<std::int64_t> vectors_at_;  ///< by place in ids_, among the vectors; -1: is none
  std::vector<std::int64_t> unread_;      ///< by place in ids_, of gradients nobody reads; or -1
  std::vector<std::size_t> place_;        ///< by ParameterId
  std::vector<std::int64_t> borders_ = {0};
  std::vector<ops::ParameterSpan> spans_;
  std::vector<ops::TensorSpans> tensors_;  ///< of what is owned, counted in spans from the first
  std::int64_t first_own_span_ = 0;
  std::int64_t own_spans_ = 0;
  // Padded:
  std::int64_t trainable_elements_ = 0;
  std::int64_t learning_elements_ = 0;  ///< of them, those that are not frozen
  std::int64_t vector_elements_ = 0;
  std::int64_t state_elements_ = 0;
  std::int64_t unread_elements_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t trained_bytes_ = 0;
  std::byte* weights_ = nullptr;
  std::array<std::byte*, kUpdateSlots.size()> slots_ = {};  ///< null where the rule keeps none
  float* gradients_ = nullptr;
  float* state_ = nullptr;
  float* sums_ = nullptr;
  float* unread_gradients_ = nullptr;
  std::byte* copy_ = nullptr;
  float* vectors_ = nullptr;
  std::uint32_t* flag_ = nullptr;
  const ops::ParameterSpan* device_spans_ = nullptr;
  const ops::TensorSpans* device_tensors_ = nullptr;
  double* squares_ = nullptr;
  float* ratios_ = nullptr;
};

}  // namespace millrace::pipeline
