// SPDX-License-Identifier: Apache-2.0
#include "ops/onednn/vendor.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "device/environment.hpp"
#include "ops/onednn/linear_op.hpp"

namespace millrace::ops {
namespace {

using onednn::OneDnnOp;
using onednn::Primitives;

class OneDnnVendor final : public Vendor {
 public:
  [[nodiscard]] const char* name() const override { return "onednn"; }
  [[nodiscard]] bool multiplies(DType type) const override { return onednn::multiplies(type); }
  [[nodiscard]] std::string why_not(DType type) const override {
    if (type == DType::F16 && DNNL_VERSION_MAJOR < 3)
      return "this version of oneDNN has no float16 kernels";
    const std::string_view cap = device::vendor_cap();
    return cap.empty() ? "this processor has no 16-bit products"
                       : fmt::format("{} disables 16-bit products", cap);
  }
  // Measured: below AVX-512, code generators for float32 products, of which convolutions consist
  // below AVX2.
  [[nodiscard]] std::int64_t own_bytes(bool dense) const override {
    if (onednn::has(dnnl::cpu_isa::avx512_core)) return 0;
    return dense || !onednn::has(dnnl::cpu_isa::avx2) ? 3'500'000 : 0;
  }
  [[nodiscard]] std::int64_t bytes_of_kernel() const override {
    if (onednn::has(dnnl::cpu_isa::avx512_core)) return 60'000;
    return onednn::has(dnnl::cpu_isa::avx2) ? 25'000 : 30'000;
  }
  [[nodiscard]] std::optional<MeasuredLevel> level() const override {
    if (onednn::has(dnnl::cpu_isa::avx512_core_amx)) return MeasuredLevel::Amx;
    if (onednn::has(dnnl::cpu_isa::avx512_core)) return MeasuredLevel::Avx512;
    return onednn::has(dnnl::cpu_isa::avx2) ? MeasuredLevel::Avx2 : MeasuredLevel::Sse;
  }

  [[nodiscard]] LinearClaim claim(const ConvShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    try {
      return prepare(onednn::find_primitives(context_->engine, s, type, passes, cap));
    } catch (const dnnl::error& error) {
      const WindowShape& w = s.window;
      fail(ErrorKind::Internal,
           "oneDNN rejects a {} convolution {}x{}, stride {}x{}, {} groups, from {} to {}: {}",
           name_of(type), w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, s.groups, w.in, w.out,
           error.what());
    }
  }
  [[nodiscard]] LinearClaim claim(const DenseShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    return prepare(onednn::find_primitives(context_->engine, s, type, passes, cap));
  }
  using Vendor::claim;  // of runs: none

 private:
  [[nodiscard]] LinearClaim prepare(const Primitives& found) const {
    return {found.passes(), std::make_unique<OneDnnOp>(context_, found)};
  }

  std::shared_ptr<onednn::Context> context_ = std::make_shared<onednn::Context>();
};

}  // namespace

std::unique_ptr<Vendor> make_onednn_vendor() { return std::make_unique<OneDnnVendor>(); }

}  // namespace millrace::ops
