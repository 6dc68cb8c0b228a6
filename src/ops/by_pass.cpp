// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_ops.hpp"

#include <algorithm>
#include <utility>

#include "device/arena.hpp"

namespace millrace::ops {
namespace {

using device::aligned;
using device::ExecutionSpace;

class ByPass final : public LinearOp {
 public:
  ByPass(Passes firsts, std::unique_ptr<LinearOp> first, std::unique_ptr<LinearOp> second)
      : firsts_(firsts), first_(std::move(first)), second_(std::move(second)) {}

  [[nodiscard]] LinearBytes bytes() const override {
    const LinearBytes a = first_->bytes();
    const LinearBytes b = second_->bytes();
    return {aligned(a.packed_forward) + b.packed_forward,
            aligned(a.packed_backward) + b.packed_backward, std::max(a.scratch, b.scratch),
            a.reads_kernel || b.reads_kernel};
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

std::unique_ptr<LinearOp> make_by_pass(Passes firsts, std::unique_ptr<LinearOp> first,
                                       std::unique_ptr<LinearOp> second) {
  return std::make_unique<ByPass>(firsts, std::move(first), std::move(second));
}

}  // namespace millrace::ops
