// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.hpp"

#include <fmt/format.h>

namespace millrace::ops {

std::string describe(const ConvShape& s) {
  const WindowShape& w = s.window;
  return fmt::format(
      "{} of {}x{}x{} to {}x{}x{}, window {}x{}, stride {} {}, padding {} {} {} {}, dilation {} "
      "{}, "
      "groups {}{}",
      w.batch, w.in.h, w.in.w, w.in.c, w.out.h, w.out.w, w.out.c, w.kernel_h, w.kernel_w,
      w.stride_h, w.stride_w, w.pad_top, w.pad_left, s.pad_bottom, s.pad_right, s.dilation_h,
      s.dilation_w, s.groups, s.bias ? ", bias" : "");
}

}  // namespace millrace::ops
