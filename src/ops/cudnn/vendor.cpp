// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/vendor.hpp"

#include <algorithm>
#include <utility>

#include "ops/cudnn/fused_pass.hpp"
#include "ops/cudnn/fused_run.hpp"
#include "ops/cudnn/linear_op.hpp"
#include "ops/linear_ops.hpp"
#ifdef MILLRACE_CUBLASLT
#include "ops/cublas/weight_op.hpp"
#endif

namespace millrace::ops {
namespace {

using cudnn::Context;
using cudnn::CudnnOp;
using cudnn::Pass;
using cudnn::PassPlans;
using cudnn::Plan;
using cudnn::PlanRules;

#ifdef MILLRACE_CUBLASLT
using cublas::WeightGradients;
std::string libraries_in_use() {
  return cudnn::library_name() + " and " + cublas::library_name() + " in use";
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
std::string libraries_in_use() { return cudnn::library_name() + " in use"; }
#endif

class CudnnVendor final : public Vendor {
 public:
  explicit CudnnVendor(bool allow_nondeterministic)
      : allow_nondeterministic_(allow_nondeterministic) {}

  [[nodiscard]] const char* name() const override { return "cudnn"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }

  [[nodiscard]] std::int64_t image_channels(const ConvShape& first, DType type) const override {
    return cudnn::image_channels(first, type);
  }

  /// Depthwise convolutions stay with our own kernels: the library's 16-bit ones are a fallback.
  [[nodiscard]] LinearClaim claim(const ConvShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    if (is_depthwise(s)) return {};
    if (!passes.backward_weight || !WeightGradients::has(s, type))
      return by_plans(s, type, passes, cap);
    const Passes rest{.backward_input = passes.backward_input,
                      .backward_weight = false,
                      .forward = passes.forward};
    LinearClaim claim = by_plans(s, type, rest, cap);
    claim.passes.backward_weight = true;
    claim.op = make_by_pass(kWeight, weight_gradient(s, type, cap), std::move(claim.op));
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
    const auto pass = cudnn::fused_pass(calls, type);
    if (!pass) return {};
    start();
    const PlanRules rules = plan_rules(cap);
    std::optional<Plan> plan = cudnn::find_plan(context_->device(), *pass, rules);
    if (!plan || plan->scratch > rules.cap) return {};
    return {2, cudnn::make_fused_run(context_, calls, std::move(*plan))};
  }

 private:
  static constexpr Passes kWeight{
      .backward_input = false, .backward_weight = true, .forward = false};

  /// By cublasLt. Where it has no kernel, by cuDNN, or by our own kernels if that has none either.
  [[nodiscard]] std::unique_ptr<LinearOp> weight_gradient(const ConvShape& s, DType type,
                                                          std::int64_t cap) const {
    LinearClaim other = by_plans(s, type, kWeight, cap);
    return weights_.make(s, type, cap,
                         other.passes == kWeight ? std::move(other.op) : make_tiled(s, type));
  }

  /// Claims the passes that cuDNN has kernels for.
  [[nodiscard]] LinearClaim by_plans(const ConvShape& s, DType type, Passes passes,
                                     std::int64_t cap) const {
    start();
    const PlanRules rules = plan_rules(cap);
    const auto find = [&](bool wanted, Pass pass) {
      return wanted ? cudnn::find_plan(context_->device(), {s, type, pass}, rules) : std::nullopt;
    };
    PassPlans plans{find(passes.forward, Pass::Forward),
                    find(passes.backward_input, Pass::BackwardInput),
                    find(passes.backward_weight, Pass::BackwardWeight)};
    const Passes found{.backward_input = plans.backward_input.has_value(),
                       .backward_weight = plans.backward_weight.has_value(),
                       .forward = plans.forward.has_value()};
    return {found, std::make_unique<CudnnOp>(context_, s, type, std::move(plans))};
  }

  /// The library starts with the first claim: whoever only asks for names needs no device.
  void start() const {
    if (!context_) context_ = std::make_shared<const Context>();
  }

  [[nodiscard]] PlanRules plan_rules(std::int64_t cap) const {
    return {.cap = std::min(cap, cudnn::kDefaultCap),
            .allow_nondeterministic = allow_nondeterministic_};
  }

  bool allow_nondeterministic_;
  WeightGradients weights_;
  mutable std::shared_ptr<const Context> context_;
};

}  // namespace

std::unique_ptr<Vendor> make_cudnn_vendor(bool allow_nondeterministic) {
  return std::make_unique<CudnnVendor>(allow_nondeterministic);
}

std::string describe_cudnn_device() {
  return device_name(cudnn::properties_in_use()) + "; " + libraries_in_use();
}

}  // namespace millrace::ops
