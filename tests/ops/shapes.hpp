// SPDX-License-Identifier: Apache-2.0
//
// The table of shapes for the tests of all convolution and dense kernels.
#pragma once

#include <string>
#include <vector>

#include "ops/linear.hpp"

namespace millrace::ops {

struct Pads {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t bottom = 0;
  std::int64_t right = 0;
};

struct Extent {
  std::int64_t h = 1;
  std::int64_t w = 1;
};

struct ConvCase {
  std::string name;
  std::int64_t batch = 1;
  Shape in = {};
  std::int64_t filters = 1;
  Extent kernel = {};
  Extent stride = {};
  Pads pads = {};
  std::int64_t groups = 1;
  Extent dilation = {};
  bool bias = false;

  [[nodiscard]] ConvShape shape() const {
    const auto outputs = [](std::int64_t size, std::int64_t window, std::int64_t step,
                            std::int64_t spread, std::int64_t padding) {
      return (size + padding - (window - 1) * spread - 1) / step + 1;
    };
    ConvShape s;
    s.window = {batch, in, {}, kernel.h, kernel.w, stride.h, stride.w, pads.top, pads.left};
    s.window.out = {outputs(in.h, kernel.h, stride.h, dilation.h, pads.top + pads.bottom),
                    outputs(in.w, kernel.w, stride.w, dilation.w, pads.left + pads.right), filters};
    s.pad_bottom = pads.bottom;
    s.pad_right = pads.right;
    s.groups = groups;
    s.dilation_h = dilation.h;
    s.dilation_w = dilation.w;
    s.bias = bias;
    return s;
  }
};

inline std::vector<ConvCase> conv_cases() {
  constexpr Pads kSame3{1, 1, 1, 1};
  constexpr Pads kEven3{0, 0, 1, 1};  // SAME, 3x3, stride 2, even size
  constexpr Pads kEven5{1, 1, 2, 2};
  constexpr Pads kEven7{2, 2, 3, 3};
  return {
      // name, batch, in, filters, kernel, stride, pads, groups, dilation, bias
      {"Point", 1, {1, 1, 1}, 1, {1, 1}, {1, 1}, {}},
      {"PointBias", 1, {1, 1, 1}, 3, {1, 1}, {1, 1}, {}, 1, {1, 1}, true},
      {"K1C3", 1, {7, 5, 3}, 5, {1, 1}, {1, 1}, {}},
      {"K1C16", 3, {8, 8, 16}, 64, {1, 1}, {1, 1}, {}},
      {"K1C64Odd", 1, {7, 7, 64}, 16, {1, 1}, {1, 1}, {}, 1, {1, 1}, true},
      {"K1C256", 2, {7, 7, 256}, 64, {1, 1}, {1, 1}, {}},
      {"K1Stride2", 2, {9, 9, 24}, 16, {1, 1}, {2, 2}, {}},
      {"K1Stride2Even", 3, {8, 8, 64}, 128, {1, 1}, {2, 2}, {}},
      {"K1Stride3", 1, {10, 8, 5}, 3, {1, 1}, {3, 3}, {}},
      {"K2Valid", 2, {5, 6, 3}, 16, {2, 2}, {1, 1}, {}},
      {"K3C1", 1, {5, 7, 1}, 1, {3, 3}, {1, 1}, kSame3},
      {"K3C1To16", 2, {9, 9, 1}, 16, {3, 3}, {1, 1}, kSame3},
      {"K3C3", 2, {32, 32, 3}, 16, {3, 3}, {1, 1}, kSame3},
      {"K3C5To3", 1, {6, 5, 5}, 3, {3, 3}, {1, 1}, kSame3, 1, {1, 1}, true},
      {"K3C16", 2, {32, 32, 16}, 16, {3, 3}, {1, 1}, kSame3},
      {"K3C16Odd", 1, {9, 7, 16}, 24, {3, 3}, {1, 1}, kSame3, 1, {1, 1}, true},
      {"K3C48To16Odd", 3, {9, 7, 48}, 16, {3, 3}, {1, 1}, kSame3, 1, {1, 1}, true},
      {"K3C16To96Lopsided", 1, {11, 8, 16}, 96, {3, 3}, {1, 1}, {2, 0, 0, 2}, 1, {1, 1}, true},
      {"K3C24", 3, {5, 11, 24}, 5, {3, 3}, {1, 1}, kSame3},
      {"K3C32", 4, {16, 16, 32}, 32, {3, 3}, {1, 1}, kSame3},
      {"K3C64", 4, {8, 8, 64}, 64, {3, 3}, {1, 1}, kSame3},
      {"K3C64Odd", 1, {7, 7, 64}, 64, {3, 3}, {1, 1}, kSame3},
      {"K3C64Small", 2, {2, 2, 64}, 64, {3, 3}, {1, 1}, kSame3},
      {"K3Valid", 2, {8, 10, 16}, 16, {3, 3}, {1, 1}, {}},
      {"K3Stride2Even", 2, {32, 32, 16}, 32, {3, 3}, {2, 2}, kEven3},
      {"K3Stride2Pad1", 2, {16, 16, 16}, 32, {3, 3}, {2, 2}, kSame3},
      {"K3Stride2Odd", 1, {7, 9, 64}, 64, {3, 3}, {2, 2}, kSame3},
      {"K3Stride2C3", 2, {15, 16, 3}, 24, {3, 3}, {2, 2}, kEven3, 1, {1, 1}, true},
      {"K3Stride2C128", 1, {14, 14, 128}, 128, {3, 3}, {2, 2}, kEven3},
      {"K3Stride3", 2, {11, 10, 16}, 24, {3, 3}, {3, 3}, kSame3},
      {"K3Stride1And3", 1, {9, 10, 5}, 16, {3, 3}, {1, 3}, kSame3},
      {"K3Lopsided", 1, {6, 7, 16}, 16, {3, 3}, {1, 1}, {2, 0, 0, 2}},
      {"K3Large", 1, {28, 29, 8}, 64, {3, 3}, {1, 1}, kSame3, 1, {1, 1}, true},
      {"K3LargeLopsided", 2, {27, 28, 64}, 5, {3, 3}, {1, 1}, {2, 0, 0, 2}},
      {"K1Large", 1, {27, 29, 64}, 16, {1, 1}, {1, 1}, {}},
      {"K1x7", 1, {7, 9, 16}, 24, {1, 7}, {1, 1}, {0, 3, 0, 3}},
      {"K7x1", 1, {9, 7, 24}, 16, {7, 1}, {1, 1}, {3, 0, 3, 0}},
      {"K5Stride2Even", 2, {12, 12, 16}, 24, {5, 5}, {2, 2}, kEven5},
      {"Stem", 2, {32, 32, 3}, 64, {7, 7}, {2, 2}, kEven7},
      {"StemOdd", 1, {33, 31, 3}, 64, {7, 7}, {2, 2}, {3, 3, 3, 3}, 1, {1, 1}, true},
      {"StemGray", 1, {28, 28, 1}, 24, {7, 7}, {2, 2}, kEven7},
      {"Dilated2", 2, {9, 9, 16}, 16, {3, 3}, {1, 1}, {2, 2, 2, 2}, 1, {2, 2}},
      {"Dilated2x3", 1, {11, 10, 5}, 24, {3, 3}, {1, 1}, {2, 3, 2, 3}, 1, {2, 3}, true},
      {"Dilated2Stride2", 1, {12, 13, 16}, 16, {3, 3}, {2, 2}, {2, 2, 2, 2}, 1, {2, 2}},
      {"Groups2", 2, {8, 8, 16}, 16, {3, 3}, {1, 1}, kSame3, 2},
      {"Groups3", 1, {7, 6, 15}, 9, {3, 3}, {1, 1}, kSame3, 3, {1, 1}, true},
      {"Groups4Widen", 2, {8, 8, 64}, 128, {3, 3}, {2, 2}, kEven3, 4},
      {"Groups4Point", 2, {5, 5, 24}, 16, {1, 1}, {1, 1}, {}, 4},
      {"Groups32Of4", 1, {8, 8, 128}, 128, {3, 3}, {1, 1}, kSame3, 32},
      {"Groups32Of8Stride2", 1, {9, 9, 256}, 256, {3, 3}, {2, 2}, kSame3, 32},
      {"Depthwise3", 2, {7, 7, 3}, 3, {3, 3}, {1, 1}, kSame3, 3},
      {"Depthwise16", 2, {16, 16, 16}, 16, {3, 3}, {1, 1}, kSame3, 16},
      {"Depthwise24Stride2", 2, {12, 12, 24}, 24, {3, 3}, {2, 2}, kEven3, 24, {1, 1}, true},
      {"Depthwise5Stride3", 1, {10, 11, 5}, 5, {3, 3}, {3, 3}, kSame3, 5},
      {"Depthwise64K5", 1, {9, 9, 64}, 64, {5, 5}, {1, 1}, {2, 2, 2, 2}, 64},
      {"Depthwise16K5Stride2", 2, {14, 14, 16}, 16, {5, 5}, {2, 2}, kEven5, 16},
      {"DepthwiseDilated", 1, {9, 9, 16}, 16, {3, 3}, {1, 1}, {2, 2, 2, 2}, 16, {2, 2}},
      {"Depthwise40K5OddStride2", 2, {7, 7, 40}, 40, {5, 5}, {2, 2}, {2, 2, 2, 2}, 40},
      {"Depthwise72Pixel", 3, {1, 1, 72}, 72, {3, 3}, {1, 1}, kSame3, 72},
      {"Depthwise144K5Small", 2, {2, 2, 144}, 144, {5, 5}, {1, 1}, {2, 2, 2, 2}, 144},
      {"Depthwise32Rows", 5, {9, 6, 32}, 32, {3, 3}, {1, 2}, kSame3, 32},
      {"Depthwise48Valid", 2, {8, 9, 48}, 48, {5, 5}, {2, 1}, {}, 48},
      {"Groups6Of16", 2, {6, 6, 96}, 96, {3, 3}, {1, 1}, kSame3, 6},
      {"Groups32Of16Stride2", 1, {7, 7, 512}, 512, {3, 3}, {2, 2}, kSame3, 32},
      {"Groups6Of8", 2, {5, 4, 48}, 48, {3, 3}, {1, 1}, kSame3, 6},
      {"Groups7Of4", 1, {5, 4, 28}, 28, {3, 3}, {1, 1}, kSame3, 7},
      {"SqueezeTo4", 5, {1, 1, 96}, 4, {1, 1}, {1, 1}, {}, 1, {1, 1}, true},
      {"ExciteFrom4", 5, {1, 1, 4}, 96, {1, 1}, {1, 1}, {}, 1, {1, 1}, true},
      {"SqueezeTo48", 17, {1, 1, 1152}, 48, {1, 1}, {1, 1}, {}, 1, {1, 1}, true},
      {"ExciteFrom10", 9, {1, 1, 10}, 240, {1, 1}, {1, 1}, {}, 1, {1, 1}, true},
      {"SqueezeTo1", 3, {1, 1, 16}, 1, {1, 1}, {1, 1}, {}, 1, {1, 1}, true},
      {"PixelK3Wide", 3, {1, 1, 64}, 256, {3, 3}, {1, 1}, kSame3},
      {"PixelK3", 2, {1, 1, 24}, 16, {3, 3}, {2, 2}, kSame3},
      {"DepthMultiplier2", 1, {8, 7, 16}, 32, {3, 3}, {1, 1}, kSame3, 16},
  };
}

struct DenseCase {
  std::string name;
  DenseShape shape;

  /// A dense op is a 1x1 convolution of 1x1 images.
  [[nodiscard]] ConvShape as_convolution() const {
    ConvShape s;
    s.window.batch = shape.batch;
    s.window.in = {1, 1, shape.in};
    s.window.out = {1, 1, shape.units};
    s.bias = shape.bias;
    return s;
  }
};

inline std::vector<DenseCase> dense_cases() {
  return {
      // name, {batch, in, units, bias}
      {"Dense1", {1, 1, 1, true}},         {"Dense64To10", {128, 64, 10, true}},
      {"DenseBatch1", {1, 64, 10, true}},  {"Dense512To1000", {2, 512, 1000, true}},
      {"DenseOdd", {3, 5, 7, true}},       {"DenseNoBias", {7, 24, 16, false}},
      {"DenseWide", {5, 100, 300, false}}, {"Dense1Unit", {16, 33, 1, true}},
  };
}

}  // namespace millrace::ops
