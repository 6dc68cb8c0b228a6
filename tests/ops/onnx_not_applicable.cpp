// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/onnx_case.hpp"

namespace millrace::ops {
namespace {

/// Tests whose names, with a _ after them, begin with one of these texts. OnnxCensus counts the
/// remaining ones.
struct Group {
  const char* reason;
  std::vector<std::string_view> beginnings;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"an optimizer that millrace does not have", {"test_adam", "test_adagrad"}},
      {"no model has a dilated pool",
       {"test_maxpool_2d_dilations", "test_averagepool_2d_dilations"}},
      {"three-dimensional windows: our images have two dimensions",
       {"test_averagepool_3d", "test_maxpool_3d"}},
      {"no model has a transposed convolution",
       {"test_convtranspose", "test_operator_convtranspose"}},
      {"dropout in evaluation is the identity: no kernel runs", {"test_dropout"}},
      {"no model has this activation",
       {"test_thresholdedrelu", "test_prelu", "test_operator_selu"}},
      {"kernels store floating-point numbers, not bytes", {"test_maxpool_2d_uint8"}},
      {"treats any scores as log-probabilities; our loss includes the softmax", {"test_nllloss"}},
      {"images are resized when they are read, not by a kernel", {"test_resize"}},
      {"our loss has no class weights",
       {"test_sce_mean_weight", "test_sce_NCd1_mean", "test_sce_NCd1d2d3_sum",
        "test_sce_none_weights", "test_sce_NCd1d2d3d4d5_mean"}},
      {"arithmetic that none of our layers uses",
       {"test_operator_reduced", "test_operator_exp", "test_operator_min", "test_operator_pow",
        "test_operator_max_", "test_operator_sqrt", "test_operator_basic", "test_operator_params",
        "test_operator_symbolic_override_nested"}},
      {"moves data and computes nothing",
       {"test_operator_repeat", "test_operator_pad", "test_operator_view", "test_operator_chunk",
        "test_operator_index", "test_operator_concat2", "test_operator_flatten",
        "test_operator_permute2"}},
      {"integers: kernels store floating-point numbers", {"test_operator_non"}},
      {"float64 whose values are beyond the range of float32",
       {"test_operator_add_size1", "test_operator_addconstant", "test_operator_add_broadcast"}},
  };
  return all;
}

}  // namespace

const char* onnx_not_applicable(std::string_view test) {
  for (const Group& group : groups())
    for (const std::string_view beginning : group.beginnings)
      if ((std::string(test) + "_").starts_with(beginning)) return group.reason;
  return nullptr;
}

}  // namespace millrace::ops
