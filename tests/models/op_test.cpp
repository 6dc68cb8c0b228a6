// SPDX-License-Identifier: Apache-2.0
#include "models/op.hpp"

#include "tests/support/test.hpp"

namespace millrace::models {
namespace {

constexpr std::int64_t kClasses = 10;

Inference infer_one(const OpKind& kind, const Shape& x) {
  return infer(kind, std::vector<Shape>{x}, kClasses);
}

std::string misfit_of(const OpKind& kind, const std::vector<Shape>& inputs) {
  return infer(kind, inputs, kClasses).misfit;
}

using Parameters =
    std::vector<std::tuple<ParameterRole, std::vector<std::int64_t>, Initialiser::Kind>>;

/// Roles, shapes and starts.
Parameters parameters_of(const OpKind& kind, const Shape& x) {
  Parameters parameters;
  for (const ParameterSpec& p : infer_one(kind, x).parameters)
    parameters.emplace_back(p.role, p.shape, p.init.kind);
  return parameters;
}

void expect_shape(const OpKind& kind, const std::vector<Shape>& inputs, const Shape& output) {
  const std::string_view name = std::visit([](const auto& op) { return op.kName; }, kind);
  const Inference inference = infer(kind, inputs, kClasses);
  EXPECT_EQ(inference.misfit, "") << name;
  EXPECT_EQ(inference.output, output)
      << fmt::format("{}: {} for {}", name, inference.output, output);
}

// Sizes of the built-in networks; see "Notes on padding" of tf.nn.
TEST(Padding, SamePutsTheOddPixelAfter) {
  EXPECT_EQ(padding_same({32, 32, 3}, {3, 3}, {1, 1}), same(1));
  EXPECT_EQ(padding_same({112, 112, 64}, {3, 3}, {2, 2}), (Padding{0, 1, 0, 1}));
  EXPECT_EQ(padding_same({224, 224, 3}, {7, 7}, {2, 2}), (Padding{2, 3, 2, 3}));
  EXPECT_EQ(padding_same({56, 56, 8}, {5, 5}, {2, 2}), (Padding{1, 2, 1, 2}));
  EXPECT_EQ(padding_same({7, 8, 8}, {3, 3}, {2, 2}), (Padding{1, 1, 0, 1}));
  EXPECT_EQ(padding_same({8, 8, 8}, {1, 1}, {2, 2}), same(0));
  EXPECT_EQ(padding_same({8, 8, 8}, {2, 4}, {1, 1}), (Padding{0, 1, 1, 2}));
  EXPECT_EQ(padding_same({8, 8, 8}, {3, 3}, {1, 1}, {2, 3}), (Padding{2, 2, 3, 3}));
}

TEST(Padding, SameGivesInputOverStrideRoundedUp) {
  for (std::int64_t size = 1; size <= 20; ++size) {
    for (std::int64_t kernel = 1; kernel <= 7; ++kernel) {
      for (std::int64_t stride = 1; stride <= 4; ++stride) {
        const Shape x = {size, size + 1, 2};
        const Extent k = {kernel, kernel};
        const Extent s = {stride, stride};
        const Conv conv = {
            .out_channels = 4, .kernel = k, .stride = s, .pad = padding_same(x, k, s)};
        expect_shape(conv, {x}, {(size - 1) / stride + 1, size / stride + 1, 4});
      }
    }
  }
}

TEST(Padding, ExplicitDependsOnTheKernelAlone) {
  EXPECT_EQ(padding_explicit({1, 1}), same(0));
  EXPECT_EQ(padding_explicit({3, 3}), same(1));
  EXPECT_EQ(padding_explicit({7, 7}), same(3));
  EXPECT_EQ(padding_explicit({2, 4}), (Padding{0, 1, 1, 2}));
}

TEST(Infer, ConvolutionOfEverySort) {
  expect_shape(Conv{.out_channels = 16, .kernel = {3, 3}, .pad = same(1)}, {{32, 32, 3}},
               {32, 32, 16});
  expect_shape(Conv{.out_channels = 64, .kernel = {7, 7}, .stride = {2, 2}, .pad = same(3)},
               {{224, 224, 3}}, {112, 112, 64});
  expect_shape(Conv{.out_channels = 8, .kernel = {1, 3}, .stride = {2, 1}}, {{7, 9, 4}}, {4, 7, 8});
  expect_shape(Conv{.out_channels = 8, .kernel = {3, 3}, .pad = {0, 1, 0, 1}, .groups = 4},
               {{5, 5, 4}}, {4, 4, 8});
  expect_shape(Conv{.out_channels = 6, .kernel = {5, 5}, .pad = same(2), .groups = 6}, {{7, 7, 6}},
               {7, 7, 6});
  expect_shape(Conv{.out_channels = 2, .kernel = {3, 3}, .dilation = {2, 3}}, {{9, 9, 1}},
               {5, 3, 2});
}

TEST(Infer, ConvolutionThatDoesNotFit) {
  EXPECT_EQ(misfit_of(Conv{.out_channels = 0}, {{4, 4, 3}}),
            "0 output channels; at least 1 is required");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 8, .groups = 4}, {{4, 4, 6}}),
            "4 groups do not divide 6 input and 8 output channels (input 4x4x6)");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 9, .groups = 2}, {{4, 4, 6}}),
            "2 groups do not divide 6 input and 9 output channels (input 4x4x6)");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 9, .groups = 0}, {{4, 4, 6}}),
            "0 groups do not divide 6 input and 9 output channels (input 4x4x6)");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 8, .kernel = {5, 3}, .pad = same(0)}, {{4, 4, 6}}),
            "a window of 5x3 pixels does not fit into input 4x4x6 padded to 4x4");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 8, .kernel = {3, 3}, .pad = same(1), .dilation = {3, 4}},
                      {{6, 6, 6}}),
            "a window of 7x9 pixels does not fit into input 6x6x6 padded to 8x8");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 8, .kernel = {0, 3}}, {{4, 4, 6}}),
            "kernel 0x3 must be at least 1x1");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 8, .stride = {1, 0}}, {{4, 4, 6}}),
            "stride 1x0 must be at least 1x1");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 8, .dilation = {0, 1}}, {{4, 4, 6}}),
            "dilation 0x1 must be at least 1x1");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 8, .pad = {0, -1, 0, 0}}, {{4, 4, 6}}),
            "padding 0 -1 0 0 (top bottom left right) must not be negative");
}

TEST(Infer, Dense) {
  expect_shape(Dense{.units = 10}, {{1, 1, 64}}, {1, 1, 10});
  expect_shape(Dense{.units = 20}, {{2, 3, 64}}, {1, 1, 20});
  EXPECT_EQ(misfit_of(Dense{.units = 0}, {{1, 1, 64}}), "0 units; at least 1 is required");
}

TEST(Infer, Norms) {
  expect_shape(BatchNorm{}, {{5, 6, 7}}, {5, 6, 7});
  expect_shape(GroupNorm{.groups = 4}, {{5, 6, 8}}, {5, 6, 8});
  expect_shape(GroupNorm{.groups = 8}, {{5, 6, 8}}, {5, 6, 8});
  EXPECT_EQ(misfit_of(BatchNorm{.epsilon = 0}, {{5, 6, 7}}), "epsilon 0 must be positive");
  EXPECT_EQ(misfit_of(BatchNorm{.decay = 1.5}, {{5, 6, 7}}), "decay 1.5 must be between 0 and 1");
  EXPECT_EQ(misfit_of(GroupNorm{.groups = 4, .epsilon = -1}, {{5, 6, 8}}),
            "epsilon -1 must be positive");
  EXPECT_EQ(misfit_of(GroupNorm{.groups = 0}, {{5, 6, 8}}), "0 groups; at least 1 is required");
}

TEST(Infer, GroupNormNamesTheNearestCountThatFits) {
  const auto text = [](std::int64_t channels, std::int64_t groups, std::int64_t nearest) {
    EXPECT_EQ(
        misfit_of(GroupNorm{.groups = groups}, {{4, 4, channels}}),
        fmt::format("{} channels do not divide into {} groups; the nearest count that fits is "
                    "{}",
                    channels, groups, nearest));
  };
  text(16, 32, 16);
  text(16, 9, 8);
  text(16, 6, 4);   // 4 and 8 are equally near
  text(24, 7, 6);   // so are 6 and 8
  text(24, 10, 8);  // so are 8 and 12
  text(24, 11, 12);
  text(7, 4, 1);  // so are 1 and 7
  text(1, 1000, 1);
}

TEST(Infer, ElementWiseOps) {
  for (const auto kind : {Activation::Relu, Activation::Swish, Activation::Sigmoid}) {
    expect_shape(Activate{kind}, {{3, 4, 5}}, {3, 4, 5});
  }
  expect_shape(Activate{Activation::Clip, {-1, 1}}, {{3, 4, 5}}, {3, 4, 5});
  EXPECT_EQ(misfit_of(Activate{Activation::Clip, {6, 0}}, {{3, 4, 5}}),
            "bounds 6 and 0 do not ascend");
  EXPECT_EQ(misfit_of(Activate{Activation::LeakyRelu, {-0.5}}, {{3, 4, 5}}),
            "slope -0.5 is negative");
  EXPECT_EQ(misfit_of(Activate{Activation::HardSigmoid, {0, 0.5}}, {{3, 4, 5}}),
            "slope 0 is not positive");
  expect_shape(Add{}, {{3, 4, 5}, {3, 4, 5}}, {3, 4, 5});
  expect_shape(Dropout{.rate = 0.0}, {{3, 4, 5}}, {3, 4, 5});
  expect_shape(DropConnect{.survival = 1.0}, {{3, 4, 5}}, {3, 4, 5});
  EXPECT_EQ(misfit_of(Add{}, {{3, 4, 5}, {3, 4, 6}}), "cannot add shapes 3x4x5 and 3x4x6");
  EXPECT_EQ(misfit_of(Dropout{.rate = 1.0}, {{3, 4, 5}}), "rate 1 must be at least 0 and below 1");
  EXPECT_EQ(misfit_of(Dropout{.rate = -0.5}, {{3, 4, 5}}),
            "rate -0.5 must be at least 0 and below 1");
  EXPECT_EQ(misfit_of(DropConnect{.survival = 0.0}, {{3, 4, 5}}),
            "survival 0 must be above 0 and at most 1");
  EXPECT_EQ(misfit_of(DropConnect{.survival = 1.5}, {{3, 4, 5}}),
            "survival 1.5 must be above 0 and at most 1");
}

TEST(Infer, Concat) {
  expect_shape(Concat{}, {{3, 4, 5}, {3, 4, 6}}, {3, 4, 11});
  expect_shape(Concat{}, {{3, 4, 5}, {3, 4, 6}, {3, 4, 1}}, {3, 4, 12});
  EXPECT_EQ(misfit_of(Concat{}, {{3, 4, 5}, {3, 5, 5}}),
            "cannot concatenate the channels of 3x5x5 to 3x4x5: heights and widths differ");
}

TEST(Infer, ScaleChannels) {
  expect_shape(ScaleChannels{}, {{3, 4, 5}, {1, 1, 5}}, {3, 4, 5});
  EXPECT_EQ(misfit_of(ScaleChannels{}, {{3, 4, 5}, {1, 1, 6}}),
            "the scale of input 3x4x5 must be 1x1x5, not 1x1x6");
  EXPECT_EQ(misfit_of(ScaleChannels{}, {{3, 4, 5}, {3, 4, 5}}),
            "the scale of input 3x4x5 must be 1x1x5, not 3x4x5");
}

TEST(Infer, Pools) {
  const Pool stem = {
      .kind = PoolKind::Max, .kernel = {3, 3}, .stride = {2, 2}, .pad = {0, 1, 0, 1}};
  expect_shape(stem, {{112, 112, 64}}, {56, 56, 64});
  expect_shape(Pool{.kind = PoolKind::Max, .kernel = {3, 3}, .stride = {2, 2}}, {{55, 55, 96}},
               {27, 27, 96});
  expect_shape(Pool{.kind = PoolKind::Average, .kernel = {13, 13}, .stride = {1, 1}},
               {{13, 13, 1000}}, {1, 1, 1000});
  expect_shape(
      Pool{.kind = PoolKind::Average, .kernel = {2, 3}, .stride = {1, 2}, .pad = {1, 0, 2, 1}},
      {{4, 5, 2}}, {4, 3, 2});
  expect_shape(GlobalAveragePool{}, {{7, 9, 512}}, {1, 1, 512});
  EXPECT_EQ(misfit_of(Pool{.kernel = {3, 3}}, {{2, 2, 8}}),
            "a window of 3x3 pixels does not fit into input 2x2x8 padded to 2x2");
  EXPECT_EQ(misfit_of(Pool{.kernel = {2, 2}, .pad = {0, 2, 0, 0}}, {{4, 4, 8}}),
            "padding 0 2 0 0 (top bottom left right) must be less than the window 2x2");
  EXPECT_EQ(misfit_of(Pool{.kernel = {3, 2}, .pad = {0, 0, 2, 0}}, {{4, 4, 8}}),
            "padding 0 0 2 0 (top bottom left right) must be less than the window 3x2");
  EXPECT_EQ(misfit_of(Pool{.stride = {0, 2}}, {{4, 4, 8}}), "stride 0x2 must be at least 1x1");
  EXPECT_EQ(misfit_of(Pool{.kernel = {65536, 32768}}, {{65536, 32768, 1}}),
            "the window 65536x32768 has more than 2147483647 positions");
}

TEST(Infer, ShortcutPad) {
  expect_shape(ShortcutPad{.stride = {2, 2}, .channels_before = 8, .channels_after = 8},
               {{32, 32, 16}}, {16, 16, 32});
  expect_shape(ShortcutPad{.stride = {2, 3}, .channels_after = 5}, {{7, 7, 1}}, {4, 3, 6});
  EXPECT_EQ(misfit_of(ShortcutPad{.stride = {2, 0}}, {{7, 7, 1}}),
            "stride 2x0 must be at least 1x1");
  EXPECT_EQ(misfit_of(ShortcutPad{.channels_before = -1, .channels_after = 2}, {{7, 7, 1}}),
            "cannot add -1 channels before and 2 after input 7x7x1");
}

TEST(Infer, SoftmaxLoss) {
  EXPECT_EQ(infer_one(SoftmaxLoss{}, {1, 1, kClasses}).misfit, "");
  EXPECT_EQ(misfit_of(SoftmaxLoss{}, {{1, 1, 12}}),
            "logits must be 1x1x10, one per class, not 1x1x12");
  EXPECT_EQ(misfit_of(SoftmaxLoss{}, {{2, 1, 10}}),
            "logits must be 1x1x10, one per class, not 2x1x10");
  EXPECT_EQ(infer_one(SoftmaxLoss{.logits = 20}, {1, 1, 20}).misfit, "");
  EXPECT_EQ(misfit_of(SoftmaxLoss{.logits = 20}, {{1, 1, 10}}),
            "logits must be 1x1x20, not 1x1x10");
  EXPECT_EQ(misfit_of(SoftmaxLoss{.logits = 9}, {{1, 1, 9}}), "9 logits are fewer than 10 classes");
}

TEST(Infer, CountsInputs) {
  const Shape x = {4, 4, 4};
  EXPECT_EQ(misfit_of(Conv{.out_channels = 1}, {}), "Conv takes 1 inputs, not 0");
  EXPECT_EQ(misfit_of(Conv{.out_channels = 1}, {x, x}), "Conv takes 1 inputs, not 2");
  EXPECT_EQ(misfit_of(Add{}, {x}), "Add takes 2 inputs, not 1");
  EXPECT_EQ(misfit_of(ScaleChannels{}, {x, x, x}), "ScaleChannels takes 2 inputs, not 3");
  EXPECT_EQ(misfit_of(Concat{}, {x}), "Concat takes at least 2 inputs, not 1");
}

TEST(Infer, Parameters) {
  using Role = ParameterRole;
  using Kind = Initialiser::Kind;
  const Shape x = {9, 9, 6};
  EXPECT_EQ(parameters_of(Conv{.out_channels = 8, .kernel = {3, 5}, .groups = 2, .bias = true}, x),
            (Parameters{{Role::Kernel, {8, 3, 5, 3}, Kind::VarianceScaling},
                        {Role::Bias, {8}, Kind::Zero}}));
  EXPECT_EQ(
      parameters_of(Dense{.units = 10}, {2, 3, 4}),
      (Parameters{{Role::Kernel, {10, 24}, Kind::GlorotUniform}, {Role::Bias, {10}, Kind::Zero}}));
  EXPECT_EQ(parameters_of(Dense{.units = 10, .bias = false}, x).size(), 1u);
  EXPECT_EQ(parameters_of(BatchNorm{.zero_gamma = true}, x),
            (Parameters{{Role::Gamma, {6}, Kind::Zero},
                        {Role::Beta, {6}, Kind::Zero},
                        {Role::MovingMean, {6}, Kind::Zero},
                        {Role::MovingVariance, {6}, Kind::One}}));
  EXPECT_EQ(parameters_of(GroupNorm{.groups = 3}, x),
            (Parameters{{Role::Gamma, {6}, Kind::One}, {Role::Beta, {6}, Kind::Zero}}));
  EXPECT_EQ(parameters_of(Activate{}, x), Parameters());
  EXPECT_EQ(parameters_of(SoftmaxLoss{}, {1, 1, kClasses}), Parameters());
}

TEST(Infer, ProductsOnlyAreMultiplyAccumulates) {
  const Conv conv = {.out_channels = 8, .kernel = {3, 3}, .pad = same(1), .groups = 2};
  EXPECT_EQ(infer_one(conv, {5, 5, 4}).macs, 5 * 5 * 8 * 9 * 2);
  EXPECT_EQ(infer_one(Dense{.units = 10}, {2, 2, 3}).macs, 120);
  EXPECT_EQ(infer_one(BatchNorm{}, {5, 5, 4}).macs, 0);
}

}  // namespace
}  // namespace millrace::models
