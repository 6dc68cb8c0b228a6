// SPDX-License-Identifier: Apache-2.0
#include "ops/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "ops/cutlass/product_ops.hpp"
#include "ops/cutlass/products.hpp"
#include "ops/one_pixel.hpp"
#include "ops/variants.hpp"
#include "ops/wider_kernels.hpp"

namespace millrace::ops {
namespace {

/// The vendors of this build; the first that is there is used.
constexpr std::initializer_list<std::unique_ptr<Vendor> (*)(bool allow_nondeterministic)> kVendors =
    {
#ifdef MILLRACE_ONEDNN
        make_onednn_vendor,
#endif
#ifdef MILLRACE_CUDNN
        make_cudnn_vendor,
#endif
};

/// The op on our own kernels.
std::unique_ptr<LinearOp> make_own(const ConvShape& s, DType type) {
  constexpr std::int64_t kFewChannels = 4;  // a tile would compute mostly zeros
  const auto with_own_gradient = [&](std::unique_ptr<LinearOp> rest) {
    return make_by_pass(kOnlyWeight, make_depthwise_gradient(s, type), std::move(rest));
  };
#ifndef MILLRACE_ONEDNN  // which has such kernels: the program is smaller without ours
  if (has_depthwise_pixels(s)) return with_own_gradient(make_depthwise_pixels(s, type));
#endif
  if (is_depthwise(s)) return with_own_gradient(make_plain(s, type));
  const std::int64_t channels = std::min(s.window.in.c, s.window.out.c) / s.groups;
  if (s.groups > 1 && channels < kFewChannels) return make_plain(s, type);
  return make_tiled(s, type);
}
std::unique_ptr<LinearOp> make_own(const DenseShape& s, DType type) { return make_tiled(s, type); }
std::unique_ptr<LinearOp> make_own(const LinearRequest& asked) {
  return std::visit([&](const auto& shape) { return make_own(shape, asked.type); }, asked.shape);
}

}  // namespace

/// Each pass is the first of these: a product of our own, what a rewrite makes of it, the vendor's
/// kernel, what a rewrite makes of what the vendor has not, our own.
std::unique_ptr<LinearOp> Backend::prepare(const LinearRequest& asked) const {
  if (auto op = product(asked)) return op;
  if (auto op = rewritten(asked, Rewrite::When::Always)) return op;
  if (!vendor_) return make_own(asked);
  if (choice_ == Choice::Fastest)
    if (auto op = rewritten(asked, Rewrite::When::Measured)) return op;
  LinearClaim claim = std::visit(
      [&](const auto& shape) { return vendor_->claim(shape, asked.type, asked.passes, asked.cap); },
      asked.shape);
  LinearRequest rest = asked;
  rest.passes = asked.passes - claim.passes;
  if (!rest.passes.any()) return std::move(claim.op);
  auto others = rewritten(rest, Rewrite::When::Unclaimed);
  if (!others) others = make_own(rest);
  if (rest.passes == asked.passes) return others;
  return make_by_pass(claim.passes, std::move(claim.op), std::move(others));
}

/// Null, if no pass is a product.
std::unique_ptr<LinearOp> Backend::product(const LinearRequest& asked) const {
  if constexpr (!device::kOnCores) {
    const auto* const conv = std::get_if<ConvShape>(&asked.shape);
    if (conv != nullptr && one_pixel::is_small(*conv)) return one_pixel::make(*conv, asked.type);
    if (conv == nullptr || asked.type == DType::F32) return nullptr;
    const Passes taken = asked.passes & tiles::product_passes(*conv);
    if (!taken.any()) return nullptr;
    auto op = tiles::make_product(*conv, asked.type);
    LinearRequest rest = asked;
    rest.passes = asked.passes - taken;
    return rest.passes.any() ? make_by_pass(taken, std::move(op), prepare(rest)) : std::move(op);
  }
  return nullptr;
}

/// Null, if no row of the table applies.
std::unique_ptr<LinearOp> Backend::rewritten(const LinearRequest& asked, Rewrite::When when) const {
  const Rewrite* const rewrite =
      find_rewrite(asked, when, vendor_ ? vendor_->level() : std::nullopt);
  if (rewrite == nullptr) return nullptr;
  LinearRequest taken = asked;
  taken.passes = asked.passes & rewrite->takes;
  auto op = rewrite->make(taken, [this](const LinearRequest& inner) { return prepare(inner); });
  LinearRequest rest = asked;
  rest.passes = asked.passes - rewrite->takes;
  return rest.passes.any() ? make_by_pass(taken.passes, std::move(op), prepare(rest))
                           : std::move(op);
}

std::optional<Shape> Backend::stored_image(const ConvShape& first, DType type) const {
  static const bool blocks = !device::kOnCores && variant("IMAGE_BLOCKS", 1) != 0;
  return ops::stored_image(first, type, vendor_ ? vendor_->least_channels() : 1, blocks);
}

RunClaim Backend::claim(std::span<const OfferedCall> calls, DType type) const {
  const auto stored = std::ranges::find_if(calls, [](const OfferedCall& call) {
    const auto* const conv = std::get_if<ConvShape>(&call.shape);
    return conv != nullptr && conv->stored;
  });
  const auto offered = calls.first(static_cast<std::size_t>(stored - calls.begin()));
  if constexpr (!device::kOnCores) {
    if (RunClaim run = one_pixel::claim(offered, type); run.calls > 0) return run;
    if (RunClaim product = tiles::claim_product(offered, type); product.calls > 0) return product;
  }
  return vendor_ && !offered.empty() ? vendor_->claim(offered, type, caps_.convolution)
                                     : RunClaim{};
}

std::unique_ptr<Vendor> make_vendor(bool allow_nondeterministic) {
  for (const auto make : kVendors)
    if (auto vendor = make(allow_nondeterministic)) return vendor;
  return nullptr;
}

std::unique_ptr<Backend> make_default_backend(const ScratchCaps& caps,
                                              bool allow_nondeterministic) {
  return std::make_unique<Backend>(make_vendor(allow_nondeterministic), caps);
}

bool has_nondeterministic() {
  const auto vendor = make_vendor();
  return vendor && vendor->has_nondeterministic();
}

std::string describe_device_here() {
  const auto vendor = make_vendor();
  std::string device = vendor ? vendor->describe_device() : std::string();
  if constexpr (!device::kOnCores)
    if (tiles::has_products()) device += "; own products in use";
  return device;
}

std::optional<Shape> stored_image_here(const ConvShape& first, DType type) {
  return make_default_backend()->stored_image(first, type);
}

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
