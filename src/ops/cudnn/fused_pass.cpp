// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/fused_pass.hpp"

namespace millrace::ops::cudnn {
namespace {

std::int32_t buffer(const OfferedCall& call, Role role) {
  return call.buffers[static_cast<std::size_t>(role)];
}

}  // namespace

std::optional<PassShape> fused_pass(std::span<const OfferedCall> calls, DType type) {
  if (type != DType::F16 || calls.size() < 2) return {};
  const OfferedCall& conv = calls[0];
  const OfferedCall& norm = calls[1];
  if (conv.kind != KernelKind::LinearForward || norm.kind != KernelKind::NormStatistics) return {};
  const auto* const shape = std::get_if<ConvShape>(&conv.shape);
  if (shape == nullptr || shape->bias || shape->padded_channels > 0) return {};
  if (!std::get<NormShape>(norm.shape).by_channel()) return {};
  if (buffer(norm, Role::X) != buffer(conv, Role::Y)) return {};
  return PassShape{*shape, type, Pass::Forward, true};
}

}  // namespace millrace::ops::cudnn
