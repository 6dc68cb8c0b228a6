// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/tensor.hpp"

namespace millrace::ops {

/// Softmax cross-entropy with label smoothing: the target is 1 - s for the label and s / (classes -
/// 1) for every other class (the IPU trainer's formula). Samples with label -1 are padding: loss 0,
/// rank `classes`, gradient 0.
struct SoftmaxLossShape {
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  float smoothing = 0.0f;
};

/// loss[n] = -sum_k target log softmax(logits)[k]; rank[n] = number of classes ahead of the label
/// (0: top-1 is right; ties count the lower class first).
template <class T>
void softmax_loss_forward(const device::ExecutionSpace& space, const SoftmaxLossShape& shape,
                          float* loss, std::int32_t* rank, const T* logits,
                          const std::int32_t* labels);

/// dlogits = (softmax(logits) - target) * scale, scale = loss scaling / batch.
template <class T>
void softmax_loss_backward(const device::ExecutionSpace& space, const SoftmaxLossShape& shape,
                           T* dlogits, const T* logits, const std::int32_t* labels, float scale);

}  // namespace millrace::ops
