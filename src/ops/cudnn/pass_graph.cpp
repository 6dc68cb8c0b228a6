// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/pass_graph.hpp"

#include <array>
#include <utility>
#include <vector>

namespace millrace::ops::cudnn {
namespace {

constexpr std::int64_t kAlignment = 16;  // of addresses, in bytes; the arena's is larger

using Four = std::array<std::int64_t, 4>;

cudnnDataType_t data_type(DType type) {
  if (type == DType::BF16) return CUDNN_DATA_BFLOAT16;
  return type == DType::F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

/// A tensor of `count` images, or kernels of outputs, with channels last in memory. The library
/// lists dimensions as N, C, H, W in every case.
Descriptor tensor(std::int64_t number, cudnnDataType_t type, std::int64_t count, const Shape& image,
                  bool is_virtual = false) {
  const Four sizes = {count, image.c, image.h, image.w};
  const Four strides = {image.elements(), 1, image.w * image.c, image.c};
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment)
      .set_all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)
      .set_all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES, strides);
  if (is_virtual) tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  tensor.finish();
  return tensor;
}

Descriptor window(const ConvShape& s) {
  const WindowShape& w = s.window;
  const std::array<std::int64_t, 2> strides = {w.stride_h, w.stride_w};
  const std::array<std::int64_t, 2> dilations = {s.dilation_h, s.dilation_w};
  const std::array<std::int64_t, 2> before = {w.pad_top, w.pad_left};
  const std::array<std::int64_t, 2> after = {s.pad_bottom, s.pad_right};
  Descriptor window(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  window.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilations)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, before)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, after)
      .finish();
  return window;
}

/// Names of the attributes of an operation, which differ between passes though they mean the same.
struct Attributes {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t window, input, kernel, output, alpha, beta;
};

Attributes attributes_of(Pass pass) {
  switch (pass) {
    case Pass::Forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case Pass::BackwardInput:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
  }
}

Descriptor convolution(Pass pass, const Descriptor& window, const Descriptor& input,
                       const Descriptor& kernel, const Descriptor& output) {
  const Attributes names = attributes_of(pass);
  Descriptor operation(names.operation);
  operation.set(names.window, window)
      .set(names.input, input)
      .set(names.kernel, kernel)
      .set(names.output, output)
      .set(names.alpha, 1.0f)
      .set(names.beta, 0.0f)
      .finish();
  return operation;
}

Descriptor addition_rule() {
  Descriptor rule(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  rule.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
      .finish();
  return rule;
}

Descriptor addition(const Descriptor& rule, const Descriptor& sums, const Descriptor& bias,
                    const Descriptor& output) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, rule)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sums)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, output)
      .finish();
  return operation;
}

Descriptor sums_of(const Descriptor& output, const Descriptor& sums, const Descriptor& squares) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, output)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sums)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares)
      .finish();
  return operation;
}

}  // namespace

PassGraph make_pass_graph(const PassShape& of) {
  constexpr std::int64_t kUnrounded = kSquares + 1;
  const ConvShape& s = of.shape;
  const Pass pass = of.pass;
  const WindowShape& w = s.window;
  const cudnnDataType_t stored = data_type(of.type);
  PassGraph made{{}, Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)};
  const auto keep = [&](Descriptor part) -> const Descriptor& {
    return made.parts.emplace_back(std::move(part));
  };
  const Descriptor& conv = keep(window(s));
  const Descriptor& input = keep(tensor(kInput, stored, w.batch, w.in));
  const Descriptor& kernel =
      keep(tensor(kKernel, stored, w.out.c, {w.kernel_h, w.kernel_w, w.in.c / s.groups}));
  const Descriptor& output = keep(tensor(kOutput, stored, w.batch, w.out));

  const auto per_channel = [&](std::int64_t number) -> const Descriptor& {
    return keep(tensor(number, CUDNN_DATA_FLOAT, 1, {1, 1, w.out.c}));
  };

  std::vector<Descriptor> operations;
  if (pass == Pass::Forward && s.bias) {
    const Descriptor& sums = keep(tensor(kUnrounded, CUDNN_DATA_FLOAT, w.batch, w.out, true));
    operations.push_back(convolution(pass, conv, input, kernel, sums));
    operations.push_back(addition(keep(addition_rule()), sums, per_channel(kBias), output));
  } else {
    operations.push_back(convolution(pass, conv, input, kernel, output));
  }
  if (of.sums) operations.push_back(sums_of(output, per_channel(kSums), per_channel(kSquares)));
  made.graph.set_all(CUDNN_ATTR_OPERATIONGRAPH_OPS, std::span<const Descriptor>(operations))
      .finish();
  for (Descriptor& operation : operations) keep(std::move(operation));
  return made;
}

}  // namespace millrace::ops::cudnn
