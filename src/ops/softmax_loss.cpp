// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax_loss.hpp"

#include <cmath>

#include "ops/sums.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;
using device::parallel_teams;

/// The labels of a sample's target with their weights, and the sum of these: 1 unless labels are
/// weighted.
struct Sources {
  static constexpr int kMost = 4;
  int count = 1;
  float total;
  std::int32_t label[kMost];
  float weight[kMost];
};

/// Sources of sample n according to ImageMixing. Null: labels are not mixed, or not weighted.
KOKKOS_INLINE_FUNCTION Sources sources_of(std::int64_t n, const std::int32_t* labels,
                                          const ImageMixing* mixing, const float* weights) {
  Sources s;
  s.label[0] = labels[n];
  s.weight[0] = s.total = weights == nullptr ? 1.0f : weights[n];
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
  if (weights == nullptr) return s;
  const std::int32_t from[] = {static_cast<std::int32_t>(n), own.partner, own.donor, donor.partner};
  s.total = 0.0f;
  for (int i = 0; i < s.count; ++i) s.total += s.weight[i] *= weights[from[i]];
  return s;
}

/// The targets of a shape.
struct Targets {
  float on;
  float off;
};

template <class T>
struct LossArrays {
  float* loss;
  std::int32_t* rank;
  const T* logits;
  const std::int32_t* labels;
  const ImageMixing* mixing;
  const float* weights;
  std::int64_t classes;
  Targets targets;

  [[nodiscard]] KOKKOS_INLINE_FUNCTION bool is_ahead(std::int64_t k, float z, std::int32_t label,
                                                     float own) const {
    return z > own || (!(z < own) && k < label);
  }
  KOKKOS_INLINE_FUNCTION void store_padding(std::int64_t n) const {
    loss[n] = 0.0f;
    rank[n] = static_cast<std::int32_t>(classes);
  }
  /// From the sums over the classes of exp(z - top) and of z - top.
  KOKKOS_INLINE_FUNCTION void store(std::int64_t n, float top, float total, float sum,
                                    std::int32_t ahead) const {
    const T* const row = logits + n * classes;
    const float log_total = std::log(total);
    const Sources sources = sources_of(n, labels, mixing, weights);
    float log_labels = 0.0f;  // weighted mean over the sources
    for (int i = 0; i < sources.count; ++i)
      log_labels += sources.weight[i] * (to_float(row[sources.label[i]]) - top - log_total);
    const float log_all = sum - static_cast<float>(classes) * log_total;
    loss[n] = -(targets.on * log_labels + targets.off * (sources.total * log_all - log_labels));
    rank[n] = ahead;
  }
};

template <class T>
struct GradientArrays {
  T* dlogits;
  const T* logits;
  const std::int32_t* labels;
  const ImageMixing* mixing;
  const float* weights;
  std::int64_t classes;
  Targets targets;
  const float* loss_scaling;
  float batch;

  [[nodiscard]] KOKKOS_INLINE_FUNCTION float scale() const { return *loss_scaling / batch; }
  KOKKOS_INLINE_FUNCTION void store(const Sources& sources, std::int64_t n, std::int64_t k,
                                    float top, float total, float scale) const {
    const float p = std::exp(to_float(logits[n * classes + k]) - top) / total;
    float share = 0.0f;  // total weight of the labels of this class
    for (int i = 0; i < sources.count; ++i)
      share += sources.label[i] == k ? sources.weight[i] : 0.0f;
    const float target = share * targets.on + (sources.total - share) * targets.off;
    dlogits[n * classes + k] = store_as<T>((sources.total * p - target) * scale);
  }
};

// ---- on cores: a work item is a row

template <class T>
KOKKOS_INLINE_FUNCTION float largest(const T* row, std::int64_t classes) {
  float top = to_float(row[0]);
  for (std::int64_t k = 1; k < classes; ++k) {
    const float z = to_float(row[k]);
    if (z > top) top = z;
  }
  return top;
}

template <class T>
struct LossOfRow {
  LossArrays<T> a;

  KOKKOS_FUNCTION void operator()(std::int64_t n) const {
    const T* const row = a.logits + n * a.classes;
    const std::int32_t label = a.labels[n];
    if (label < 0) return a.store_padding(n);
    const float top = largest(row, a.classes);
    const float own = to_float(row[label]);
    float total = 0.0f;
    float sum = 0.0f;
    std::int32_t ahead = 0;
    for (std::int64_t k = 0; k < a.classes; ++k) {
      const float z = to_float(row[k]);
      total += std::exp(z - top);
      sum += z - top;
      ahead += a.is_ahead(k, z, label, own) ? 1 : 0;
    }
    a.store(n, top, total, sum, ahead);
  }
};

template <class T>
struct GradientOfRow {
  GradientArrays<T> a;

  KOKKOS_FUNCTION void operator()(std::int64_t n) const {
    const T* const row = a.logits + n * a.classes;
    if (a.labels[n] < 0) {
      T* const out = a.dlogits + n * a.classes;
      for (std::int64_t k = 0; k < a.classes; ++k) out[k] = store_as<T>(0.0f);
      return;
    }
    const float top = largest(row, a.classes);
    float total = 0.0f;
    for (std::int64_t k = 0; k < a.classes; ++k) total += std::exp(to_float(row[k]) - top);
    const Sources sources = sources_of(n, a.labels, a.mixing, a.weights);
    const float scale = a.scale();
    for (std::int64_t k = 0; k < a.classes; ++k) a.store(sources, n, k, top, total, scale);
  }
};

// ---- on accelerators: a team has a row

/// The larger; NaN only if `a` is, as in largest().
struct Larger {
  KOKKOS_INLINE_FUNCTION static float join(float a, float b) { return b > a ? b : a; }
};

/// What is summed over a row.
struct RowSums {
  float exponentials;
  float differences;
  std::int32_t ahead;
};
struct AddRowSums {
  KOKKOS_INLINE_FUNCTION static RowSums join(const RowSums& a, const RowSums& b) {
    return {a.exponentials + b.exponentials, a.differences + b.differences, a.ahead + b.ahead};
  }
};

/// The largest logit, for every thread; lanes without a class repeat the first logit.
template <class T>
KOKKOS_INLINE_FUNCTION float largest_by_team(const device::Team& team, float* lanes, const T* row,
                                             std::int64_t classes) {
  for (int lane = team.rank(); lane < kTeamLanes; lane += team.size()) {
    float top = to_float(row[0]);
    for (std::int64_t k = lane; k < classes; k += kTeamLanes)
      top = Larger::join(top, to_float(row[k]));
    lanes[lane] = top;
  }
  join_lanes<Larger>(team, lanes);
  return lanes[0];
}

template <class T>
struct LossByTeam {
  static constexpr int kThreads = kTeamThreads;
  struct Shared {
    float tops[kTeamLanes];
    RowSums sums[kTeamLanes];
  };
  static constexpr std::size_t kSharedBytes = sizeof(Shared);
  LossArrays<T> a;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t n) const {
    Shared& shared = *reinterpret_cast<Shared*>(team.shared());
    const T* const row = a.logits + n * a.classes;
    const std::int32_t label = a.labels[n];
    if (label < 0) {
      if (team.rank() == 0) a.store_padding(n);
      return;
    }
    const float top = largest_by_team(team, shared.tops, row, a.classes);
    const float own = to_float(row[label]);
    for (int lane = team.rank(); lane < kTeamLanes; lane += team.size()) {
      RowSums sums = {0.0f, 0.0f, 0};
      for (std::int64_t k = lane; k < a.classes; k += kTeamLanes) {
        const float z = to_float(row[k]);
        sums.exponentials += std::exp(z - top);
        sums.differences += z - top;
        sums.ahead += a.is_ahead(k, z, label, own) ? 1 : 0;
      }
      shared.sums[lane] = sums;
    }
    join_lanes<AddRowSums>(team, shared.sums);
    const RowSums& all = shared.sums[0];
    if (team.rank() == 0) a.store(n, top, all.exponentials, all.differences, all.ahead);
  }
};

template <class T>
struct GradientByTeam {
  static constexpr int kThreads = kTeamThreads;
  struct Shared {
    float tops[kTeamLanes];
    float sums[kTeamLanes];
  };
  static constexpr std::size_t kSharedBytes = sizeof(Shared);
  GradientArrays<T> a;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t n) const {
    Shared& shared = *reinterpret_cast<Shared*>(team.shared());
    const T* const row = a.logits + n * a.classes;
    if (a.labels[n] < 0) {
      T* const out = a.dlogits + n * a.classes;
      for (std::int64_t k = team.rank(); k < a.classes; k += team.size())
        out[k] = store_as<T>(0.0f);
      return;
    }
    const float top = largest_by_team(team, shared.tops, row, a.classes);
    for (int lane = team.rank(); lane < kTeamLanes; lane += team.size()) {
      float sum = 0.0f;
      for (std::int64_t k = lane; k < a.classes; k += kTeamLanes)
        sum += std::exp(to_float(row[k]) - top);
      shared.sums[lane] = sum;
    }
    join_lanes<Plus>(team, shared.sums);
    const float total = shared.sums[0];
    const Sources sources = sources_of(n, a.labels, a.mixing, a.weights);
    const float scale = a.scale();
    for (std::int64_t k = team.rank(); k < a.classes; k += team.size())
      a.store(sources, n, k, top, total, scale);
  }
};

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
                          const ImageMixing* mixing, const float* weights) {
  const LossArrays<T> a{loss, rank, logits, labels, mixing, weights, s.classes, {s.on(), s.off()}};
  if constexpr (device::kOnCores) {
    parallel("softmax loss", space, s.batch, LossOfRow<T>{a});
  } else {
    parallel_teams("softmax loss", space, s.batch, LossByTeam<T>{a});
  }
}

template <class T>
void softmax_loss_backward(const ExecutionSpace& space, const SoftmaxLossShape& s, T* dlogits,
                           const T* logits, const std::int32_t* labels, const float* loss_scaling,
                           const ImageMixing* mixing, const float* weights) {
  const Targets targets{s.on(), s.off()};
  const auto batch = static_cast<float>(s.batch);
  const GradientArrays<T> a{dlogits,   logits,  labels,       mixing, weights,
                            s.classes, targets, loss_scaling, batch};
  if constexpr (device::kOnCores) {
    parallel("softmax dx", space, s.batch, GradientOfRow<T>{a});
  } else {
    parallel_teams("softmax dx", space, s.batch, GradientByTeam<T>{a});
  }
}

MILLRACE_INSTANTIATE(softmax_loss_forward)
MILLRACE_INSTANTIATE(softmax_loss_backward)

}  // namespace millrace::ops
