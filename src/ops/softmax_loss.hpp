// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/image_records.hpp"
#include "core/label_smoothing.hpp"
#include "device/tensor.hpp"

namespace millrace::ops {

/// Softmax cross-entropy with label smoothing s. The target of the label's class is `on`, that of
/// every other class `off`: 1 - s and s / (K - 1), or 1 - s + s / K and s / K, by the form; K =
/// classes, the number of logits. Where labels are mixed a target is the mean of those of up to
/// four labels, weighted as ImageMixing says. Samples with label -1 are padding: loss 0, rank
/// `classes`, gradient 0; a micro-batch that is mixed has none.
struct SoftmaxLossShape {
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  float smoothing = 0.0f;
  SmoothingForm form = SmoothingForm::OtherClasses;
  /// Targets; with a single class both forms mean the plain label, less its share.
  [[nodiscard]] float on() const;
  [[nodiscard]] float off() const;
};

/// loss[n] = -sum_k target log softmax(logits)[k]; rank[n] = number of classes ahead of the
/// sample's own label, mixed or not (0: top-1 is right; ties count the lower class first).
/// `mixing`: one record a sample, or nullptr.
template <class T>
void softmax_loss_forward(const device::ExecutionSpace& space, const SoftmaxLossShape& shape,
                          float* loss, std::int32_t* rank, const T* logits,
                          const std::int32_t* labels, const ImageMixing* mixing = nullptr);

/// dlogits = (softmax(logits) - target) * scale, scale = loss scaling / batch.
template <class T>
void softmax_loss_backward(const device::ExecutionSpace& space, const SoftmaxLossShape& shape,
                           T* dlogits, const T* logits, const std::int32_t* labels, float scale,
                           const ImageMixing* mixing = nullptr);

}  // namespace millrace::ops
