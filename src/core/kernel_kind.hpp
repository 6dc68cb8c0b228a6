// SPDX-License-Identifier: Apache-2.0
//
// The kernels that programs call, one row each: the vocabulary that programs and backends share.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace millrace {

/// The comments name the buffers of a call; those in brackets are optional.
enum class KernelKind {
  LinearForward,         ///< X -> Y (convolution or dense)
  LinearBackwardInput,   ///< Dy -> Dx
  LinearBackwardWeight,  ///< Dy, X -> parameter gradients
  NormStatistics,        ///< X -> Statistics, and the running sums unless `repeated`
  NormMoments,           ///< X -> this replica's part of Exchange
  NormJoinMoments,       ///< Exchange -> Statistics, and the running sums
  NormRunning,           ///< moving statistics -> Statistics (evaluation)
  NormApply,             ///< X, Statistics, [Skip, [SkipStatistics]] -> Y, [Mask]
  /// Dy, [Dy2, [Scale]], X, Statistics, [Y or Mask] -> [Dz], Sums, Coefficients
  NormBackwardReduce,
  NormBackwardSums,    ///< the same -> [Dz], Sums, this replica's part of Exchange
  NormJoinSums,        ///< Exchange, Statistics -> Coefficients
  NormBackwardApply,   ///< Dz or Dy, [Dy2, Scale], X, Statistics, Coefficients -> Dx
  NormBackwardWeight,  ///< Sums -> parameter gradients
  ActivationForward,   ///< X -> Y
  ActivationBackward,  ///< Dy, X or Y -> Dx
  AddForward,          ///< X, Skip -> Y
  AddGradients,        ///< Dy, Dy2 -> Dz
  PoolForward,         ///< X, [Statistics] -> Y, [Winner]
  PoolBackward,        ///< Dy, [Winner] -> Dx
  GlobalPoolForward,   ///< X, [Statistics] -> Y
  GlobalPoolBackward,
  ShortcutForward,
  ShortcutBackward,
  LossForward,          ///< X, Labels, [Mixing], [Weights] -> Loss, Rank
  LossBackward,         ///< X, Labels, [Mixing], [Weights] -> Dx
  ConcatForward,        ///< X -> channels of Y, for operand `part` of the concatenation
  ConcatBackward,       ///< channels of Dy, [of Y] -> Dx
  ScaleForward,         ///< X, Scale, [Skip or Statistics] -> Y
  ScaleBackward,        ///< Dy, X, Scale or Statistics -> [Dx], Dscale
  DropoutForward,       ///< X -> Y
  DropoutBackward,      ///< Dy -> Dx
  DropConnectForward,   ///< X, [Skip] -> Y
  DropConnectBackward,  ///< Dy -> Dx
  PrepareImages,        ///< X (as arrived), [Scaling], [Mixing] -> Y; always the last kind
};

/// What a kernel's time is estimated from, besides the bytes that it reads and writes: the
/// multiply-accumulates of its op, one random number per element, or nothing. A slice moves only
/// its operand's part of the joined tensor.
enum class Work { Bytes, Products, Draws, Slice };

/// Sums over a step that a kernel adds to, in addition to its buffers.
enum class StepSums { None, Gradients, Running };

struct KernelRow {
  KernelKind kind;
  std::string_view name;
  Work work = Work::Bytes;
  StepSums adds_to = StepSums::None;  ///< checked for values that are not finite
  bool after_exchange = false;        ///< see exchanges_before
};

inline constexpr auto kKernels = std::to_array<KernelRow>({
    {KernelKind::LinearForward, "LinearForward", Work::Products},
    {KernelKind::LinearBackwardInput, "LinearBackwardInput", Work::Products},
    {KernelKind::LinearBackwardWeight, "LinearBackwardWeight", Work::Products, StepSums::Gradients},
    {KernelKind::NormStatistics, "NormStatistics", Work::Bytes, StepSums::Running},
    {KernelKind::NormMoments, "NormMoments"},
    {KernelKind::NormJoinMoments, "NormJoinMoments", Work::Bytes, StepSums::Running, true},
    {KernelKind::NormRunning, "NormRunning"},
    {KernelKind::NormApply, "NormApply"},
    {KernelKind::NormBackwardReduce, "NormBackwardReduce"},
    {KernelKind::NormBackwardSums, "NormBackwardSums"},
    {KernelKind::NormJoinSums, "NormJoinSums", Work::Bytes, StepSums::None, true},
    {KernelKind::NormBackwardApply, "NormBackwardApply"},
    {KernelKind::NormBackwardWeight, "NormBackwardWeight", Work::Bytes, StepSums::Gradients},
    {KernelKind::ActivationForward, "ActivationForward"},
    {KernelKind::ActivationBackward, "ActivationBackward"},
    {KernelKind::AddForward, "AddForward"},
    {KernelKind::AddGradients, "AddGradients"},
    {KernelKind::PoolForward, "PoolForward"},
    {KernelKind::PoolBackward, "PoolBackward"},
    {KernelKind::GlobalPoolForward, "GlobalPoolForward"},
    {KernelKind::GlobalPoolBackward, "GlobalPoolBackward"},
    {KernelKind::ShortcutForward, "ShortcutForward"},
    {KernelKind::ShortcutBackward, "ShortcutBackward"},
    {KernelKind::LossForward, "LossForward"},
    {KernelKind::LossBackward, "LossBackward"},
    {KernelKind::ConcatForward, "ConcatForward", Work::Slice},
    {KernelKind::ConcatBackward, "ConcatBackward", Work::Slice},
    {KernelKind::ScaleForward, "ScaleForward"},
    {KernelKind::ScaleBackward, "ScaleBackward"},
    {KernelKind::DropoutForward, "DropoutForward", Work::Draws},
    {KernelKind::DropoutBackward, "DropoutBackward", Work::Draws},
    {KernelKind::DropConnectForward, "DropConnectForward"},
    {KernelKind::DropConnectBackward, "DropConnectBackward"},
    {KernelKind::PrepareImages, "PrepareImages"},
});
static_assert(
    [] {
      for (std::size_t i = 0; i < kKernels.size(); ++i)
        if (kKernels[i].kind != static_cast<KernelKind>(i)) return false;
      return kKernels.back().kind == KernelKind::PrepareImages;
    }(),
    "one row per kernel, in the order of the kinds");

[[nodiscard]] constexpr const KernelRow& row_of(KernelKind kind) {
  return kKernels.at(static_cast<std::size_t>(kind));
}
[[nodiscard]] constexpr std::string_view name_of(KernelKind kind) { return row_of(kind).name; }
/// Whether the replicas of a group must exchange their parts before this call.
[[nodiscard]] constexpr bool exchanges_before(KernelKind kind) {
  return row_of(kind).after_exchange;
}
[[nodiscard]] constexpr bool is_linear(KernelKind kind) {
  return kind <= KernelKind::LinearBackwardWeight;
}
[[nodiscard]] constexpr bool is_norm(KernelKind kind) {
  return kind >= KernelKind::NormStatistics && kind <= KernelKind::NormBackwardWeight;
}

/// How a call uses a buffer.
enum class Role {
  X,
  Skip,
  Y,
  Dy,
  Dy2,
  Dz,
  Dx,
  Statistics,
  SkipStatistics,  ///< of a norm that is applied to Skip
  Coefficients,
  Sums,
  Winner,
  Mask,  ///< one bit for each element: whether it is positive
  Labels,
  Weights,  ///< of labels
  Loss,
  Rank,
  Scale,
  Dscale,
  Scaling,
  Mixing,
  Exchange
};
/// Activations and their gradients that a call may write; other roles of these types it only reads.
inline constexpr std::array kResultRoles = {Role::Y, Role::Dz, Role::Dx, Role::Dscale};
inline constexpr std::array<std::string_view, 22> kRoleNames = {
    "x",         "skip",         "y",      "dy",      "dy2",    "dz",      "dx",      "statistics",
    "skip norm", "coefficients", "sums",   "winner",  "mask",   "labels",  "weights", "loss",
    "rank",      "scale",        "dscale", "scaling", "mixing", "exchange"};
inline constexpr std::size_t kRoles = kRoleNames.size();
static_assert(kRoles == static_cast<std::size_t>(Role::Exchange) + 1);
[[nodiscard]] constexpr std::string_view name_of(Role role) {
  return kRoleNames.at(static_cast<std::size_t>(role));
}

}  // namespace millrace
