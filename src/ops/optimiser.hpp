// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/random.hpp"
#include "core/update_rule.hpp"
#include "device/tensor.hpp"
#include "ops/accumulator.hpp"

namespace millrace::ops {

/// Parameters of a weight update. With g = gradient * gradient_scale + weight_decay * w, without
/// the weight decay in spans that do not decay:
///
///   Sgd                 w -= rate * g
///   Momentum            v = momentum * v + g;  w -= rate * v             TensorFlow 1
///   MomentumRateInside  v = momentum * v + rate * g;  w -= v             Keras, which stores -v
///   Nesterov            v = momentum * v + g;  w -= rate * (g + momentum * v)
///   RmsProp             s = mean_square_decay * s + (1 - mean_square_decay) * g^2
///                       v = momentum * v + rate * g / sqrt(s + epsilon);  w -= v
///   Lars                v = momentum * v + rate * ratio * g;  w -= v     You et al. 2017
///   Adam                v = momentum * v + (1 - momentum) * g
///                       s = mean_square_decay * s + (1 - mean_square_decay) * g^2
///                       w -= rate * v' / (sqrt(s') + epsilon), corrected by the number of updates
///                       t: v' = v / (1 - momentum^t), s' = s / (1 - mean_square_decay^t)
///   AdamW               the same with g without the weight decay; w -= rate * weight_decay * w
///
/// LARS computes one ratio per tensor:
/// trust * |w| / (|gradient * gradient_scale| + weight_decay * |w| + epsilon).
/// It is 1 if the tensor does not adapt or a norm is zero.
struct Update {
  float rate = 0.0f;
  float momentum = 0.0f;
  float weight_decay = 0.0f;
  float gradient_scale = 1.0f;  ///< 1 / (micro-batches * loss scaling)
  float mean_square_decay = 0.9f;
  float epsilon = 0.0f;
  float trust = 0.001f;
  float momentum_correction = 1.0f;     ///< Adam: 1 / (1 - momentum^t)
  float mean_square_correction = 1.0f;  ///< Adam: 1 / (1 - mean_square_decay^t)
  std::uint64_t step = 0;               ///< number of the update; a key of stochastic rounding
};

/// The numbers of a step that its kernels read from device memory, so that launches that are kept
/// and repeated (device/queues.hpp) read new ones.
struct StepValues {
  Update update = {};
  float loss_scaling = 1.0f;
  float average_decay = 0.0f;  ///< of moving averages
};

/// A step in device memory.
struct StepState {
  StepValues values = {};
  std::uint32_t skips = 0;   ///< 1: a sum is not finite, and the step changes no trained value
  std::uint32_t unused = 0;  ///< copies to the host are of 8 bytes
};

/// Begins a step: its values are `after_update`, or `after_skip` if the step before was skipped.
/// So the host can queue a step before it knows what became of the one before.
void begin_step(const device::ExecutionSpace& space, StepState* step,
                const StepValues& after_update, const StepValues& after_skip);

/// A range of the flat parameter array whose elements are all updated in the same way.
struct ParameterSpan {
  std::int64_t offset = 0;  ///< in elements
  std::int64_t elements = 0;
  bool decays = false;
  bool adapts = false;      ///< LARS: uses its tensor's ratio
  std::int32_t tensor = 0;  ///< LARS: index into the list of tensors
  std::int64_t first = 0;   ///< index of its first element in the tensor, a multiple of
                            ///< kSpanElements
  std::int64_t vector =
      -1;  ///< 16-bit master weights: offset of its float32 values in `vectors`, or -1
  RandomStream rounding{0, RandomPurpose::Rounding};  ///< the tensor's, for stochastic rounding
};

/// Range of the spans of one tensor.
struct TensorSpans {
  std::int64_t first = 0;
  std::int64_t spans = 0;
};

inline constexpr std::int64_t kSpanElements = 4096;

/// Device arrays that an update reads and writes. Weights, gradients and the rule's slots are flat
/// arrays in the same order. Gradients are float32, the others have storage type M. A span has at
/// most kSpanElements elements.
template <class M>
struct UpdateArrays {
  M* weights = nullptr;
  M* velocity = nullptr;        ///< slot "momentum"
  M* mean_square = nullptr;     ///< slot "mean_square"
  std::int64_t first_slot = 0;  ///< flat index of the slots' first element
  const float* gradients = nullptr;
  std::byte* copy = nullptr;  ///< 16-bit copy of float32 weights for kernels, or null
  DType copy_type = DType::BF16;
  float* vectors = nullptr;  ///< float32 copy of the 16-bit spans that kernels read as float32
  bool stochastic = false;   ///< 16-bit weights: stochastic rounding, else to nearest even
  const ParameterSpan* spans = nullptr;
  std::int64_t num_spans = 0;
  // Only LARS needs the following.
  const TensorSpans* tensors = nullptr;
  std::int64_t num_tensors = 0;
  Accumulator* squares = nullptr;  ///< scratch: two per span
  float* ratios = nullptr;         ///< scratch: one per tensor
};

/// Updates all parameters and their copies in one launch and one pass, unless the step is skipped.
/// LARS makes another pass over weights and gradients for its norms. The norms depend only on a
/// tensor's values and on how it is cut into spans.
///
/// With 16-bit weights the scaled gradient, without weight decay, is first rounded to nearest; all
/// arithmetic up to the stores is in float32. The random numbers of stochastic rounding are a pure
/// function of the tensor's key, the step, the element's index in the tensor and the kind of value
/// (weight, velocity or mean square). They do not depend on layout, sharding or restarts.
template <class M>
void update_weights(const device::ExecutionSpace& space, UpdateRule rule, const StepState* step,
                    const UpdateArrays<M>& arrays);

/// Sum of squares of the gradients of each span. It depends on the span only.
void square_gradients(const device::ExecutionSpace& space, const ParameterSpan* spans,
                      std::int64_t num_spans, const float* gradients, Accumulator* squares);

/// Updates `copy` or `vectors` after the weights were changed by something other than
/// update_weights().
template <class M>
void refresh_copies(const device::ExecutionSpace& space, const UpdateArrays<M>& arrays);

/// Sets *flag to 1 if one of the n values is infinite or NaN; does not change it otherwise.
template <class T>
void flag_non_finite(const device::ExecutionSpace& space, std::int64_t n, const T* x,
                     std::uint32_t* flag);

/// out[i] = ((part 0 + part 1) + part 2) + ... over `parts` arrays of n numbers. Part `own` is
/// `out` itself; the others are stored in `others` in ascending order, `stride` elements apart, as
/// `T`.
template <class T>
void add_parts(const device::ExecutionSpace& space, std::int64_t n, float* out, const T* others,
               std::int64_t stride, int own, int parts);

}  // namespace millrace::ops
