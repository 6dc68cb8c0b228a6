// SPDX-License-Identifier: Apache-2.0
#include "ops/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/environment.hpp"
#include "ops/kernel_choice.hpp"
#include "ops/linear_ops.hpp"
#if defined(MILLRACE_ONEDNN)
#include "ops/onednn/vendor.hpp"
#elif defined(MILLRACE_CUDNN)
#include "ops/cudnn/vendor.hpp"
#endif

namespace millrace::ops {
namespace {

/// Whether the vendor of this build computes on cores.
constexpr bool kVendorOnCores = MILLRACE_ON_HOST == 1;

/// The op on our own kernels.
std::unique_ptr<LinearOp> make_own(const ConvShape& s, DType type) {
  constexpr std::int64_t kFewChannels = 4;  // a tile would compute mostly zeros
#ifndef MILLRACE_ONEDNN  // which has such kernels: the program is smaller without ours
  if (has_depthwise_pixels(s))
    return make_depthwise_gradient(s, type, make_depthwise_pixels(s, type));
#endif
  if (is_depthwise(s)) return make_depthwise_gradient(s, type, make_plain(s, type));
  const std::int64_t channels = std::min(s.window.in.c, s.window.out.c) / s.groups;
  if (s.groups > 1 && channels < kFewChannels) return make_plain(s, type);
  return make_tiled(s, type);
}
std::unique_ptr<LinearOp> make_own(const DenseShape& s, DType type) { return make_tiled(s, type); }

}  // namespace

std::unique_ptr<LinearOp> Backend::convolution(const ConvShape& s, DType type,
                                               Passes passes) const {
  const std::int64_t cap = caps_.convolution;
  if (s.padded_channels > 0)
    return make_padded_channels(s, type, convolution(padded_shape(s), type, passes));
  if (!vendor_ || choice_ == Choice::VendorOnly) return complete(s, type, passes, cap);
  const KernelChoice choice = choose_kernel(s, type, passes, vendor_->level());
  switch (choice.replacement) {
    case Replacement::None:
      break;
    case Replacement::Gathered:
      return make_strided_pointwise(s, type, convolution(gathered_shape(s), type, passes));
    case Replacement::Product: {
      const DenseShape dense{s.window.batch, s.window.in.c, s.window.out.c, s.bias};
      return complete(dense, type, passes, cap);
    }
    case Replacement::OwnGradient:
      return make_depthwise_gradient(s, type,
                                     complete(s, type, {passes.backward_input, false}, cap));
    case Replacement::Turned:
      return turned(s, type, passes);
    case Replacement::Merged:
      return make_merged_groups(s, choice.merged, type,
                                convolution(merged_shape(s, choice.merged), type, passes));
  }
  return complete(s, type, passes, cap);
}

std::unique_ptr<LinearOp> Backend::turned(const ConvShape& s, DType type, Passes passes) const {
  const std::int64_t cap = caps_.convolution;
  const Passes rest = {false, passes.backward_weight, passes.forward};
  std::unique_ptr<LinearOp> turned =
      make_turned(s, complete(turned_shape(s), type, {false, false, true}, cap));
  if (rest == Passes{false, false, false}) return turned;
  return make_by_pass(rest, complete(s, type, rest, cap), std::move(turned));
}

/// For each pass, uses the vendor's kernel for the type if there is one, else, on cores, its
/// float32 kernel between conversions, else our own.
template <class Shape>
std::unique_ptr<LinearOp> Backend::complete(const Shape& shape, DType type, Passes passes,
                                            std::int64_t cap) const {
  if (!vendor_) return make_own(shape, type);
  LinearClaim claim = vendor_->claim(shape, type, passes, cap);
  if (claim.passes == passes) return std::move(claim.op);
  const Passes rest{passes.backward_input && !claim.passes.backward_input,
                    passes.backward_weight && !claim.passes.backward_weight,
                    passes.forward && !claim.passes.forward};
  std::unique_ptr<LinearOp> others = type == DType::F32 || !kVendorOnCores
                                         ? make_own(shape, type)
                                         : widened(shape, type, rest, cap);
  if (rest == passes) return others;
  return make_by_pass(claim.passes, std::move(claim.op), std::move(others));
}

std::unique_ptr<LinearOp> Backend::widened(const ConvShape& s, DType type, Passes passes,
                                           std::int64_t) const {
  const WindowShape& w = s.window;
  const std::int64_t samples =
      samples_in_block(w.batch, w.in.elements() + w.out.elements(), device::kernel_threads());
  ConvShape block = s;
  block.window.batch = samples;
  return make_widened({w.batch / samples, block.window.in_elements(), block.window.out_elements(),
                       s.kernel_elements()},
                      type, convolution(block, DType::F32, passes));
}

std::unique_ptr<LinearOp> Backend::widened(const DenseShape& s, DType type, Passes passes,
                                           std::int64_t cap) const {
  return make_widened({1, s.batch * s.in, s.batch * s.units, s.in * s.units}, type,
                      complete(s, DType::F32, passes, cap));
}

RunClaim Backend::claim(std::span<const OfferedCall> calls, DType type) const {
  const auto padded = std::ranges::find_if(calls, [](const OfferedCall& call) {
    const auto* const conv = std::get_if<ConvShape>(&call.shape);
    return conv != nullptr && conv->padded_channels > 0;
  });
  const auto offered = calls.first(static_cast<std::size_t>(padded - calls.begin()));
  return vendor_ && !offered.empty() ? vendor_->claim(offered, type, caps_.convolution)
                                     : RunClaim{};
}

std::unique_ptr<Vendor> make_vendor([[maybe_unused]] bool allow_nondeterministic) {
#if defined(MILLRACE_ONEDNN)
  return make_onednn_vendor();
#elif defined(MILLRACE_CUDNN)
  return make_cudnn_vendor(allow_nondeterministic);
#else
  return nullptr;
#endif
}

std::unique_ptr<Backend> make_default_backend(const ScratchCaps& caps,
                                              bool allow_nondeterministic) {
  return std::make_unique<Backend>(make_vendor(allow_nondeterministic), caps);
}

#ifdef MILLRACE_CUDNN
bool has_nondeterministic() { return true; }
std::int64_t image_channels_here(const ConvShape& first, DType type) {
  return make_vendor()->image_channels(first, type);
}
std::string describe_device_here() { return describe_cudnn_device(); }
#else
bool has_nondeterministic() { return false; }
std::int64_t image_channels_here(const ConvShape& first, DType) { return first.window.in.c; }
std::string describe_device_here() { return {}; }
#endif

std::string describe_products(DType type) {
  if (type == DType::F32) return std::string(name_of(type));
  const std::unique_ptr<Backend> backend = make_default_backend();
  if (backend->multiplies(type))
    return fmt::format("{}: 16-bit products, float32 sums", name_of(type));
  const std::string why = backend->why_not(type);
  return fmt::format("{}: stored in 16 bits, multiplied in float32{}{}", name_of(type),
                     why.empty() ? "" : ": ", why);
}

}  // namespace millrace::ops
