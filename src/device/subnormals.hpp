// SPDX-License-Identifier: Apache-2.0
//
// Subnormal floats, whose magnitude is below 2^-126, cost processors a hundred times the time of
// others. They appear when gradients or activations fade away: a step of ResNet-14 on one image
// then took 6.4 s instead of 0.08. Kernels count them as zero, as GPUs and TensorFlow do.
#pragma once

#include <cstdint>

namespace millrace::device {

/// While this lives, subnormal floats in arguments and results of arithmetic in this thread are
/// zero; copies keep their bits. Threads that it starts inherit this for good. Does nothing on
/// processors other than x86-64 and AArch64.
class SubnormalsAsZero {
 public:
  SubnormalsAsZero();
  ~SubnormalsAsZero();
  SubnormalsAsZero(const SubnormalsAsZero&) = delete;
  SubnormalsAsZero& operator=(const SubnormalsAsZero&) = delete;

  /// The same for this thread for good.
  static void from_now_on();

 private:
  std::uint64_t before_;  ///< the thread's control register
};

}  // namespace millrace::device
