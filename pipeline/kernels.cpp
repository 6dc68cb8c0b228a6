// SPDX-License-Identifier: Apache-2.0
#include "pipeline/kernels.hpp"

#include "core/error.hpp"

namespace millrace::pipeline {

Kernel make_kernel(const Binding& binding) {
  switch (binding.call.kind) {
    case KernelKind::LinearForward:
    case KernelKind::LinearBackwardInput:
    case KernelKind::LinearBackwardWeight:
      return make_linear_kernel(binding);
    case KernelKind::NormStatistics:
    case KernelKind::NormMoments:
    case KernelKind::NormJoinMoments:
    case KernelKind::NormRunning:
    case KernelKind::NormApply:
    case KernelKind::NormBackwardReduce:
    case KernelKind::NormBackwardSums:
    case KernelKind::NormJoinSums:
    case KernelKind::NormBackwardApply:
    case KernelKind::NormBackwardWeight:
      return make_norm_kernel(binding);
    case KernelKind::ActivationForward:
    case KernelKind::ActivationBackward:
    case KernelKind::AddForward:
    case KernelKind::AddGradients:
      return make_elementwise_kernel(binding);
    case KernelKind::PoolForward:
    case KernelKind::PoolBackward:
    case KernelKind::GlobalPoolForward:
    case KernelKind::GlobalPoolBackward:
    case KernelKind::ShortcutForward:
    case KernelKind::ShortcutBackward:
      return make_pool_kernel(binding);
    case KernelKind::LossForward:
    case KernelKind::LossBackward:
      return make_loss_kernel(binding);
    case KernelKind::ConcatForward:
    case KernelKind::ConcatBackward:
    case KernelKind::ScaleForward:
    case KernelKind::ScaleBackward:
      return make_channel_kernel(binding);
    case KernelKind::DropoutForward:
    case KernelKind::DropoutBackward:
    case KernelKind::DropConnectForward:
    case KernelKind::DropConnectBackward:
      return make_dropout_kernel(binding);
    case KernelKind::PrepareImages:
      return make_image_kernel(binding);
  }
  fail(ErrorKind::Internal, "kernel {} cannot be made", name_of(binding.call.kind));
}

}  // namespace millrace::pipeline
