// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/tensor.hpp"

namespace millrace::ops {

/// One weight update of plain SGD or of momentum as TensorFlow 1 writes it (Sutskever et al. 2013
/// in the form with the rate outside): g = gradient * gradient_scale + decay * w; v = momentum * v
/// + g; w -= rate * v.
struct SgdUpdate {
  float rate = 0.0f;
  float momentum = 0.0f;
  float weight_decay = 0.0f;
  float gradient_scale = 1.0f;  ///< 1 / (micro-batches * loss scaling)
};

/// A stretch of the flat parameter array that is treated alike.
struct ParameterSpan {
  std::int64_t offset = 0;  ///< elements
  std::int64_t elements = 0;
  bool decays = false;
};

/// Updates all parameters in one launch: weights, gradients and velocity (null for plain SGD) are
/// flat float32 arrays; `spans` is a device array of `num_spans` pieces, each at most kSpanElements
/// long.
inline constexpr std::int64_t kSpanElements = 4096;
void sgd_update(const device::ExecutionSpace& space, const SgdUpdate& update, float* weights,
                float* velocity, const float* gradients, const ParameterSpan* spans,
                std::int64_t num_spans);

/// out[i] = ((part 0 + part 1) + part 2) + ... over `parts` arrays of n floats: part `own` is `out`
/// itself, the others lie in `others` one behind the other, in their order, `stride` floats apart.
void add_parts(const device::ExecutionSpace& space, std::int64_t n, float* out, const float* others,
               std::int64_t stride, int own, int parts);

}  // namespace millrace::ops
