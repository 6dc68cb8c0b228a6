// SPDX-License-Identifier: Apache-2.0
//
// Every operator test of ONNX in the shared data either passes with our kernels on both backends or
// is listed with a reason in onnx_not_applicable.cpp.
#include "tests/ops/backends.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/ops/onnx_case.hpp"

namespace millrace::ops {

void PrintTo(const OnnxTest& test, std::ostream* out) { *out << test.name; }

namespace {

constexpr const char* kNoData =
    "no operator tests: set MILLRACE_TEST_DATA to a folder with onnx_tests";

class Onnx : public testing::TestWithParam<OnnxTest> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Onnx);

/// Tolerance of float32 against float32: a few units, more if many terms are added.
testing::AssertionResult agrees(const OnnxTensor& actual, const OnnxTensor& expected) {
  if (actual.dims != expected.dims) return testing::AssertionFailure() << "the dimensions differ";
  return close(actual.values, expected.values,
               [&](std::size_t i) { return 1e-6 + 4e-6 * std::abs(expected.values[i]); });
}

TEST_P(Onnx, AgreesOrDoesNotApply) {
  const OnnxTest& test = GetParam();
  if (const char* const reason = onnx_not_applicable(test.name)) GTEST_SKIP() << reason;
  const OnnxTensors expected = read_tensors(test, OnnxSide::Outputs);
  for (const BackendKind kind : backend_kinds()) {
    const std::unique_ptr<Backend> backend = make_backend(kind);
    OnnxTensors tensors = read_tensors(test, OnnxSide::Inputs);
    evaluate(test, *backend, tensors);
    for (const std::string& output : test.outputs) {
      ASSERT_TRUE(tensors.contains(output)) << output;
      EXPECT_TRUE(agrees(tensors.at(output), expected.at(output)))
          << "output " << output << ", backend " << backend->name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tests, Onnx, testing::ValuesIn(onnx_tests()), [](const auto& param) {
  std::string name;
  bool capital = true;
  for (const char c : param.param.name) {
    if (c == '_') {
      capital = true;
    } else {
      name += capital ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
      capital = false;
    }
  }
  return name;
});

/// No test is skipped by accident: the data is complete, and the tests that run are the expected
/// ones.
TEST(OnnxCensus, EveryTestRunsOrHasAReason) {
  const std::vector<OnnxTest> tests = onnx_tests();
  if (tests.empty()) GTEST_SKIP() << kNoData;
  std::map<std::string, int> ran;
  std::size_t left_out = 0;
  for (const OnnxTest& test : tests) {
    if (onnx_not_applicable(test.name) == nullptr)
      ++ran[test.nodes.back().op];
    else
      ++left_out;
  }
  EXPECT_EQ(left_out, 139u);
  const std::map<std::string, int> expected = {
      {"AveragePool", 12},
      {"BatchNormalization", 4},
      {"Clip", 1},
      {"Conv", 7},
      {"Gemm", 13},
      {"GlobalAveragePool", 2},
      {"GlobalMaxPool", 2},
      {"InstanceNormalization", 1},
      {"LeakyRelu", 3},
      {"LogSoftmax", 7},
      {"MaxPool", 14},
      {"Momentum", 3},
      {"Relu", 1},
      {"Softmax", 7},
      {"SoftmaxCrossEntropyLoss", 18},
  };
  EXPECT_EQ(ran, expected);
}

}  // namespace
}  // namespace millrace::ops
