// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/fused_run.hpp"

#include <array>
#include <utility>

#include "device/arena.hpp"

namespace millrace::ops::cudnn {
namespace {

class FusedRun final : public ClaimedRun {
 public:
  FusedRun(std::shared_ptr<const Context> context, const OfferedCall& norm, Plan plan)
      : context_(std::move(context)),
        shape_(std::get<NormShape>(norm.shape)),
        epsilon_(norm.epsilon),
        plan_(std::move(plan)) {}

  /// Scratch: sums and sums of squares, then the library's own.
  [[nodiscard]] Bytes bytes() const override { return {.scratch = 2 * row() + plan_.scratch}; }
  void bind(std::span<const CallParameters> calls, std::byte*, std::byte* scratch) override {
    kernel_ = calls[0].kernel;
    running_ = calls[1].running;
    scratch_ = scratch;
  }
  void run(const device::ExecutionSpace& space, std::span<const CallBuffers> calls,
           bool first) override {
    const auto at = [&](std::size_t call, Role role) {
      return calls[call][static_cast<std::size_t>(role)];
    };
    std::byte* const squares = scratch_ + row();
    constexpr std::array<std::int64_t, 5> kNumbers = {kInput, kKernel, kOutput, kSums, kSquares};
    // The library takes no const pointers.
    const std::array<void*, 5> tensors = {at(0, Role::X), const_cast<std::byte*>(kernel_),
                                          at(0, Role::Y), scratch_, squares};
    context_->run(space, plan_, kNumbers, tensors, squares + row());
    running_.first = first;
    norm_statistics_of_sums(space, shape_, reinterpret_cast<float*>(at(1, Role::Statistics)),
                            running_, reinterpret_cast<const float*>(scratch_),
                            reinterpret_cast<const float*>(squares), epsilon_);
  }

 private:
  /// Bytes of one value of each channel.
  [[nodiscard]] std::int64_t row() const {
    return device::aligned(shape_.channels * static_cast<std::int64_t>(sizeof(float)));
  }

  std::shared_ptr<const Context> context_;
  NormShape shape_;
  float epsilon_;
  Plan plan_;
  const std::byte* kernel_ = nullptr;
  RunningSums running_;
  std::byte* scratch_ = nullptr;
};

}  // namespace

std::unique_ptr<ClaimedRun> make_fused_run(std::shared_ptr<const Context> context,
                                           std::span<const OfferedCall> calls, Plan plan) {
  return std::make_unique<FusedRun>(std::move(context), calls[1], std::move(plan));
}

}  // namespace millrace::ops::cudnn
