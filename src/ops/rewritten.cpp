// SPDX-License-Identifier: Apache-2.0
#include "ops/rewritten.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "ops/rewrites.hpp"

namespace millrace::ops {
namespace {

using device::aligned;
using device::ExecutionSpace;

class Rewritten final : public LinearOp {
 public:
  Rewritten(Operands operands, std::unique_ptr<LinearOp> inner)
      : o_(std::move(operands)),
        inner_(std::move(inner)),
        packed_(aligned(inner_->bytes().packed_forward)),
        kernel_bytes_(aligned(o_.kernel_bytes)),
        stays_(inner_->bytes().reads_kernel) {}

  [[nodiscard]] LinearBytes bytes() const override {
    LinearBytes bytes = inner_->bytes();
    bytes.scratch += own_scratch();
    bytes.left_gradient = 0;  // of another kernel, or of a block
    if (!o_.kernel) return bytes;
    bytes.reads_kernel = false;
    const std::int64_t packed = packed_ + (stays_ ? kernel_bytes_ : 0);
    (o_.turned ? bytes.packed_backward : bytes.packed_forward) = packed;
    if (o_.turned) bytes.packed_forward = 0;
    return bytes;
  }
  void bind(const LinearMemory& memory) override {
    memory_ = memory;
    if (o_.turned) memory_.packed_forward = memory.packed_backward;
    LinearMemory rest = memory_;
    rest.scratch += own_scratch();
    if (o_.kernel) rest.kernel = inner_kernel();
    if (o_.add_gradient) rest.dkernel = inner_gradient();
    inner_->bind(rest);
  }
  void pack(const ExecutionSpace& space, bool backward) override {
    if (o_.turned && !backward) return;
    if (o_.kernel) o_.kernel(space, inner_kernel(), memory_.kernel);
    inner_->pack(space, backward && !o_.turned);
  }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    for (std::int64_t block = 0; block < o_.blocks; ++block) {
      const std::byte* const from = read_x(space, x, block);
      std::byte* const to = o_.y.to_own ? inner_y() : y;
      inner_->forward(space, to, from);
      if (o_.y.to_own) o_.y.to_own(space, y + block * o_.y.step, to);
    }
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    if (o_.of_images) fail(ErrorKind::Internal, "images have no gradient");
    if (o_.turned) return inner_->forward(space, dx, dy);
    for (std::int64_t block = 0; block < o_.blocks; ++block) {
      const std::byte* const from = read_y(space, dy, block);
      std::byte* const to = o_.x.to_own ? inner_x() : dx;
      inner_->backward_input(space, to, from);
      if (o_.x.to_own) o_.x.to_own(space, dx + block * o_.x.step, to);
    }
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    for (std::int64_t block = 0; block < o_.blocks; ++block) {
      const std::byte* const from_x = read_x(space, x, block);
      const std::byte* const from_y = read_y(space, dy, block);
      inner_->backward_weight(space, from_y, from_x,
                              block == 0 && (first || o_.add_gradient != nullptr));
    }
    if (o_.add_gradient) o_.add_gradient(space, memory_.dkernel, inner_gradient(), first);
  }

 private:
  const std::byte* read_x(const ExecutionSpace& space, const std::byte* x, std::int64_t block) {
    if (!o_.x.to_inner) return x;
    o_.x.to_inner(space, inner_x(), x + block * o_.x.step);
    return inner_x();
  }
  const std::byte* read_y(const ExecutionSpace& space, const std::byte* y, std::int64_t block) {
    if (!o_.y.to_inner) return y;
    o_.y.to_inner(space, inner_y(), y + block * o_.y.step);
    return inner_y();
  }

  // Scratch holds a block of x, one of y and the gradient of the inner kernel, or that kernel
  // during packing; then that of the inner op.
  [[nodiscard]] std::int64_t own_scratch() const {
    return std::max(aligned(o_.x.bytes) + aligned(o_.y.bytes) + aligned(o_.gradient_bytes),
                    stays_ ? 0 : kernel_bytes_);
  }
  [[nodiscard]] std::byte* inner_x() const { return memory_.scratch; }
  [[nodiscard]] std::byte* inner_y() const { return inner_x() + aligned(o_.x.bytes); }
  [[nodiscard]] float* inner_gradient() const { return as<float>(inner_y() + aligned(o_.y.bytes)); }
  /// If the inner op's passes read the kernel, it follows the inner op's packed data. Otherwise
  /// only packing needs it.
  [[nodiscard]] std::byte* inner_kernel() const {
    return stays_ ? memory_.packed_forward + packed_ : memory_.scratch;
  }

  Operands o_;
  std::unique_ptr<LinearOp> inner_;
  std::int64_t packed_;
  std::int64_t kernel_bytes_;
  bool stays_;
  LinearMemory memory_;
};

class ByPass final : public LinearOp {
 public:
  ByPass(Passes firsts, std::unique_ptr<LinearOp> first, std::unique_ptr<LinearOp> second)
      : firsts_(firsts), first_(std::move(first)), second_(std::move(second)) {}

  [[nodiscard]] LinearBytes bytes() const override {
    const LinearBytes a = first_->bytes();
    const LinearBytes b = second_->bytes();
    return {aligned(a.packed_forward) + b.packed_forward,
            aligned(a.packed_backward) + b.packed_backward, std::max(a.scratch, b.scratch),
            a.reads_kernel || b.reads_kernel, (firsts_.backward_weight ? a : b).left_gradient};
  }
  void bind(const LinearMemory& memory) override {
    first_->bind(memory);
    const LinearBytes before = first_->bytes();
    LinearMemory rest = memory;
    rest.packed_forward += aligned(before.packed_forward);
    rest.packed_backward += aligned(before.packed_backward);
    second_->bind(rest);
  }
  void pack(const ExecutionSpace& space, bool backward) override {
    first_->pack(space, backward);
    second_->pack(space, backward);
  }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    (firsts_.forward ? first_ : second_)->forward(space, y, x);
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    (firsts_.backward_input ? first_ : second_)->backward_input(space, dx, dy);
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    (firsts_.backward_weight ? first_ : second_)->backward_weight(space, dy, x, first);
  }

 private:
  Passes firsts_;
  std::unique_ptr<LinearOp> first_;
  std::unique_ptr<LinearOp> second_;
};

}  // namespace

std::unique_ptr<LinearOp> make_rewritten(Operands operands, std::unique_ptr<LinearOp> inner) {
  return std::make_unique<Rewritten>(std::move(operands), std::move(inner));
}

std::unique_ptr<LinearOp> make_by_pass(Passes firsts, std::unique_ptr<LinearOp> first,
                                       std::unique_ptr<LinearOp> second) {
  return std::make_unique<ByPass>(firsts, std::move(first), std::move(second));
}

}  // namespace millrace::ops
