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

void begin_step(const device::ExecutionSpace& space, StepState* step,
                const StepValues& after_update, const StepValues& after_skip) {
  const auto begin = KOKKOS_LAMBDA(std::int64_t) {
    step->values = step->skips != 0 ? after_skip : after_update;
    step->skips = 0;
  };
  device::parallel("begin step", space, 1, begin);
}

namespace {

/// The weights and the gradients of a span, for LARS.
template <class M>
struct AdaptedSpan {
  static constexpr int kSequences = 2;
  const StepState* step;
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
    sum(1, span.elements, Gradients{a.gradients + span.offset, step->values.update.gradient_scale});
  }
};

/// Computes a tensor's ratio from the sums of its spans, which a team adds in place as a tree.
template <class M>
struct LarsRatio {
  static constexpr int kThreads = kTeamThreads;
  static constexpr std::size_t kSharedBytes = sizeof(Accumulator);  // not used
  const StepState* step;
  UpdateArrays<M> a;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t t) const {
    const TensorSpans tensor = a.tensors[t];
    if (!a.spans[tensor.first].adapts) return;
    Accumulator* const sums = a.squares + 2 * tensor.first;
    for (std::int64_t apart = 1; apart < tensor.spans; apart *= 2) {
      for (std::int64_t i = 2 * apart * team.rank(); i + apart < tensor.spans;
           i += 2 * apart * team.size()) {
        sums[2 * i] += sums[2 * (i + apart)];
        sums[2 * i + 1] += sums[2 * (i + apart) + 1];
      }
      team.wait();
    }
    using std::sqrt;
    if (team.rank() == 0)
      a.ratios[t] = ratio(sqrt(sums[0]), sqrt(sums[1]), a.spans[tensor.first].decays);
  }

  KOKKOS_FUNCTION float ratio(Accumulator weights, Accumulator gradients, bool decays) const {
    const Update& u = step->values.update;
    if (weights == Accumulator{} || gradients == Accumulator{}) return 1.0f;
    const Accumulator decay = decays ? static_cast<Accumulator>(u.weight_decay) : Accumulator{};
    const Accumulator below = gradients + decay * weights + static_cast<Accumulator>(u.epsilon);
    return static_cast<float>(static_cast<Accumulator>(u.trust) * weights / below);
  }
};

template <class M>
void lars_ratios(const device::ExecutionSpace& space, const StepState* step,
                 const UpdateArrays<M>& a) {
  sum_squares("lars_squares", space, a.num_spans, AdaptedSpan<M>{step, a}, a.squares);
  device::parallel_teams("lars_ratio", space, a.num_tensors, LarsRatio<M>{step, a});
}

template <class Rule, bool kStochastic, class Copy, std::size_t kLabelSize, class M>
void update(const char (&label)[kLabelSize], const device::ExecutionSpace& space,
            const StepState* step, const UpdateArrays<M>& a) {
  if constexpr (device::kOnCores) {
    using Storage = std::conditional_t<kStochastic, Stochastic<M>, Nearest<M>>;
    device::parallel(label, space, a.num_spans, UpdateSpan<Rule, Storage, Copy>{step, a});
  } else {
    using Piece = UpdatePiece<Rule, M, kStochastic, Copy>;
    device::parallel(label, space, a.num_spans * kPiecesOfSpan,
                     Pieces<Piece>{{step, a}, a.spans, are_aligned(a)});
  }
}

/// A rule without a row in the table, or with other slots than its row, does not compile.
template <UpdateRule kRule, class Rule, std::size_t kLabelSize, class M>
void launch(const char (&label)[kLabelSize], const device::ExecutionSpace& space,
            const StepState* step, const UpdateArrays<M>& a) {
  static_assert(row_of(kRule).slots.size() == Rule::kSlots);
  if constexpr (std::is_same_v<M, float>) {
    if (a.copy == nullptr) return update<Rule, false, float>(label, space, step, a);
    if (a.copy_type == DType::F16) return update<Rule, false, float16>(label, space, step, a);
    update<Rule, false, bfloat16>(label, space, step, a);
  } else {
    if (a.stochastic) return update<Rule, true, float>(label, space, step, a);
    update<Rule, false, float>(label, space, step, a);
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
void update_weights(const device::ExecutionSpace& space, UpdateRule rule, const StepState* step,
                    const UpdateArrays<M>& a) {
  switch (rule) {
    case UpdateRule::Sgd:
      return launch<UpdateRule::Sgd, Sgd>("sgd", space, step, a);
    case UpdateRule::Momentum:
      return launch<UpdateRule::Momentum, Momentum>("momentum", space, step, a);
    case UpdateRule::MomentumRateInside:
      return launch<UpdateRule::MomentumRateInside, RateInside<false>>("rate_inside", space, step,
                                                                       a);
    case UpdateRule::Nesterov:
      return launch<UpdateRule::Nesterov, Nesterov>("nesterov", space, step, a);
    case UpdateRule::RmsProp:
      return launch<UpdateRule::RmsProp, RmsProp>("rmsprop", space, step, a);
    case UpdateRule::Lars:
      lars_ratios(space, step, a);
      return launch<UpdateRule::Lars, RateInside<true>>("lars", space, step, a);
    case UpdateRule::Adam:
      return launch<UpdateRule::Adam, AdamRule<false>>("adam", space, step, a);
    case UpdateRule::AdamW:
      return launch<UpdateRule::AdamW, AdamRule<true>>("adamw", space, step, a);
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
