// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/onnx_case.hpp"

namespace millrace::ops {
namespace {

struct Group {
  const char* reason;
  std::vector<const char*> tests;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"an optimizer that millrace does not have",
       {"test_adagrad", "test_adagrad_multiple", "test_adam", "test_adam_multiple"}},
      {"no model has a dilated pool",
       {"test_averagepool_2d_dilations", "test_maxpool_2d_dilations"}},
      {"three-dimensional windows: our images have two dimensions",
       {"test_averagepool_3d_default",
        "test_averagepool_3d_dilations_large_count_include_pad_is_0_ceil_mode_is_False",
        "test_averagepool_3d_dilations_large_count_include_pad_is_0_ceil_mode_is_True",
        "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_False",
        "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
        "test_averagepool_3d_dilations_small", "test_maxpool_3d_default",
        "test_maxpool_3d_dilations", "test_maxpool_3d_dilations_use_ref_impl",
        "test_maxpool_3d_dilations_use_ref_impl_large"}},
      {"no model has a transposed convolution",
       {"test_convtranspose", "test_convtranspose_1d", "test_convtranspose_3d",
        "test_convtranspose_autopad_same", "test_convtranspose_dilations",
        "test_convtranspose_group_2", "test_convtranspose_group_2_image_3",
        "test_convtranspose_kernel_shape", "test_convtranspose_output_shape",
        "test_convtranspose_pad", "test_convtranspose_pads", "test_operator_convtranspose"}},
      {"dropout in evaluation is the identity: no kernel runs",
       {"test_dropout_default", "test_dropout_default_old", "test_dropout_default_ratio",
        "test_dropout_random_old"}},
      {"no model has this activation",
       {"test_leakyrelu", "test_leakyrelu_default", "test_leakyrelu_example",
        "test_prelu_broadcast", "test_prelu_example", "test_thresholdedrelu",
        "test_thresholdedrelu_default", "test_thresholdedrelu_example", "test_operator_clip",
        "test_operator_selu"}},
      {"kernels store floating-point numbers, not bytes", {"test_maxpool_2d_uint8"}},
      {"treats any scores as log-probabilities; our loss includes the softmax",
       {"test_nllloss_NC", "test_nllloss_NCd1", "test_nllloss_NCd1_ii",
        "test_nllloss_NCd1_mean_weight_negative_ii", "test_nllloss_NCd1_weight",
        "test_nllloss_NCd1_weight_ii", "test_nllloss_NCd1d2",
        "test_nllloss_NCd1d2_no_weight_reduction_mean_ii", "test_nllloss_NCd1d2_reduction_mean",
        "test_nllloss_NCd1d2_reduction_sum", "test_nllloss_NCd1d2_with_weight",
        "test_nllloss_NCd1d2_with_weight_reduction_mean",
        "test_nllloss_NCd1d2_with_weight_reduction_sum",
        "test_nllloss_NCd1d2_with_weight_reduction_sum_ii",
        "test_nllloss_NCd1d2d3_none_no_weight_negative_ii",
        "test_nllloss_NCd1d2d3_sum_weight_high_ii", "test_nllloss_NCd1d2d3d4d5_mean_weight",
        "test_nllloss_NCd1d2d3d4d5_none_no_weight"}},
      {"images are resized when they are read, not by a kernel",
       {"test_resize_downsample_scales_cubic",
        "test_resize_downsample_scales_cubic_A_n0p5_exclude_outside",
        "test_resize_downsample_scales_cubic_align_corners",
        "test_resize_downsample_scales_cubic_antialias",
        "test_resize_downsample_scales_linear",
        "test_resize_downsample_scales_linear_align_corners",
        "test_resize_downsample_scales_linear_antialias",
        "test_resize_downsample_scales_linear_half_pixel_symmetric",
        "test_resize_downsample_scales_nearest",
        "test_resize_downsample_sizes_cubic",
        "test_resize_downsample_sizes_cubic_antialias",
        "test_resize_downsample_sizes_linear_antialias",
        "test_resize_downsample_sizes_linear_pytorch_half_pixel",
        "test_resize_downsample_sizes_nearest",
        "test_resize_downsample_sizes_nearest_not_larger",
        "test_resize_downsample_sizes_nearest_not_smaller",
        "test_resize_tf_crop_and_resize",
        "test_resize_tf_crop_and_resize_axes_2_3",
        "test_resize_tf_crop_and_resize_axes_3_2",
        "test_resize_tf_crop_and_resize_extrapolation_value",
        "test_resize_upsample_scales_cubic",
        "test_resize_upsample_scales_cubic_A_n0p5_exclude_outside",
        "test_resize_upsample_scales_cubic_align_corners",
        "test_resize_upsample_scales_cubic_asymmetric",
        "test_resize_upsample_scales_linear",
        "test_resize_upsample_scales_linear_align_corners",
        "test_resize_upsample_scales_linear_half_pixel_symmetric",
        "test_resize_upsample_scales_nearest",
        "test_resize_upsample_scales_nearest_axes_2_3",
        "test_resize_upsample_scales_nearest_axes_3_2",
        "test_resize_upsample_sizes_cubic",
        "test_resize_upsample_sizes_nearest",
        "test_resize_upsample_sizes_nearest_axes_2_3",
        "test_resize_upsample_sizes_nearest_axes_3_2",
        "test_resize_upsample_sizes_nearest_ceil_half_pixel",
        "test_resize_upsample_sizes_nearest_floor_align_corners",
        "test_resize_upsample_sizes_nearest_not_larger",
        "test_resize_upsample_sizes_nearest_not_smaller",
        "test_resize_upsample_sizes_nearest_round_prefer_ceil_asymmetric"}},
      {"our loss has no class weights",
       {"test_sce_NCd1_mean_weight_negative_ii", "test_sce_NCd1_mean_weight_negative_ii_log_prob",
        "test_sce_NCd1d2d3_sum_weight_high_ii", "test_sce_NCd1d2d3_sum_weight_high_ii_log_prob",
        "test_sce_NCd1d2d3d4d5_mean_weight", "test_sce_NCd1d2d3d4d5_mean_weight_log_prob",
        "test_sce_mean_weight", "test_sce_mean_weight_ii", "test_sce_mean_weight_ii_3d",
        "test_sce_mean_weight_ii_3d_log_prob", "test_sce_mean_weight_ii_4d",
        "test_sce_mean_weight_ii_4d_log_prob", "test_sce_mean_weight_ii_log_prob",
        "test_sce_mean_weight_log_prob", "test_sce_none_weights",
        "test_sce_none_weights_log_prob"}},
      {"arithmetic that none of our layers uses",
       {"test_operator_basic", "test_operator_exp", "test_operator_max", "test_operator_min",
        "test_operator_params", "test_operator_pow", "test_operator_reduced_mean",
        "test_operator_reduced_mean_keepdim", "test_operator_reduced_sum",
        "test_operator_reduced_sum_keepdim", "test_operator_sqrt",
        "test_operator_symbolic_override_nested"}},
      {"moves data and computes nothing",
       {"test_operator_chunk", "test_operator_concat2", "test_operator_flatten",
        "test_operator_index", "test_operator_pad", "test_operator_permute2",
        "test_operator_repeat", "test_operator_repeat_dim_overflow", "test_operator_view"}},
      {"integers: kernels store floating-point numbers", {"test_operator_non_float_params"}},
      {"float64 whose values are beyond the range of float32",
       {"test_operator_add_broadcast", "test_operator_add_size1_broadcast",
        "test_operator_add_size1_right_broadcast", "test_operator_add_size1_singleton_broadcast",
        "test_operator_addconstant"}},
  };
  return all;
}

}  // namespace

const std::map<std::string, std::string>& onnx_not_applicable() {
  static const std::map<std::string, std::string> reasons = [] {
    std::map<std::string, std::string> by_name;
    for (const Group& group : groups()) {
      for (const char* test : group.tests) by_name[test] = group.reason;
    }
    return by_name;
  }();
  return reasons;
}

}  // namespace millrace::ops
