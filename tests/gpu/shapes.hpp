// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string>

#include "ops/linear.hpp"

namespace millrace::ops::cudnn::testing {

/// A convolution of ResNet-50, 3x3 by 2.
inline ConvShape strided() {
  ConvShape s;
  s.window = {.batch = 256,
              .in = {56, 56, 128},
              .out = {28, 28, 128},
              .kernel_h = 3,
              .kernel_w = 3,
              .stride_h = 2,
              .stride_w = 2,
              .pad_top = 1,
              .pad_left = 1};
  return s;
}

/// Its first one, 7x7 by 2.
inline ConvShape stem() {
  ConvShape s;
  s.window = {.batch = 256,
              .in = {224, 224, 3},
              .out = {112, 112, 64},
              .kernel_h = 7,
              .kernel_w = 7,
              .stride_h = 2,
              .stride_w = 2,
              .pad_top = 3,
              .pad_left = 3};
  s.pad_bottom = 3;
  s.pad_right = 3;
  return s;
}

/// A convolution as text that tells shapes apart: "256 of 56x56x64 to 56x56x64, window 3x3, ..".
inline std::string describe(const ConvShape& s) {
  const WindowShape& w = s.window;
  return fmt::format(
      "{} of {}x{}x{} to {}x{}x{}, window {}x{}, stride {} {}, padding {} {} {} {}, dilation {} "
      "{}, "
      "groups {}{}",
      w.batch, w.in.h, w.in.w, w.in.c, w.out.h, w.out.w, w.out.c, w.kernel_h, w.kernel_w,
      w.stride_h, w.stride_w, w.pad_top, w.pad_left, s.pad_bottom, s.pad_right, s.dilation_h,
      s.dilation_w, s.groups, s.bias ? ", bias" : "");
}

}  // namespace millrace::ops::cudnn::testing
