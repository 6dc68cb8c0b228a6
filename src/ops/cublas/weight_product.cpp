// SPDX-License-Identifier: Apache-2.0
#include "ops/cublas/weight_product.hpp"

#include <fmt/format.h>

#include <array>
#include <span>

#include "core/error.hpp"

namespace millrace::ops::cublas {
namespace {

/// Of all matrices, in bytes. Those of the arena have more; the kernel must not depend on how much.
constexpr std::uint32_t kAlignment = 16;

/// How parts of a divided sum may be joined. Both write them to scratch, in float32 here, and add
/// them in a step of their own.
constexpr std::uint32_t kInOrder =
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
constexpr std::uint32_t kUndivided = CUBLASLT_REDUCTION_SCHEME_NONE;

/// Float32 throughout; the library's rounded and emulated forms (TF32) have other names.
Operation make_operation() {
  cublasLtMatmulDesc_t operation = nullptr;
  check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "an operation");
  Operation made(operation);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &transposed,
                                       sizeof transposed),
        "a transposed matrix");
  return made;
}

/// A matrix without gaps, in the library's words: columns follow each other.
Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
        "a matrix");
  return Layout(layout);
}

cudaDataType_t data_type(DType type) {
  MILLRACE_ASSERT(type == DType::BF16 || type == DType::F16);
  return type == DType::BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof value),
        "a preference");
}

Preference make_preference(std::int64_t scratch, std::uint32_t schemes) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "preferences");
  Preference made(preference);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(scratch));
  set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  for (const auto matrix :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(made, matrix, kAlignment);
  return made;
}

std::int32_t parts_of(const cublasLtMatmulAlgo_t& kernel) {
  std::int32_t parts = 1;
  std::size_t written = 0;
  check(cublasLtMatmulAlgoConfigGetAttribute(&kernel, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                             sizeof parts, &written),
        "the number of parts of a sum");
  return parts;
}

/// Whether the last rows are safe. Versions 12.8 and 13.1 are reported to leave them out where a
/// sum is divided into more parts than rows remain behind the last whole block of the kernel
/// (facebookexperimental/triton, pull request 2767). The library does not tell the length of its
/// blocks, which are powers of two.
bool keeps_all_rows(const cublasLtMatmulAlgo_t& kernel, std::int64_t rows) {
  constexpr std::int64_t kLongestBlock = 512;
  const std::int32_t parts = parts_of(kernel);
  if (parts <= 1) return true;
  for (std::int64_t block = 8; block <= kLongestBlock; block *= 2)
    if (rows % block > 0 && rows % block < parts) return false;
  return true;
}

}  // namespace

void check(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ErrorKind::Internal, "cublasLt refuses {}: {}", what, cublasLtGetStatusString(status));
}

std::string library_name() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cublasLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

cublasLtHandle_t Library::handle() const {
  if (!opened_) {
    cublasLtHandle_t handle = nullptr;
    check(cublasLtCreate(&handle), "to start");
    opened_ = std::make_unique<Opened>(handle);
  }
  return opened_->get();
}

WeightProduct::WeightProduct(const ProductShape& shape, std::int64_t scratch)
    : shape_(shape),
      scratch_(scratch),
      operation_(make_operation()),
      x_(make_layout(data_type(shape.type), shape.in, shape.rows)),
      dy_(make_layout(data_type(shape.type), shape.out, shape.rows)),
      dw_(make_layout(CUDA_R_32F, shape.in, shape.out)) {}

/// The library's first proposal that keeps to the rules, if it has one.
std::optional<cublasLtMatmulAlgo_t> WeightProduct::choose(cublasLtHandle_t library) const {
  for (const std::uint32_t schemes : {kInOrder, kUndivided}) {
    std::array<cublasLtMatmulHeuristicResult_t, 8> proposals = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library, operation_.get(), x_.get(), dy_.get(), dw_.get(), dw_.get(),
        make_preference(scratch_, schemes).get(), static_cast<int>(proposals.size()),
        proposals.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) continue;  // its word for none
    check(status, "to propose kernels");
    for (const auto& proposal : std::span(proposals).first(static_cast<std::size_t>(count)))
      if (proposal.state == CUBLAS_STATUS_SUCCESS && keeps_all_rows(proposal.algo, shape_.rows))
        return proposal.algo;
  }
  return std::nullopt;
}

bool WeightProduct::has_kernel(cublasLtHandle_t library) {
  if (!asked_) kernel_ = choose(library);
  asked_ = true;
  return kernel_.has_value();
}

void WeightProduct::run(cublasLtHandle_t library, cudaStream_t stream, float* dw, const void* dy,
                        const void* x, bool first, std::byte* scratch) {
  MILLRACE_ASSERT(kernel_.has_value());
  const float one = 1.0f;
  const float kept = first ? 0.0f : 1.0f;
  check(cublasLtMatmul(library, operation_.get(), &one, x, x_.get(), dy, dy_.get(), &kept, dw,
                       dw_.get(), dw, dw_.get(), &*kernel_, scratch,
                       static_cast<std::size_t>(scratch_), stream),
        "a weight gradient");
}

}  // namespace millrace::ops::cublas
