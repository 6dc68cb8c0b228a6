// SPDX-License-Identifier: Apache-2.0
#include "ops/cublas/library.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "core/error.hpp"

namespace millrace::ops::cublas {

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

}  // namespace millrace::ops::cublas
