// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/image_records.hpp"
#include "core/label_smoothing.hpp"
#include "device/tensor.hpp"

namespace millrace::ops {

/// Softmax cross-entropy with label smoothing s. The target is on() for the label's class and off()
/// for every other class. Depending on `form` these are 1 - s and s / (K - 1), or 1 - s + s / K and
/// s / K, where K is the number of classes. With mixed labels, the target is the weighted mean of
/// the targets of up to four labels; see ImageMixing. Samples with label -1 are padding: loss 0,
/// rank `classes`, gradient 0. A mixed micro-batch has no padding. A label with a weight counts
/// that many times: so do its part of the loss and of the gradient.
struct SoftmaxLossShape {
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  float smoothing = 0.0f;
  SmoothingForm form = SmoothingForm::OtherClasses;
  /// Targets of the label's class and of every other class.
  [[nodiscard]] float on() const;
  [[nodiscard]] float off() const;
};

/// loss[n] = -sum_k target log softmax(logits)[k]; rank[n] = number of classes ranked ahead of the
/// sample's own label, even if labels are mixed; 0 means that the top-1 prediction is correct. Of
/// equal logits, the lower class ranks first. `mixing`, `weights`: one per sample, or null.
template <class T>
void softmax_loss_forward(const device::ExecutionSpace& space, const SoftmaxLossShape& shape,
                          float* loss, std::int32_t* rank, const T* logits,
                          const std::int32_t* labels, const ImageMixing* mixing = nullptr,
                          const float* weights = nullptr);

/// dlogits = (softmax(logits) - target) * loss scaling / batch, with the loss scaling in device
/// memory.
template <class T>
void softmax_loss_backward(const device::ExecutionSpace& space, const SoftmaxLossShape& shape,
                           T* dlogits, const T* logits, const std::int32_t* labels,
                           const float* loss_scaling, const ImageMixing* mixing = nullptr,
                           const float* weights = nullptr);

}  // namespace millrace::ops
