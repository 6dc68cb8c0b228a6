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
#include "ops/norm.hpp"
#include "ops/optimiser.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// Options of the parameters and their update.
struct ParameterOptions {
  UpdateRule rule = UpdateRule::Sgd;
  std::vector<std::string> decay_excludes = {};  ///< parts of names without weight decay
  std::vector<std::string> lars_skips = {};      ///< parts of names without LARS ratio and decay
  Precision precision = {DType::F32, DType::F32};
  bool stochastic_rounding = true;  ///< of 16-bit masters; false: round to nearest even
  std::uint64_t seed = 0;           ///< of stochastic rounding
  /// Number of replicas among which whole tensors are divided, and the index of this one. It keeps
  /// optimizer state and updates weights only for its own tensors.
  std::int32_t shares = 1;
  std::int32_t share = 0;
  bool clips = false;     ///< whether square_gradients() will be called
  bool averages = false;  ///< whether moving averages of all values are kept
  ReduceOptions reduce = {};
};

/// Elements [first, last) of an array.
struct Elements {
  std::int64_t first = 0;
  std::int64_t last = 0;
  [[nodiscard]] std::int64_t count() const { return last - first; }
  friend bool operator==(const Elements&, const Elements&) = default;
};

/// Values on the device, in their storage type.
struct StoredValues {
  std::byte* data = nullptr;
  DType type = DType::F32;
};
/// Copy between host and device, and wait. Written values are rounded to nearest even.
void write_values(const StoredValues& to, std::span<const float> from);
void read_values(const StoredValues& from, std::span<float> to);

/// Parameters of a stage in device memory. Master weights, optimizer state (slots) and gradients
/// are flat arrays in the same order; running statistics and their per-step sums are another pair.
/// The update is one pass over the flat arrays for any number of tensors. Gradients and running
/// sums, which replicas add up, form one array.
///
///             master, slots   kernels are packed from      biases, gamma and beta are read from
///   32.32     float32         the masters                  the masters
///   16.32     float32         a 16-bit copy of all         the masters
///   16.16     16 bits         the masters                  a float32 copy of them
///
/// 16 bits are bfloat16 or float16, the type of the activations. The update also writes the copies.
/// Gradients, their sums and running statistics are float32 in every precision: a moving average
/// that takes 1 % of the difference per step would stop changing in 16 bits.
///
/// Moving averages are float32, too, and every share keeps all of them: of the masters and of the
/// running statistics. In 16 bits they would stop like those, and they take out the noise of
/// stochastic rounding. 16-bit masters have their averages once more, rounded to nearest, to be
/// exchanged with.
///
/// With several shares, the flat arrays are ordered by share; each share is a range of whole
/// tensors. Frozen parameters come last and have only values: no slots, no gradients.
class Parameters {
 public:
  Parameters(const Graph& graph, OpRange range, const ParameterOptions& options);

  /// Bytes that bind() needs.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  void bind(std::byte* memory);

  /// Parameters of the range in graph order, running statistics included.
  [[nodiscard]] const std::vector<models::ParameterId>& ids() const { return ids_; }
  [[nodiscard]] std::span<const UpdateSlot> slots() const { return update_slots(options_.rule); }
  /// Whether this share updates a trainable parameter and keeps its slots; false for frozen ones.
  [[nodiscard]] bool owns(models::ParameterId id) const;

  // Device pointers, valid after bind().
  /// Float32 values that device kernels read; not for convolution kernels with 16-bit masters.
  [[nodiscard]] float* value(models::ParameterId id) const;
  /// Kernel of a convolution or dense op, in the compute type.
  [[nodiscard]] const std::byte* kernel(models::ParameterId id) const;
  /// For a frozen parameter nullptr, or memory that is never read if the same device kernel
  /// computes the gradient of a parameter that learns.
  [[nodiscard]] float* gradient(models::ParameterId id) const;
  /// Sum over the step's micro-batches that updates a running statistic.
  [[nodiscard]] float* running_sum(models::ParameterId id) const;
  /// Master weights of a parameter, or a running statistic. Call refresh_copies() after a write.
  [[nodiscard]] StoredValues stored(models::ParameterId id) const;
  /// Slot number `index` of slots(), for a trainable parameter that this share owns.
  [[nodiscard]] StoredValues stored_slot(std::size_t index, models::ParameterId id) const;

  [[nodiscard]] bool averages() const { return options_.averages; }
  /// The moving average of a parameter that learns, or of a running statistic.
  [[nodiscard]] StoredValues stored_average(models::ParameterId id) const;

  /// The sums of a step: gradients, then running sums. A multiple of 64 bytes.
  [[nodiscard]] std::span<float> accumulated() const {
    return {gradients_, static_cast<std::size_t>(accumulated_elements())};
  }
  [[nodiscard]] std::int64_t accumulated_elements() const {
    return learning_elements_ + state_elements_;
  }
  /// Elements of the gradients.
  [[nodiscard]] std::int64_t learning_elements() const { return learning_elements_; }
  [[nodiscard]] const ReduceOptions& reduce() const { return options_.reduce; }
  /// By share, the elements of the gradients of ids()[first, last).
  [[nodiscard]] std::vector<Elements> gradients_of(std::size_t first, std::size_t last) const;
  /// First element of each share in the flat order, and the end of the last share.
  [[nodiscard]] std::span<const std::int64_t> share_borders() const { return borders_; }
  /// Master weights of all parameters, in the flat order.
  [[nodiscard]] StoredValues masters() const { return {weights_, options_.precision.master}; }
  /// The state that must be equal on all replicas, for comparing them.
  [[nodiscard]] std::span<const std::byte> trained() const {
    return {weights_, static_cast<std::size_t>(trained_bytes_)};
  }

  /// Sets initial values from (seed, name), which are also those of the averages, and slots from
  /// the table of update slots.
  void initialise(std::uint64_t seed);
  /// Elements of the largest parameter; initialise() needs a float32 copy of it.
  [[nodiscard]] std::int64_t largest() const;
  /// Updates the copies that device kernels read, after masters or averages were written other than
  /// by update() and move_averages().
  void refresh_copies(const device::ExecutionSpace& space) const;
  /// Whether all `elements` of `values` (any device memory) are finite. Waits.
  [[nodiscard]] bool finite(const device::ExecutionSpace& space, const StoredValues& values,
                            std::int64_t elements) const;
  /// Begins a step with these numbers: the second, if the step before was skipped.
  void begin_step(const device::ExecutionSpace& space, const ops::StepValues& after_update,
                  const ops::StepValues& after_skip) const;
  void begin_step(const device::ExecutionSpace& space, const ops::StepValues& values) const {
    begin_step(space, values, values);
  }
  /// In device memory.
  [[nodiscard]] const ops::StepState* step() const { return step_; }
  /// Queues a search in `elements` of `values`: if not all are finite, the step is skipped. Copies
  /// what it finds to kFlagBytes bytes of a host_buffer().
  void queue_finding(const device::ExecutionSpace& space, const StoredValues& values,
                     std::int64_t elements, std::byte* finding) const;
  static constexpr std::int64_t kFlagBytes = 2 * sizeof(std::uint32_t);
  /// Whether all elements were finite, once the finding is copied.
  [[nodiscard]] static bool found_none(const std::byte* finding);
  /// Writes the sum of squares of each gradient that this share owns to `squares`, by ParameterId;
  /// the others stay as they are. The bits do not depend on the layout. Waits.
  void square_gradients(const device::ExecutionSpace& space, std::span<double> squares);
  /// Updates the weights that this share owns, and the running statistics from the mean over
  /// `micro_batches`, unless the step is skipped.
  void update(const device::ExecutionSpace& space, std::int64_t micro_batches) const;

  // The rest only where averages are kept:
  /// Takes the current values as averages.
  void begin_averages(const device::ExecutionSpace& space) const;
  /// Moves the averages towards the current values, after an update of all shares, unless the step
  /// is skipped.
  void move_averages(const device::ExecutionSpace& space) const;
  /// Puts the averages in place of the values, rounded to those of 16 bits, and back, bit for bit.
  void exchange_averages(const device::ExecutionSpace& space) const;

 private:
  /// Ranges of the span table.
  enum class Which { Own, All };

  [[nodiscard]] std::size_t place(models::ParameterId id) const;
  [[nodiscard]] std::vector<std::int32_t> owners() const;
  void add_parameter(std::size_t at, bool own);
  void add_frozen(std::size_t at);
  void add_spans(const models::Parameter& parameter, std::int64_t offset, bool own);
  void add_running_spans(const models::Parameter& parameter, std::int64_t offset);
  std::int64_t lay_out(std::byte* memory);
  void copy_masters(const device::ExecutionSpace& space) const;
  void round_averages(const device::ExecutionSpace& space) const;
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
  std::vector<std::int64_t> vectors_at_;  ///< by place in ids_, among the vectors; -1: not a vector
  std::vector<std::int64_t> unread_;      ///< by place in ids_, offset of an unread gradient; or -1
  std::vector<std::size_t> place_;        ///< by ParameterId
  std::vector<std::int64_t> borders_ = {0};
  std::vector<ops::ParameterSpan> spans_;
  std::vector<ops::TensorSpans> tensors_;  ///< owned tensors, in spans from the first own span
  std::vector<models::ParameterId> own_;   ///< by owned tensor
  std::vector<ops::RunningSpan> running_spans_;
  std::vector<ops::Accumulator>
      span_squares_;  ///< host copy of squares_, where gradients are clipped
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
  std::array<std::byte*, kMostUpdateSlots> slots_ = {};  ///< null: the rule has no such slot
  float* gradients_ = nullptr;
  float* state_ = nullptr;
  float* average_weights_ = nullptr;
  float* average_state_ = nullptr;
  std::byte* rounded_averages_ = nullptr;  ///< of 16-bit masters
  float* sums_ = nullptr;
  float* unread_gradients_ = nullptr;
  std::byte* copy_ = nullptr;
  float* vectors_ = nullptr;
  ops::StepState* step_ = nullptr;
  std::uint32_t* flag_ = nullptr;  ///< of finite()
  const ops::ParameterSpan* device_spans_ = nullptr;
  const ops::TensorSpans* device_tensors_ = nullptr;
  const ops::RunningSpan* device_running_spans_ = nullptr;
  ops::Accumulator* squares_ = nullptr;
  float* ratios_ = nullptr;
};

}  // namespace millrace::pipeline
