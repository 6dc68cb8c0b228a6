// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/vendor.hpp"

#include <algorithm>
#include <utility>

#include "ops/cudnn/linear_op.hpp"
#include "ops/linear_ops.hpp"

namespace millrace::ops {
namespace {

using cudnn::Context;
using cudnn::CudnnOp;
using cudnn::Pass;
using cudnn::PassPlans;
using cudnn::PlanRules;

class CudnnVendor final : public Vendor {
 public:
  [[nodiscard]] const char* name() const override { return "cudnn"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }

  /// Depthwise convolutions stay with our own kernels: the library's 16-bit ones are a fallback.
  [[nodiscard]] LinearClaim claim(const ConvShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    if (is_depthwise(s)) return {};
    const PlanRules rules{.cap = std::min(cap, cudnn::kDefaultCap)};
    const auto find = [&](bool wanted, Pass pass) {
      return wanted ? cudnn::find_plan(context_->device(), s, type, pass, rules) : std::nullopt;
    };
    PassPlans plans{find(passes.forward, Pass::Forward),
                    find(passes.backward_input, Pass::BackwardInput),
                    find(passes.backward_weight, Pass::BackwardWeight)};
    const Passes found{.backward_input = plans.backward_input.has_value(),
                       .backward_weight = plans.backward_weight.has_value(),
                       .forward = plans.forward.has_value()};
    return {found, std::make_unique<CudnnOp>(context_, s, type, std::move(plans))};
  }
  [[nodiscard]] LinearClaim claim(const DenseShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    return claim(as_convolution(s), type, passes, cap);
  }
  using Vendor::claim;  // of runs: none

 private:
  std::shared_ptr<const Context> context_ = std::make_shared<const Context>();
};

}  // namespace

std::unique_ptr<Vendor> make_cudnn_vendor() { return std::make_unique<CudnnVendor>(); }

}  // namespace millrace::ops
