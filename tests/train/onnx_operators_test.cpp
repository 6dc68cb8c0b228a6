// SPDX-License-Identifier: Apache-2.0
//
// The operator tests of ONNX in the shared data, as whole networks: the operator, and a matrix of
// known numbers behind it. What comes out must be the matrix times the recorded output.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/permute.hpp"
#include "device/compat.hpp"
#include "io/onnx/onnx_file.hpp"
#include "pipeline/stage.hpp"
#include "tests/ops/onnx_case.hpp"
#include "tests/support/device_floats.hpp"
#include "tests/support/onnx_bytes.hpp"

namespace millrace {
namespace {

using ops::OnnxTensor;
using ops::OnnxTensors;
using ops::OnnxTest;
using test::Extents;
using test::OnnxBytes;

constexpr std::int64_t kLogits = 10;

const std::set<std::string> kOfImages = {
    "Conv",          "AveragePool", "MaxPool", "BatchNormalization", "GlobalAveragePool",
    "GlobalMaxPool", "Relu"};

std::int64_t count_of(const Extents& extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

void add_attribute(io::onnx::NodeProto& node, const std::string& name,
                   const nlohmann::json& value) {
  if (value.is_number_integer()) {
    OnnxBytes::set(node, name.c_str(), value.get<std::int64_t>());
  } else if (value.is_number()) {
    OnnxBytes::set(node, name.c_str(), value.get<float>());
  } else if (value.is_array()) {
    OnnxBytes::set(node, name.c_str(), value.get<Extents>());
  } else {
    OnnxBytes::attribute(node, name.c_str(), io::onnx::AttributeProto::STRING)
        .set_s(value.get<std::string>());
  }
}

/// The operator, its output flattened, and the matrix.
std::string network_of(const OnnxTest& test, const OnnxTensors& inputs, const OnnxTensor& output) {
  const ops::OnnxNode& recorded = test.nodes.front();
  OnnxBytes file(inputs.at(recorded.inputs.front()).dims);
  io::onnx::NodeProto& node = file.node(recorded.op.c_str(), "op", {"x"}, "made");
  for (std::size_t i = 1; i < recorded.inputs.size(); ++i) {
    const std::string& name = recorded.inputs[i];
    node.add_input(name);
    if (name.empty()) continue;
    io::onnx::TensorProto& tensor = file.tensor(name, inputs.at(name).dims);
    for (const double value : inputs.at(name).values)
      tensor.add_float_data(static_cast<float>(value));
  }
  for (const auto& [name, value] : recorded.attributes.items()) add_attribute(node, name, value);
  file.plain("Flatten", "flat", {"made"});
  const std::int64_t features = count_of(output.dims) / output.dims.front();
  io::onnx::NodeProto& matrix =
      file.node("Gemm", "matrix", {"flat_out", file.weight("m", {kLogits, features}, 1.0)}, "y");
  OnnxBytes::set(matrix, "transB", std::int64_t{1});
  return file.bytes();
}

std::vector<float> logits_of(const io::OnnxFile& file, const OnnxTensor& x) {
  const models::Graph& graph = file.graph();
  const std::int64_t batch = x.dims.front();
  const auto backend = ops::make_default_backend();
  pipeline::StageOptions options;
  options.batch = 0;
  options.evaluation_batch = batch;
  pipeline::Stage stage(graph, pipeline::whole(graph), options, *backend);
  device::Arena arena(stage.bytes());
  stage.bind(arena.at(0));
  for (const models::ParameterId id : stage.parameters().ids()) {
    test::write_floats(stage.parameters().value(id), file.values(id));
  }
  const std::vector<float> nchw(x.values.begin(), x.values.end());
  constexpr std::array<std::size_t, 4> kNhwc = {0, 2, 3, 1};
  const std::vector<float> images = permuted(nchw, x.dims, kNhwc);
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(batch), 0);
  pipeline::BoundProgram& program = stage.evaluation();
  const device::ExecutionSpace space;
  program.begin_step(space, 1.0f);
  pipeline::Stage::load(program, {}, std::as_bytes(std::span(images)), labels);
  program.run(space, pipeline::Phase::Forward, {});
  const pipeline::BufferId out =
      program.program().phase(pipeline::Phase::Forward).back().at(pipeline::Role::X);
  return test::read_floats(program.address(out, {}), batch * kLogits);
}

void expect_logits(const std::string& name, const std::vector<float>& logits,
                   const OnnxTensor& output) {
  const auto features = static_cast<std::size_t>(count_of(output.dims) / output.dims.front());
  const test::NamedUniform m("m@0");
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::size_t image = i / kLogits;
    double expected = 0.0;
    double size = 1.0;
    for (std::size_t k = 0; k < features; ++k) {
      const double term = output.values[image * features + k] *
                          static_cast<double>(static_cast<float>(m(i % kLogits * features + k)));
      expected += term;
      size += std::abs(term);
    }
    EXPECT_NEAR(static_cast<double>(logits[i]), expected, 1e-6 * size) << name << " logit " << i;
  }
}

TEST(OnnxOperatorTest, NetworksOfOneOperatorGiveWhatWasRecorded) {
  if (!ops::onnx_folder()) GTEST_SKIP() << "needs the operator tests of ONNX in the shared data";
  int passed = 0;
  std::map<std::string, int> skipped;
  for (const OnnxTest& test : ops::onnx_tests()) {
    const ops::OnnxNode& node = test.nodes.front();
    if (test.nodes.size() != 1 || !kOfImages.contains(node.op)) {
      ++skipped["other operators, or several"];
      continue;
    }
    const OnnxTensors inputs = read_tensors(test, ops::OnnxSide::Inputs);
    const OnnxTensor& x = inputs.at(node.inputs.front());
    if (x.dims.size() != 4 || test.outputs.size() != 1) {
      ++skipped["not of images, or with other outputs"];
      continue;
    }
    const OnnxTensor output = read_tensors(test, ops::OnnxSide::Outputs).at(test.outputs.front());
    try {
      const io::OnnxFile file(network_of(test, inputs, output), test.name, "net");
      expect_logits(test.name, logits_of(file, x), output);
      ++passed;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Config) << error.what();
      ++skipped[error.what()];
    }
  }
  for (const auto& [why, count] : skipped) std::printf("skipped %3d: %s\n", count, why.c_str());
  std::printf("passed %d\n", passed);
  EXPECT_GE(passed, 20);
}

}  // namespace
}  // namespace millrace
