// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::device {

/// While one exists, this thread is inside a library (oneDNN, MPI, OpenMP start-up) whose
/// allocations are its own affair. The test that nothing of ours allocates within a step asks
/// `inside()`.
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
