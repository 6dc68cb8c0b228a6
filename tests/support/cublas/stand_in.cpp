// SPDX-License-Identifier: Apache-2.0
#include "stand_in.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "core/bfloat16.hpp"
#include "core/float16.hpp"

struct cublasLtContext {};

namespace millrace::testing::cublas {
namespace {

struct Matrix : cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0, leading = 0;
  bool operator==(const Matrix& o) const {
    return type == o.type && rows == o.rows && columns == o.columns && leading == o.leading;
  }
};

struct Operation : cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  std::map<cublasLtMatmulDescAttributes_t, cublasOperation_t> transposed;
  [[nodiscard]] bool transposes(cublasLtMatmulDescAttributes_t name) const {
    const auto found = transposed.find(name);
    return found != transposed.end() && found->second == CUBLAS_OP_T;
  }
};

/// With the library's defaults.
struct Preference : cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t scratch = 0;
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::map<cublasLtMatmulPreferenceAttributes_t, std::uint32_t> alignments = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 256},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 256},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 256},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 256}};
};

/// A product that the library supports, in the words of its manual.
struct Product {
  Matrix a, b, d;
  bool a_transposed = false, b_transposed = false;
  std::int64_t depth = 0;
  bool operator==(const Product& o) const {
    return a == o.a && b == o.b && d == o.d && a_transposed == o.a_transposed &&
           b_transposed == o.b_transposed;
  }
};

/// A proposal that was given away, and what it is for.
struct Proposed {
  Kernel kernel;
  Product product{};
  Preference preference;
};

struct State {
  std::vector<Kernel> kernels = {Kernel{}};
  std::vector<Proposed> proposed;
  std::set<const void*> objects;
  Calls calls;
};
State& state() {
  static State state;
  return state;
}

/// A new object, which `handle` then names.
template <class Object, class Handle>
Object& create(Handle* handle) {
  auto* const made = new Object();
  state().objects.insert(made);
  ++state().calls.live_objects;
  *handle = made;
  return *made;
}

template <class Object, class Handle>
cublasStatus_t destroy(Handle handle) {
  auto* const object = static_cast<Object*>(handle);
  if (state().objects.erase(object) == 0) return CUBLAS_STATUS_INVALID_VALUE;
  --state().calls.live_objects;
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

template <class... Handles>
bool live(Handles... handles) {
  return ((state().objects.count(handles) == 1) && ...);
}

/// Copies an attribute of exactly this size.
template <class T>
bool copied(T& value, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof value) return false;
  std::memcpy(&value, from, sizeof value);
  return true;
}

cublasStatus_t refused_unless(bool fine) {
  return fine ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/// Float32 sums of 16-bit operands, into the same matrix that is added.
cublasStatus_t read_product(const Operation& operation, const Matrix& a, const Matrix& b,
                            const Matrix& c, const Matrix& d, Product& product) {
  const bool types = (a.type == CUDA_R_16BF || a.type == CUDA_R_16F) && b.type == a.type &&
                     c.type == CUDA_R_32F && d.type == CUDA_R_32F &&
                     operation.compute == CUBLAS_COMPUTE_32F && operation.scale == CUDA_R_32F;
  if (!types) return CUBLAS_STATUS_NOT_SUPPORTED;
  product = {a, b, d, operation.transposes(CUBLASLT_MATMUL_DESC_TRANSA),
             operation.transposes(CUBLASLT_MATMUL_DESC_TRANSB)};
  const std::int64_t rows = product.a_transposed ? a.columns : a.rows;
  const std::int64_t columns = product.b_transposed ? b.rows : b.columns;
  product.depth = product.a_transposed ? a.rows : a.columns;
  const std::int64_t other = product.b_transposed ? b.columns : b.rows;
  return refused_unless(rows == d.rows && columns == d.columns && product.depth == other && c == d);
}

bool aligned(const void* address, std::uint32_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

double value(const void* matrix, const Matrix& layout, std::int64_t row, std::int64_t column) {
  const std::int64_t at = column * layout.leading + row;
  if (layout.type == CUDA_R_16BF)
    return static_cast<double>(to_float(static_cast<const bfloat16*>(matrix)[at]));
  return static_cast<double>(to_float(static_cast<const float16*>(matrix)[at]));
}

/// The depth that a divided sum reaches: the fault that is reported of the library.
std::int64_t reached(const Kernel& kernel, std::int64_t depth) {
  const std::int64_t rest = depth % kBlock;
  const bool lost =
      rest != 0 && kernel.parts > rest && (depth / kBlock) % kernel.parts == 0 && kernel.parts > 1;
  return lost ? depth - rest : depth;
}

void multiply(const Proposed& proposed, float alpha, float beta, const void* a, const void* b,
              float* d) {
  const Product& p = proposed.product;
  const std::int64_t depth = reached(proposed.kernel, p.depth);
  for (std::int64_t column = 0; column < p.d.columns; ++column) {
    for (std::int64_t row = 0; row < p.d.rows; ++row) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < depth; ++i)
        sum += (p.a_transposed ? value(a, p.a, i, row) : value(a, p.a, row, i)) *
               (p.b_transposed ? value(b, p.b, column, i) : value(b, p.b, i, column));
      float& to = d[column * p.d.leading + row];
      const double kept = beta == 0.0f ? 0.0 : static_cast<double>(beta * to);
      to = static_cast<float>(static_cast<double>(alpha) * sum + kept);
    }
  }
}

}  // namespace

void propose(std::vector<Kernel> kernels) { state().kernels = std::move(kernels); }
const Calls& calls() { return state().calls; }

}  // namespace millrace::testing::cublas

using namespace millrace::testing::cublas;

extern "C" {

std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "an unsupported value";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  create<cublasLtContext>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy<cublasLtContext>(handle); }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  if (leading < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  auto& made = create<Matrix>(layout);
  made.type = type;
  made.rows = static_cast<std::int64_t>(rows);
  made.columns = static_cast<std::int64_t>(columns);
  made.leading = leading;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy<Matrix>(layout);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  auto& made = create<Operation>(operation);
  made.compute = compute;
  made.scale = scale;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return destroy<Operation>(operation);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name, const void* from,
                                              std::size_t bytes) {
  const bool known = name == CUBLASLT_MATMUL_DESC_TRANSA || name == CUBLASLT_MATMUL_DESC_TRANSB;
  if (!live(operation) || !known) return CUBLAS_STATUS_INVALID_VALUE;
  return refused_unless(copied(static_cast<Operation*>(operation)->transposed[name], from, bytes));
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  create<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* from, std::size_t bytes) {
  if (!live(preference)) return CUBLAS_STATUS_INVALID_VALUE;
  auto& object = static_cast<Preference&>(*preference);
  if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return refused_unless(copied(object.scratch, from, bytes));
  if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    return refused_unless(copied(object.schemes, from, bytes));
  const auto alignment = object.alignments.find(name);
  return refused_unless(alignment != object.alignments.end() &&
                        copied(alignment->second, from, bytes));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  ++state().calls.searches;
  if (!live(handle, operation, a, b, c, d, preference) || most <= 0 || results == nullptr ||
      count == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto matrix = [](cublasLtMatrixLayout_t m) { return static_cast<const Matrix&>(*m); };
  Product product{};
  const cublasStatus_t status = read_product(static_cast<const Operation&>(*operation), matrix(a),
                                             matrix(b), matrix(c), matrix(d), product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto& asked = static_cast<const Preference&>(*preference);
  *count = 0;
  for (const Kernel& kernel : state().kernels) {
    const bool allowed = kernel.scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
                         (static_cast<std::uint32_t>(kernel.scheme) & asked.schemes) != 0;
    if (!allowed || kernel.scratch > asked.scratch || *count == most) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    state().proposed.push_back({kernel, product, asked});
    result.algo.data[0] = state().proposed.size();  // from 1: an algorithm of zeros is none of ours
    result.workspaceSize = kernel.scratch;
    result.state = kernel.state;
  }
  return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void* to, std::size_t bytes,
                                                    std::size_t* written) {
  const std::uint64_t number = algorithm->data[0];
  if (number < 1 || number > state().proposed.size() || name != CUBLASLT_ALGO_CONFIG_SPLITK_NUM ||
      bytes != sizeof(std::int32_t) || written == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, &state().proposed[number - 1].kernel.parts, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* scratch,
                              std::size_t scratch_bytes, cudaStream_t stream) {
  if (!live(handle, operation, a_layout, b_layout, c_layout, d_layout) || alpha == nullptr ||
      beta == nullptr || algorithm == nullptr || c != d || c_layout != d_layout)
    return CUBLAS_STATUS_INVALID_VALUE;
  const std::uint64_t number = algorithm->data[0];
  if (number < 1 || number > state().proposed.size()) return CUBLAS_STATUS_INVALID_VALUE;
  const Proposed& proposed = state().proposed[number - 1];
  const auto matrix = [](cublasLtMatrixLayout_t m) { return static_cast<const Matrix&>(*m); };
  Product product{};
  const cublasStatus_t status =
      read_product(static_cast<const Operation&>(*operation), matrix(a_layout), matrix(b_layout),
                   matrix(c_layout), matrix(d_layout), product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto& least = proposed.preference.alignments;
  const bool fits = product == proposed.product &&
                    aligned(a, least.at(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)) &&
                    aligned(b, least.at(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)) &&
                    aligned(c, least.at(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)) &&
                    aligned(d, least.at(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));
  if (proposed.kernel.state != CUBLAS_STATUS_SUCCESS) return proposed.kernel.state;
  if (!fits || scratch_bytes < proposed.kernel.scratch || !aligned(scratch, 256))
    return CUBLAS_STATUS_INVALID_VALUE;
  // Whoever says that there is scratch must have it.
  if (scratch_bytes > 0) std::memset(scratch, 0xff, scratch_bytes);
  multiply(proposed, *static_cast<const float*>(alpha), *static_cast<const float*>(beta), a, b,
           static_cast<float*>(d));
  state().calls.last = proposed.kernel;
  state().calls.stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
