// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/vendor.hpp"

#include <algorithm>
#include <utility>

#include "ops/cudnn/fused_pass.hpp"
#include "ops/cudnn/fused_run.hpp"
#include "ops/cudnn/linear_op.hpp"
#include "ops/cudnn/stopwatch.hpp"
#include "ops/cudnn/tuning.hpp"
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

PlanRules plan_rules(const KernelRules& rules, std::int64_t cap) {
  return {.cap = std::min(cap, cudnn::kDefaultCap),
          .allow_nondeterministic = rules.allow_nondeterministic};
}

/// Depthwise convolutions stay with our own kernels: the library's 16-bit ones are a fallback.
bool is_ours(const ConvShape& s) { return is_depthwise(s); }

class CudnnVendor final : public Vendor {
 public:
  explicit CudnnVendor(KernelRules rules) : rules_(std::move(rules)) {}

  [[nodiscard]] const char* name() const override { return "cudnn"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }

  [[nodiscard]] std::int64_t image_channels(const ConvShape& first, DType type) const override {
    return cudnn::image_channels(first, type);
  }

  [[nodiscard]] LinearClaim claim(const ConvShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    if (is_ours(s)) return {};
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
    if (!rules_.allow_nondeterministic) return {};
    const auto pass = cudnn::fused_pass(calls, type);
    if (!pass) return {};
    start();
    const PlanRules rules = plan_rules(rules_, cap);
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
    const PlanRules rules = plan_rules(rules_, cap);
    const auto find = [&](bool wanted, Pass pass) {
      return wanted ? cudnn::choose_plan(context_->device(), {s, type, pass}, rules, table_)
                    : std::nullopt;
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
    if (context_) return;
    context_ = std::make_shared<const Context>();
    const KernelTable* const given = rules_.table.get();
    if (given != nullptr &&
        why_unfit(*given, device_name(context_->device()), cudnn::library_name()).empty())
      table_ = given;
  }

  KernelRules rules_;
  WeightGradients weights_;
  mutable std::shared_ptr<const Context> context_;
  mutable const KernelTable* table_ = nullptr;  ///< that of the rules, if it is for this device
};

class CudnnTuner final : public KernelTuner {
 public:
  explicit CudnnTuner(const KernelRules& rules) : rules_(rules) {}

  [[nodiscard]] std::string device() const override { return device_name(context_.device()); }
  [[nodiscard]] std::string library() const override { return cudnn::library_name(); }
  std::optional<TableRow> tune(const ConvShape& shape, DType type, LinearPass pass,
                               std::int64_t cap) override {
    if (is_ours(shape)) return {};
    if (pass == LinearPass::BackwardWeight && WeightGradients::has(shape, type)) return {};
    const cudnn::PassShape of{shape, type, pass};
    return cudnn::tune_pass(
        context_.device(), of, plan_rules(rules_, cap),
        [&](const cudnn::Plan& plan) { return cudnn::measure_plan(context_, of, plan); });
  }

 private:
  KernelRules rules_;
  Context context_;
};

}  // namespace

std::unique_ptr<Vendor> make_cudnn_vendor(const KernelRules& rules) {
  return std::make_unique<CudnnVendor>(rules);
}

std::unique_ptr<KernelTuner> make_cudnn_tuner(const KernelRules& rules) {
  return std::make_unique<CudnnTuner>(rules);
}

std::string describe_cudnn_device() {
  return device_name(cudnn::properties_in_use()) + "; " + libraries_in_use();
}

std::string why_unfit_for_cudnn(const KernelTable& table) {
  return why_unfit(table, device_name(cudnn::properties_in_use()), cudnn::library_name());
}

}  // namespace millrace::ops
