// SPDX-License-Identifier: Apache-2.0
//
// src/ops: kernels of the primitive ops on device memory.
//
// Our own kernels are Kokkos code: free functions that take an execution-space instance, outputs,
// inputs and a shape struct. A Backend prepares the linear ops and offers everything to a vendor
// first (ops/vendor.hpp). Where the same result can be had in a better way, it applies a table of
// rewrites (ops/rewrites.hpp), so that the same shapes always run the same kernels.
//
// 16-bit storage works on every processor. If it has no 16-bit products, operands are widened to
// float32, which is exact, and the result is rounded once, as in a 16-bit product with float32
// sums.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ops/rewrites.hpp"

namespace millrace::ops {

/// Which kernels are used where both a vendor and we have them.
enum class Choice { Fastest, VendorOnly };

/// Prepares ops. Errors: Internal, if the vendor rejects a shape.
class Backend {
 public:
  /// Without a vendor all ops run on our own kernels.
  explicit Backend(std::unique_ptr<Vendor> vendor = nullptr, const ScratchCaps& caps = {},
                   Choice choice = Choice::Fastest)
      : vendor_(std::move(vendor)), caps_(caps), choice_(choice) {}

  /// "onednn", "cudnn", or "kokkos" without a vendor.
  [[nodiscard]] const char* name() const { return vendor_ ? vendor_->name() : "kokkos"; }
  /// These are as in Vendor.
  [[nodiscard]] bool multiplies(DType type) const { return vendor_ && vendor_->multiplies(type); }
  [[nodiscard]] std::string why_not(DType type) const {
    return vendor_ ? vendor_->why_not(type) : std::string();
  }

  [[nodiscard]] std::unique_ptr<LinearOp> convolution(const ConvShape& shape, DType type,
                                                      Passes passes) const {
    return prepare({shape, type, passes, caps_.convolution});
  }
  [[nodiscard]] std::unique_ptr<LinearOp> dense(const DenseShape& shape, DType type,
                                                Passes passes) const {
    return prepare({shape, type, passes, caps_.dense});
  }
  /// How images should be stored that this convolution alone reads; none: as they are.
  [[nodiscard]] std::optional<Shape> stored_image(const ConvShape& first, DType type) const;
  /// The first calls of a run, if a product of our own (ops/cutlass) or the vendor computes them as
  /// one kernel. Convolutions of images that are stored in another form are not offered.
  [[nodiscard]] RunClaim claim(std::span<const OfferedCall> calls, DType type) const;

 private:
  [[nodiscard]] std::unique_ptr<LinearOp> prepare(const LinearRequest& asked) const;
  [[nodiscard]] std::unique_ptr<LinearOp> product(const LinearRequest& asked) const;
  [[nodiscard]] std::unique_ptr<LinearOp> rewritten(const LinearRequest& asked,
                                                    Rewrite::When when) const;

  std::unique_ptr<Vendor> vendor_;
  ScratchCaps caps_;
  Choice choice_;
};

/// The first vendor of this build's list, or null if it has none. `allow_nondeterministic`: kernels
/// whose sums may have another order from run to run are allowed, if has_nondeterministic().
[[nodiscard]] std::unique_ptr<Vendor> make_vendor(bool allow_nondeterministic = false);
/// The fastest backend of this build.
[[nodiscard]] std::unique_ptr<Backend> make_default_backend(const ScratchCaps& caps = {},
                                                            bool allow_nondeterministic = false);

// As the functions of Vendor and Backend, of this build's.
[[nodiscard]] bool has_nondeterministic();
[[nodiscard]] std::string describe_device_here();
[[nodiscard]] std::optional<Shape> stored_image_here(const ConvShape& first, DType type);

/// Describes how make_default_backend()'s kernels compute with `type`: "bfloat16: stored in 16
/// bits, multiplied in float32: this processor has no 16-bit products".
[[nodiscard]] std::string describe_products(DType type);

}  // namespace millrace::ops
