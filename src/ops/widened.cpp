// SPDX-License-Identifier: Apache-2.0
//
// 16-bit convolution and dense ops on processors without 16-bit products: a float32 op between
// conversions. Operands are widened exactly, products and sums are float32, and the result is
// rounded once, as in an op with 16-bit products and float32 sums.
//
// A batch is processed in blocks of samples whose float32 copies fit into the cache, so that only
// 16-bit values go to memory and scratch holds just one block. Weight gradients of the blocks are
// added in ascending order.
//
//   x, 16 bits  ->  widen block  ->  float32 op  ->  round block  ->  y, 16 bits
#include "ops/linear_ops.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "ops/elementwise.hpp"
#include "ops/inner_kernel.hpp"

namespace millrace::ops {
namespace {

using device::aligned;
using device::ExecutionSpace;

/// Bytes of float32 copies per core and block: about the size of its second-level cache.
constexpr std::int64_t kBlockBytes = 2 << 20;

std::int64_t float_bytes(std::int64_t elements) {
  return aligned(elements * static_cast<std::int64_t>(sizeof(float)));
}

template <class T>
class Widened final : public LinearOp {
 public:
  Widened(const WidenedShape& shape, std::unique_ptr<LinearOp> wide)
      : shape_(shape), wide_(std::move(wide)), kernel_(*wide_, float_bytes(shape.kernel)) {}

  [[nodiscard]] LinearBytes bytes() const override {
    LinearBytes bytes = wide_->bytes();
    bytes.packed_forward = kernel_.packed_bytes();
    bytes.scratch += own_scratch();
    bytes.reads_kernel = false;
    return bytes;
  }
  void bind(const LinearMemory& memory) override {
    memory_ = memory;
    LinearMemory rest = memory;
    rest.kernel = kernel_.in(memory);
    rest.scratch += own_scratch();
    wide_->bind(rest);
  }
  void pack(const ExecutionSpace& space, bool backward) override {
    widen<T>(space, reinterpret_cast<float*>(kernel_.in(memory_)),
             reinterpret_cast<const T*>(memory_.kernel), shape_.kernel);
    wide_->pack(space, backward);
  }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    for (std::int64_t block = 0; block < shape_.blocks; ++block) {
      widen_in(space, x, block);
      wide_->forward(space, bytes_of(wide_out()), bytes_of(wide_in()));
      convert<T>(space, reinterpret_cast<T*>(y) + block * shape_.out, wide_out(), shape_.out);
    }
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    for (std::int64_t block = 0; block < shape_.blocks; ++block) {
      widen_out(space, dy, block);
      wide_->backward_input(space, bytes_of(wide_in()), bytes_of(wide_out()));
      convert<T>(space, reinterpret_cast<T*>(dx) + block * shape_.in, wide_in(), shape_.in);
    }
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    for (std::int64_t block = 0; block < shape_.blocks; ++block) {
      widen_in(space, x, block);
      widen_out(space, dy, block);
      wide_->backward_weight(space, bytes_of(wide_out()), bytes_of(wide_in()), first && block == 0);
    }
  }

 private:
  static std::byte* bytes_of(float* values) { return reinterpret_cast<std::byte*>(values); }

  void widen_in(const ExecutionSpace& space, const std::byte* x, std::int64_t block) const {
    widen<T>(space, wide_in(), reinterpret_cast<const T*>(x) + block * shape_.in, shape_.in);
  }
  void widen_out(const ExecutionSpace& space, const std::byte* y, std::int64_t block) const {
    widen<T>(space, wide_out(), reinterpret_cast<const T*>(y) + block * shape_.out, shape_.out);
  }

  // Scratch holds a block of x and one of y, or the kernel during packing if InnerKernel puts it
  // there.
  [[nodiscard]] std::int64_t own_scratch() const {
    return std::max(float_bytes(shape_.in) + float_bytes(shape_.out), kernel_.scratch_bytes());
  }
  [[nodiscard]] float* wide_in() const { return reinterpret_cast<float*>(memory_.scratch); }
  [[nodiscard]] float* wide_out() const {
    return reinterpret_cast<float*>(memory_.scratch + float_bytes(shape_.in));
  }

  WidenedShape shape_;
  std::unique_ptr<LinearOp> wide_;
  InnerKernel kernel_;
  LinearMemory memory_;
};

}  // namespace

std::int64_t samples_in_block(std::int64_t batch, std::int64_t sample_elements, int threads) {
  const std::int64_t most =
      kBlockBytes * threads / std::max<std::int64_t>(1, float_bytes(sample_elements));
  std::int64_t samples = std::clamp<std::int64_t>(most, 1, batch);
  while (batch % samples != 0) --samples;
  return samples;
}

std::unique_ptr<LinearOp> make_widened(const WidenedShape& shape, DType type,
                                       std::unique_ptr<LinearOp> wide) {
  MILLRACE_ASSERT(type == DType::BF16 || type == DType::F16);
  if (type == DType::BF16) return std::make_unique<Widened<bfloat16>>(shape, std::move(wide));
  return std::make_unique<Widened<float16>>(shape, std::move(wide));
}

}  // namespace millrace::ops
