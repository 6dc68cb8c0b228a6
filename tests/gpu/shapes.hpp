// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// One of ResNeXt-50's, in 32 groups.
inline ConvShape grouped() {
  ConvShape s;
  s.window = {.batch = 64,
              .in = {28, 28, 256},
              .out = {28, 28, 256},
              .kernel_h = 3,
              .kernel_w = 3,
              .stride_h = 1,
              .stride_w = 1,
              .pad_top = 1,
              .pad_left = 1};
  s.pad_bottom = 1;
  s.pad_right = 1;
  s.groups = 32;
  return s;
}

}  // namespace millrace::ops::cudnn::testing
