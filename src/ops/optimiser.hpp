// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/random.hpp"
#include "core/update_rule.hpp"
#include "device/tensor.hpp"

namespace millrace::ops {

/// The numbers of a weight update. With g = gradient * gradient_scale + weight_decay * w, where the
/// decay is left out in spans that do not decay:
///
///   Sgd                 w -= rate * g
///   Momentum            v = momentum * v + g;  w -= rate * v             as TensorFlow 1 writes it
///   MomentumRateInside  v = momentum * v + rate * g;  w -= v             Keras, which stores -v
///   Nesterov            v = momentum * v + g;  w -= rate * (g + momentum * v)
///   RmsProp             s = mean_square_decay * s + (1 - mean_square_decay) * g^2
///                       v = momentum * v + rate * g / sqrt(s + epsilon);  w -= v
///   Lars                v = momentum * v + rate * ratio * g;  w -= v     You et al. 2017
///
/// LARS's ratio is that of a tensor, 1 where its spans do not adapt or a norm is zero:
/// trust * |w| / (|gradient * gradient_scale| + weight_decay * |w| + epsilon).
struct Update {
  float rate = 0.0f;
  float momentum = 0.0f;
  float weight_decay = 0.0f;
  float gradient_scale = 1.0f;  ///< 1 / (micro-batches * loss scaling)
  float mean_square_decay = 0.9f;
  float epsilon = 0.0f;
  float trust = 0.001f;
  std::uint64_t step = 0;  ///< number of the update: which draws stochastic rounding takes
};

/// A stretch of the flat parameter array that is treated alike.
struct ParameterSpan {
  std::int64_t offset = 0;  ///< elements
  std::int64_t elements = 0;
  bool decays = false;
  bool adapts = false;      ///< LARS: takes its tensor's ratio
  std::int32_t tensor = 0;  ///< LARS: index into the list of tensors
  std::int64_t first = 0;   ///< of its elements, counted from the tensor's own first: a
                            ///< multiple of kSpanElements
  std::int64_t vector =
      -1;  ///< 16-bit masters: where its float32 values go among the vectors, or -1
  RandomStream rounding{0, RandomPurpose::Rounding};  ///< of the tensor, for stochastic rounding
};

/// The spans that a tensor consists of.
struct TensorSpans {
  std::int64_t first = 0;
  std::int64_t spans = 0;
};

inline constexpr std::int64_t kSpanElements = 4096;

/// What an update reads and writes, on the device. Weights, gradients and the slots that the rule
/// keeps are flat arrays of equal order: gradients float32, the others M, a storage type. Spans
/// have at most kSpanElements elements each.
template <class M>
struct UpdateArrays {
  M* weights = nullptr;
  M* velocity = nullptr;        ///< slot "momentum"
  M* mean_square = nullptr;     ///< slot "mean_square"
  std::int64_t first_slot = 0;  ///< element of the flat order that the slots begin with
  const float* gradients = nullptr;
  std::byte* copy = nullptr;  ///< of float32 weights, for 16-bit kernels; null: none is kept
  DType copy_type = DType::BF16;
  float* vectors = nullptr;  ///< of 16-bit weights: the values of spans that kernels read so
  bool stochastic = false;   ///< 16-bit weights: how to round what is stored; else to nearest even
  const ParameterSpan* spans = nullptr;
  std::int64_t num_spans = 0;
  // LARS alone needs the rest.
  const TensorSpans* tensors = nullptr;
  std::int64_t num_tensors = 0;
  double* squares = nullptr;  ///< scratch: two a span
  float* ratios = nullptr;    ///< scratch: one a tensor
};

/// Updates all parameters in one launch that passes over them once, and stores their copies on the
/// way. LARS passes over weights and gradients once more for its norms, whose bits depend on a
/// tensor's values and on how it was cut into spans alone.
///
/// With 16-bit weights the gradient (scaled, without decay) is rounded to nearest first; arithmetic
/// is in float32 up to the stores. Stochastic rounding draws from the key of the tensor, the step,
/// the element's place in the tensor and which of the three values is stored: a pure function that
/// layouts, shares and restarts leave alone.
template <class M>
void update_weights(const device::ExecutionSpace& space, UpdateRule rule, const Update& update,
                    const UpdateArrays<M>& arrays);

/// Brings `copy` or `vectors` up to date with weights that something else has changed.
template <class M>
void refresh_copies(const device::ExecutionSpace& space, const UpdateArrays<M>& arrays);

/// Sets *flag to 1 when one of the n values is infinite or no number, and else leaves it alone.
template <class T>
void flag_non_finite(const device::ExecutionSpace& space, std::int64_t n, const T* x,
                     std::uint32_t* flag);

/// out[i] = ((part 0 + part 1) + part 2) + ... over `parts` arrays of n floats: part `own` is `out`
/// itself, the others lie in `others` one behind the other, in their order, `stride` floats apart.
void add_parts(const device::ExecutionSpace& space, std::int64_t n, float* out, const float* others,
               std::int64_t stride, int own, int parts);

}  // namespace millrace::ops
