// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::device {

/// While an object exists, this thread is inside a library (oneDNN, MPI, OpenMP start-up). The test
/// that our code allocates nothing within a step uses `inside()` to ignore the library's
/// allocations.
class VendorScope {
 public:
  VendorScope() noexcept { ++depth(); }
  ~VendorScope() { --depth(); }
  VendorScope(const VendorScope&) = delete;
  VendorScope& operator=(const VendorScope&) = delete;
  [[nodiscard]] static bool inside() noexcept { return depth() > 0; }

 private:
  static int& depth() noexcept {
    static thread_local int value = 0;
    return value;
  }
};

}  // namespace millrace::device
