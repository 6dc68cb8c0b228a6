// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "device/arena.hpp"
#include "ops/cudnn/linear_op.hpp"
#include "ops/rewrites.hpp"
#include "ops/variants.hpp"
#ifdef MILLRACE_CUBLASLT
#include "ops/cublas/weight_op.hpp"
#endif

namespace millrace::ops {
namespace cudnn {
namespace {

#ifdef MILLRACE_CUBLASLT
using cublas::WeightGradients;
std::string libraries_in_use() {
  return library_name() + " and " + cublas::library_name() + " in use";
}
#else
/// None by another library.
struct WeightGradients {
  [[nodiscard]] static bool has(const ConvShape&, DType) { return false; }
  [[nodiscard]] static std::unique_ptr<LinearOp> make(const ConvShape&, DType, std::int64_t,
                                                      std::unique_ptr<LinearOp> other) {
    return other;
  }
};
std::string libraries_in_use() { return library_name() + " in use"; }
#endif

/// A convolution and the statistics of the batch norm behind it, of which the library adds the sums
/// while it convolves. The two calls of a run that fused_pass() accepts; `plan` is one for its
/// pass. The sums have another order than those of our own kernels, which compute the statistics
/// where a cut separates the two, so this is for runs whose bits may vary.
class FusedRun final : public ClaimedRun {
 public:
  FusedRun(std::shared_ptr<const Context> context, const OfferedCall& norm,
           std::shared_ptr<const Plan> plan)
      : context_(std::move(context)),
        shape_(std::get<NormShape>(norm.shape)),
        epsilon_(norm.epsilon),
        plan_(std::move(plan)) {}

  /// Scratch: sums and sums of squares, then the library's own.
  [[nodiscard]] Bytes bytes() const override { return {.scratch = 2 * row() + plan_->scratch}; }
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
    context_->run(space, *plan_, kNumbers, tensors, squares + row());
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
  std::shared_ptr<const Plan> plan_;
  const std::byte* kernel_ = nullptr;
  RunningSums running_;
  std::byte* scratch_ = nullptr;
};

class CudnnVendor final : public Vendor {
 public:
  explicit CudnnVendor(bool allow_nondeterministic)
      : allow_nondeterministic_(allow_nondeterministic) {}

  [[nodiscard]] const char* name() const override { return "cudnn"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }
  /// "NVIDIA H200, 132 multiprocessors; cuDNN 9.19.0 and cublasLt 13.1.0 in use".
  [[nodiscard]] std::string describe_device() const override {
    return device_name(properties_in_use()) + "; " + libraries_in_use();
  }
  [[nodiscard]] bool has_nondeterministic() const override { return true; }

  [[nodiscard]] std::int64_t least_channels() const override { return kLeastChannels; }

  /// Depthwise convolutions stay with our own kernels: the library's 16-bit ones are a fallback.
  [[nodiscard]] LinearClaim claim(const ConvShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    static const bool own_depthwise = variant("OWN_DEPTHWISE", 1) != 0;
    static const bool products = variant("WEIGHT_PRODUCTS", 1) != 0;
    if (own_depthwise && is_depthwise(s)) return {};
    if (!products || !passes.backward_weight || !WeightGradients::has(s, type))
      return by_plans(s, type, passes, cap);
    LinearClaim claim = by_plans(s, type, passes - kOnlyWeight, cap);
    claim.passes.backward_weight = true;
    claim.op = make_by_pass(kOnlyWeight, weight_gradient(s, type, cap), std::move(claim.op));
    return claim;
  }
  [[nodiscard]] LinearClaim claim(const DenseShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    return claim(as_convolution(s), type, passes, cap);
  }
  /// Convolutions with the sums of their outputs. Statistics that are computed so have other bits
  /// than those behind a cut.
  [[nodiscard]] RunClaim claim(std::span<const OfferedCall> calls, DType type,
                               std::int64_t cap) const override {
    if (!allow_nondeterministic_) return {};
    const auto pass = fused_pass(calls, type);
    if (!pass) return {};
    start();
    const PlanRules rules = plan_rules(cap);
    std::shared_ptr<const Plan> plan = kept_plan(context_->device(), *pass, rules);
    if (!plan || plan->scratch > rules.cap) return {};
    return {2, std::make_unique<FusedRun>(context_, calls[1], std::move(plan))};
  }

 private:
  /// By cublasLt. Where it has no kernel, by cuDNN, or by our own kernels if that has none either.
  [[nodiscard]] std::unique_ptr<LinearOp> weight_gradient(const ConvShape& s, DType type,
                                                          std::int64_t cap) const {
    LinearClaim other = by_plans(s, type, kOnlyWeight, cap);
    return weights_.make(s, type, cap,
                         other.passes == kOnlyWeight ? std::move(other.op) : make_tiled(s, type));
  }

  /// Claims the passes that cuDNN has kernels for.
  [[nodiscard]] LinearClaim by_plans(const ConvShape& s, DType type, Passes passes,
                                     std::int64_t cap) const {
    start();
    const PlanRules rules = plan_rules(cap);
    const auto find = [&](bool wanted, Pass pass) {
      return wanted ? kept_plan(context_->device(), {s, type, pass}, rules) : nullptr;
    };
    PassPlans plans{find(passes.forward, Pass::Forward),
                    find(passes.backward_input, Pass::BackwardInput),
                    find(passes.backward_weight, Pass::BackwardWeight)};
    const Passes found{.backward_input = plans.backward_input != nullptr,
                       .backward_weight = plans.backward_weight != nullptr,
                       .forward = plans.forward != nullptr};
    return {found, std::make_unique<CudnnOp>(context_, s, type, std::move(plans))};
  }

  /// The library starts with the first claim: whoever only asks for names needs no device.
  void start() const {
    if (!context_) context_ = std::make_shared<const Context>();
  }

  [[nodiscard]] PlanRules plan_rules(std::int64_t cap) const {
    return {.cap = std::min(cap, kDefaultCap), .allow_nondeterministic = allow_nondeterministic_};
  }

  bool allow_nondeterministic_;
  WeightGradients weights_;
  mutable std::shared_ptr<const Context> context_;
};

}  // namespace
}  // namespace cudnn

std::unique_ptr<Vendor> make_cudnn_vendor(bool allow_nondeterministic) {
  return std::make_unique<cudnn::CudnnVendor>(allow_nondeterministic);
}

}  // namespace millrace::ops
