// SPDX-License-Identifier: Apache-2.0
#include "ops/by_pass.hpp"

#include <algorithm>
#include <utility>

#include "device/arena.hpp"

namespace millrace::ops {
namespace {

using device::aligned;
using device::ExecutionSpace;

class ByPass final : public WeightedOp {
 public:
  ByPass(Passes firsts, std::unique_ptr<WeightedOp> first, std::unique_ptr<WeightedOp> second)
      : firsts_(firsts), first_(std::move(first)), second_(std::move(second)) {}

  [[nodiscard]] WeightedBytes bytes() const override {
    const WeightedBytes a = first_->bytes();
    const WeightedBytes b = second_->bytes();
    return {aligned(a.packed_forward) + b.packed_forward,
            aligned(a.packed_backward) + b.packed_backward, std::max(a.scratch, b.scratch),
            a.reads_kernel || b.reads_kernel};
  }
  void bind(const WeightedMemory& memory) override {
    first_->bind(memory);
    const WeightedBytes before = first_->bytes();
    WeightedMemory rest = memory;
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
  std::unique_ptr<WeightedOp> first_;
  std::unique_ptr<WeightedOp> second_;
};

}  // namespace

std::unique_ptr<WeightedOp> make_by_pass(Passes firsts, std::unique_ptr<WeightedOp> first,
                                         std::unique_ptr<WeightedOp> second) {
  return std::make_unique<ByPass>(firsts, std::move(first), std::move(second));
}

}  // namespace millrace::ops
