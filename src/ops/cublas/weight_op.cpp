// SPDX-License-Identifier: Apache-2.0
#include "ops/cublas/weight_op.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/vendor_scope.hpp"
#include "ops/sums.hpp"

namespace millrace::ops::cublas {
namespace {

using device::ExecutionSpace;

/// Between the start of an op's scratch and the next address that the library takes, at most.
constexpr std::int64_t kGap = kScratchAlignment - device::kAlignment;
/// What NVIDIA recommends for its newest GPUs. The kernel, and with it the need, is known only when
/// the device is open, and scratch is planned without one.
constexpr std::int64_t kMost = (std::int64_t{32} << 20) + kGap;

/// Bytes for the library out of `bytes` that begin anywhere in the arena.
std::int64_t usable(std::int64_t bytes) {
  return std::max<std::int64_t>(bytes - kGap, 0) / kScratchAlignment * kScratchAlignment;
}

std::byte* next_aligned(std::byte* address) {
  const auto behind =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address) % kScratchAlignment);
  return behind == 0 ? address : address + (kScratchAlignment - behind);
}

/// None on cores, where a stand-in of the tests computes.
template <class Space>
cudaStream_t stream_of(const Space& space) {
  if constexpr (requires { space.cuda_stream(); }) {
    return space.cuda_stream();
  } else {
    return nullptr;
  }
}

ProductShape as_product(const ConvShape& s, DType type) {
  return {s.window.batch * s.window.out.pixels(), s.window.in.c, s.window.out.c, type};
}

class WeightOp final : public LinearOp {
 public:
  WeightOp(std::shared_ptr<const Library> library, const ConvShape& shape, DType type,
           std::int64_t scratch, std::unique_ptr<LinearOp> other)
      : library_(std::move(library)),
        shape_(as_product(shape, type)),
        bias_(shape.bias),
        scratch_(scratch),
        product_(shape_, usable(scratch)),
        other_(std::move(other)) {}

  /// The sums of the bias' gradient come after the product is done.
  [[nodiscard]] LinearBytes bytes() const override {
    LinearBytes bytes = other_->bytes();
    bytes.left_gradient = 0;  // the product adds
    bytes.scratch = std::max({bytes.scratch, scratch_, bias_ ? channel_sums_bytes(shape_.out) : 0});
    return bytes;
  }
  void bind(const LinearMemory& memory) override {
    memory_ = memory;
    other_->bind(memory);
  }
  void pack(const ExecutionSpace& space, bool backward) override { other_->pack(space, backward); }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    if (!multiplied(space, dy, x, first)) {
      other_->backward_weight(space, dy, x, first);
      return;
    }
    if (!bias_) return;
    device::dispatch(shape_.type, [&]<class T>() {
      add_channel_sums(space, memory_.dbias, as<float>(memory_.scratch), as<T>(dy), shape_.rows,
                       shape_.out, first);
    });
  }

 private:
  /// Queues the gradient of the kernel, unless the library has no kernel for it.
  bool multiplied(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                  bool first) {
    const device::VendorScope vendor;
    if (!product_.has_kernel(library_->handle())) return false;
    product_.run(library_->handle(), stream_of(space), memory_.dkernel, dy, x, first,
                 next_aligned(memory_.scratch));
    return true;
  }

  std::shared_ptr<const Library> library_;
  ProductShape shape_;
  bool bias_;
  std::int64_t scratch_;
  WeightProduct product_;
  std::unique_ptr<LinearOp> other_;
  LinearMemory memory_;
};

}  // namespace

bool WeightGradients::has(const ConvShape& s, DType type) {
  const WindowShape& w = s.window;
  const bool pointwise = w.kernel_h == 1 && w.kernel_w == 1 && w.stride_h == 1 && w.stride_w == 1;
  const bool padded = w.pad_top > 0 || w.pad_left > 0 || s.pad_bottom > 0 || s.pad_right > 0;
  return (type == DType::BF16 || type == DType::F16) && pointwise && !padded && s.groups == 1;
}

std::unique_ptr<LinearOp> WeightGradients::make(const ConvShape& shape, DType type,
                                                std::int64_t cap,
                                                std::unique_ptr<LinearOp> other) const {
  const std::int64_t scratch = std::min(cap, kMost);
  return std::make_unique<WeightOp>(library_, shape, type, usable(scratch) > 0 ? scratch : 0,
                                    std::move(other));
}

}  // namespace millrace::ops::cublas
