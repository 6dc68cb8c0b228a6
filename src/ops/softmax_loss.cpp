// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax_loss.hpp"

#include "ops/instantiate.hpp"

#include <cmath>

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// The labels of a sample's target with their weights, which sum to 1.
struct Sources {
  static constexpr int kMost = 4;
  int count = 1;
  std::int32_t label[kMost];
  float weight[kMost];
};

/// Sources of sample n according to ImageMixing.
KOKKOS_INLINE_FUNCTION Sources sources_of(std::int64_t n, const std::int32_t* labels,
                                          const ImageMixing* mixing) {
  Sources s;
  s.label[0] = labels[n];
  s.weight[0] = 1.0f;
  if (mixing == nullptr) return s;
  const ImageMixing own = mixing[n];
  const ImageMixing donor = mixing[own.donor];
  s.count = Sources::kMost;
  s.label[1] = labels[own.partner];
  s.label[2] = labels[own.donor];
  s.label[3] = labels[donor.partner];
  s.weight[0] = (1.0f - own.area) * own.share;
  s.weight[1] = (1.0f - own.area) * (1.0f - own.share);
  s.weight[2] = own.area * donor.share;
  s.weight[3] = own.area * (1.0f - donor.share);
  return s;
}

template <class T>
KOKKOS_INLINE_FUNCTION float largest(const T* row, std::int64_t classes) {
  float top = to_float(row[0]);
  for (std::int64_t k = 1; k < classes; ++k) {
    const float z = to_float(row[k]);
    if (z > top) top = z;
  }
  return top;
}

}  // namespace

float SoftmaxLossShape::off() const {
  const auto k = static_cast<float>(classes);
  if (form == SmoothingForm::AllClasses) return smoothing / k;
  return classes > 1 ? smoothing / (k - 1.0f) : 0.0f;
}

float SoftmaxLossShape::on() const {
  return form == SmoothingForm::AllClasses ? 1.0f - smoothing + off() : 1.0f - smoothing;
}

template <class T>
void softmax_loss_forward(const ExecutionSpace& space, const SoftmaxLossShape& s, float* loss,
                          std::int32_t* rank, const T* logits, const std::int32_t* labels,
                          const ImageMixing* mixing) {
  const float on = s.on();
  const float off = s.off();
  const auto sample = KOKKOS_LAMBDA(std::int64_t n) {
    const T* row = logits + n * s.classes;
    const std::int32_t label = labels[n];
    if (label < 0) {
      loss[n] = 0.0f;
      rank[n] = static_cast<std::int32_t>(s.classes);
      return;
    }
    const float top = largest(row, s.classes);
    const float own = to_float(row[label]);
    float total = 0.0f;
    float sum = 0.0f;
    std::int32_t ahead = 0;
    for (std::int64_t k = 0; k < s.classes; ++k) {
      const float z = to_float(row[k]);
      total += std::exp(z - top);
      sum += z - top;
      ahead += z > own || (!(z < own) && k < label) ? 1 : 0;
    }
    const float log_total = std::log(total);
    const Sources sources = sources_of(n, labels, mixing);
    float log_labels = 0.0f;  // weighted mean over the sources
    for (int i = 0; i < sources.count; ++i)
      log_labels += sources.weight[i] * (to_float(row[sources.label[i]]) - top - log_total);
    const float log_all = sum - static_cast<float>(s.classes) * log_total;
    loss[n] = -(on * log_labels + off * (log_all - log_labels));
    rank[n] = ahead;
  };
  parallel("softmax loss", space, s.batch, sample);
}

template <class T>
void softmax_loss_backward(const ExecutionSpace& space, const SoftmaxLossShape& s, T* dlogits,
                           const T* logits, const std::int32_t* labels, float scale,
                           const ImageMixing* mixing) {
  const float on = s.on();
  const float off = s.off();
  const auto sample = KOKKOS_LAMBDA(std::int64_t n) {
    const T* row = logits + n * s.classes;
    T* out = dlogits + n * s.classes;
    if (labels[n] < 0) {
      for (std::int64_t k = 0; k < s.classes; ++k) out[k] = store_as<T>(0.0f);
      return;
    }
    const float top = largest(row, s.classes);
    float total = 0.0f;
    for (std::int64_t k = 0; k < s.classes; ++k) total += std::exp(to_float(row[k]) - top);
    const Sources sources = sources_of(n, labels, mixing);
    for (std::int64_t k = 0; k < s.classes; ++k) {
      const float p = std::exp(to_float(row[k]) - top) / total;
      float share = 0.0f;  // total weight of the labels of this class
      for (int i = 0; i < sources.count; ++i)
        share += sources.label[i] == k ? sources.weight[i] : 0.0f;
      const float target = share * on + (1.0f - share) * off;
      out[k] = store_as<T>((p - target) * scale);
    }
  };
  parallel("softmax dx", space, s.batch, sample);
}

MILLRACE_INSTANTIATE(softmax_loss_forward)
MILLRACE_INSTANTIATE(softmax_loss_backward)

}  // namespace millrace::ops
