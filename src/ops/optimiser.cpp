// SPDX-License-Identifier: Apache-2.0
#include "ops/optimiser.hpp"

#include <cmath>
#include <type_traits>

#include "device/compat.hpp"
#include "ops/sums.hpp"
#include "ops/tiling.hpp"
#include "ops/update_pieces.hpp"
#include "ops/update_rules.hpp"
#include "ops/update_spans.hpp"

namespace millrace::ops {
namespace {

/// The weights and the gradients of a span, for LARS.
template <class M>
struct AdaptedSpan {
  static constexpr int kSequences = 2;
  float scale;
  UpdateArrays<M> a;

  struct Weights {
    const M* values;
    KOKKOS_INLINE_FUNCTION float operator()(std::int64_t k) const { return to_float(values[k]); }
  };
  struct Gradients {
    const float* values;
    float scale;
    KOKKOS_INLINE_FUNCTION float operator()(std::int64_t k) const {
      return rounded_as<M>(values[k] * scale);
    }
  };
  template <class Sum>
  KOKKOS_INLINE_FUNCTION void use(std::int64_t i, const Sum& sum) const {
    const ParameterSpan span = a.spans[i];
    if (!span.adapts) return;
    sum(0, span.elements, Weights{a.weights + span.offset});
    sum(1, span.elements, Gradients{a.gradients + span.offset, scale});
  }
};

/// Computes a tensor's ratio from the sums of its spans, which a team adds in place as a tree.
template <class M>
struct LarsRatio {
  static constexpr int kThreads = kTeamThreads;
  static constexpr std::size_t kSharedBytes = sizeof(Accumulator);  // not used
  Update u;
  UpdateArrays<M> a;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t t) const {
    const TensorSpans tensor = a.tensors[t];
    if (!a.spans[tensor.first].adapts) return;
    Accumulator* const sums = a.squares + 2 * tensor.first;
    for (std::int64_t step = 1; step < tensor.spans; step *= 2) {
      for (std::int64_t i = 2 * step * team.rank(); i + step < tensor.spans;
           i += 2 * step * team.size()) {
        sums[2 * i] += sums[2 * (i + step)];
        sums[2 * i + 1] += sums[2 * (i + step) + 1];
      }
      team.wait();
    }
    using std::sqrt;
    if (team.rank() == 0)
      a.ratios[t] = ratio(sqrt(sums[0]), sqrt(sums[1]), a.spans[tensor.first].decays);
  }

  KOKKOS_FUNCTION float ratio(Accumulator weights, Accumulator gradients, bool decays) const {
    if (weights == Accumulator{} || gradients == Accumulator{}) return 1.0f;
    const Accumulator decay = decays ? static_cast<Accumulator>(u.weight_decay) : Accumulator{};
    const Accumulator below = gradients + decay * weights + static_cast<Accumulator>(u.epsilon);
    return static_cast<float>(static_cast<Accumulator>(u.trust) * weights / below);
  }
};

template <class M>
void lars_ratios(const device::ExecutionSpace& space, const Update& u, const UpdateArrays<M>& a) {
  sum_squares("lars_squares", space, a.num_spans, AdaptedSpan<M>{u.gradient_scale, a}, a.squares);
  device::parallel_teams("lars_ratio", space, a.num_tensors, LarsRatio<M>{u, a});
}

template <class Rule, bool kStochastic, class Copy, std::size_t kLabelSize, class M>
void update(const char (&label)[kLabelSize], const device::ExecutionSpace& space, const Update& u,
            const UpdateArrays<M>& a) {
  if constexpr (device::kOnCores) {
    using Storage = std::conditional_t<kStochastic, Stochastic<M>, Nearest<M>>;
    device::parallel(label, space, a.num_spans, UpdateSpan<Rule, Storage, Copy>{u, a});
  } else {
    using Piece = UpdatePiece<Rule, M, kStochastic, Copy>;
    device::parallel(label, space, a.num_spans * kPiecesOfSpan,
                     Pieces<Piece>{{u, a}, a.spans, are_aligned(a)});
  }
}

/// A rule without a row in the table, or with other slots than its row, does not compile.
template <UpdateRule kRule, class Rule, std::size_t kLabelSize, class M>
void launch(const char (&label)[kLabelSize], const device::ExecutionSpace& space, const Update& u,
            const UpdateArrays<M>& a) {
  static_assert(row_of(kRule).slots.size() == Rule::kSlots);
  if constexpr (std::is_same_v<M, float>) {
    if (a.copy == nullptr) return update<Rule, false, float>(label, space, u, a);
    if (a.copy_type == DType::F16) return update<Rule, false, float16>(label, space, u, a);
    update<Rule, false, bfloat16>(label, space, u, a);
  } else {
    if (a.stochastic) return update<Rule, true, float>(label, space, u, a);
    update<Rule, false, float>(label, space, u, a);
  }
}

template <class Copy, class M>
void refresh(const device::ExecutionSpace& space, const UpdateArrays<M>& a) {
  if constexpr (device::kOnCores) {
    device::parallel("refresh_copies", space, a.num_spans, RefreshSpan<M, Copy>{a});
  } else {
    device::parallel("refresh_copies", space, a.num_spans * kPiecesOfSpan,
                     Pieces<RefreshPiece<M, Copy>>{{a}, a.spans, are_aligned(a)});
  }
}

}  // namespace

template <class M>
void update_weights(const device::ExecutionSpace& space, UpdateRule rule, const Update& u,
                    const UpdateArrays<M>& a) {
  switch (rule) {
    case UpdateRule::Sgd:
      return launch<UpdateRule::Sgd, Sgd>("sgd", space, u, a);
    case UpdateRule::Momentum:
      return launch<UpdateRule::Momentum, Momentum>("momentum", space, u, a);
    case UpdateRule::MomentumRateInside:
      return launch<UpdateRule::MomentumRateInside, RateInside<false>>("rate_inside", space, u, a);
    case UpdateRule::Nesterov:
      return launch<UpdateRule::Nesterov, Nesterov>("nesterov", space, u, a);
    case UpdateRule::RmsProp:
      return launch<UpdateRule::RmsProp, RmsProp>("rmsprop", space, u, a);
    case UpdateRule::Lars:
      lars_ratios(space, u, a);
      return launch<UpdateRule::Lars, RateInside<true>>("lars", space, u, a);
    case UpdateRule::Adam:
      return launch<UpdateRule::Adam, AdamRule<false>>("adam", space, u, a);
    case UpdateRule::AdamW:
      return launch<UpdateRule::AdamW, AdamRule<true>>("adamw", space, u, a);
  }
}

template <class M>
void refresh_copies(const device::ExecutionSpace& space, const UpdateArrays<M>& a) {
  if (a.copy == nullptr && a.vectors == nullptr) return;
  if (a.copy_type == DType::F16) return refresh<float16>(space, a);
  refresh<bfloat16>(space, a);
}

MILLRACE_INSTANTIATE(update_weights)
MILLRACE_INSTANTIATE(refresh_copies)

}  // namespace millrace::ops
