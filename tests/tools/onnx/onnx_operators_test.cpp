// SPDX-License-Identifier: Apache-2.0
//
// The operator tests of ONNX in the shared data, as whole networks: the operator, and a matrix of
// known numbers behind it. What comes out must be the matrix times the recorded output. The tests
// are a folder with index.json and one safetensors file per test.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/permute.hpp"
#include "device/compat.hpp"
#include "pipeline/stage.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/support/device_floats.hpp"
#include "tests/support/onnx_bytes.hpp"
#include "tests/support/stage_calls.hpp"
#include "tests/support/test.hpp"
#include "tools/onnx/onnx_file.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace {
namespace {

using test::Extents;
using test::OnnxBytes;

constexpr std::int64_t kLogits = 10;

const std::set<std::string> kOfImages = {
    "Conv",          "AveragePool", "MaxPool", "BatchNormalization", "GlobalAveragePool",
    "GlobalMaxPool", "Relu"};

struct OnnxTensor {
  Extents dims;
  std::vector<float> values;  ///< row-major, NCHW for images
};
using OnnxTensors = std::map<std::string, OnnxTensor>;

/// Inputs and parameters, by the names that nodes use; or the expected outputs.
enum class OnnxSide { Inputs, Outputs };

OnnxTensors read_tensors(const fs::path& test, OnnxSide side) {
  const io::TensorFile file = io::read_safetensors(test.string() + ".safetensors");
  OnnxTensors tensors;
  for (const auto& [key, tensor] : file.tensors()) {
    const std::size_t dot = key.find('.');
    const bool output = key.substr(0, dot) == "output";
    if (output == (side == OnnxSide::Outputs))
      tensors[key.substr(dot + 1)] = {tensor.shape, tensor.to_floats()};
  }
  return tensors;
}

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
std::string network_of(const nlohmann::json& recorded, const OnnxTensors& inputs,
                       const OnnxTensor& output) {
  const auto names = recorded.at("inputs").get<std::vector<std::string>>();
  OnnxBytes file(inputs.at(names.front()).dims);
  io::onnx::NodeProto& node =
      file.node(recorded.at("op").get<std::string>().c_str(), "op", {"x"}, "made");
  for (const std::string& name : std::span(names).subspan(1)) {
    node.add_input(name);
    if (name.empty()) continue;
    io::onnx::TensorProto& tensor = file.tensor(name, inputs.at(name).dims);
    for (const float value : inputs.at(name).values) tensor.add_float_data(value);
  }
  for (const auto& [name, value] : recorded.at("attrs").items()) add_attribute(node, name, value);
  file.plain("Flatten", "flat", {"made"});
  const std::int64_t features = count_of(output.dims) / output.dims.front();
  io::onnx::NodeProto& matrix =
      file.node("Gemm", "matrix", {"flat_out", file.weight("m", {kLogits, features}, 1.0)}, "y");
  OnnxBytes::set(matrix, "transB", std::int64_t{1});
  return file.bytes();
}

std::vector<float> logits_of(const io::NetworkFile& file, const OnnxTensor& x) {
  const models::Graph& graph = file.graph;
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
  constexpr std::array<std::size_t, 4> kNhwc = {0, 2, 3, 1};
  const std::vector<float> images = permuted(x.values, x.dims, kNhwc);
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(batch), 0);
  pipeline::BoundProgram& program = stage.evaluation();
  const device::ExecutionSpace space;
  program.begin_step(space);
  pipeline::load(program, {}, std::as_bytes(std::span(images)), labels);
  pipeline::run_phase(program, space, pipeline::Phase::Forward, {});
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
      const double term = static_cast<double>(output.values[image * features + k]) *
                          static_cast<double>(static_cast<float>(m(i % kLogits * features + k)));
      expected += term;
      size += std::abs(term);
    }
    EXPECT_NEAR(static_cast<double>(logits[i]), expected, 1e-6 * size) << name << " logit " << i;
  }
}

/// Compares a test in this folder with what was recorded; why it is skipped, or "".
std::string check(const nlohmann::json& entry, const fs::path& folder) {
  const auto name = entry.at("test").get<std::string>();
  const nlohmann::json& node = entry.at("nodes").front();
  if (entry.at("nodes").size() != 1 || !kOfImages.contains(node.at("op")))
    return "other operators, or several";
  const OnnxTensors inputs = read_tensors(folder / name, OnnxSide::Inputs);
  const OnnxTensor& x = inputs.at(node.at("inputs").front());
  if (x.dims.size() != 4 || entry.at("outputs").size() != 1)
    return "not of images, or with other outputs";
  const OnnxTensor output =
      read_tensors(folder / name, OnnxSide::Outputs).at(entry.at("outputs").front());
  try {
    const std::string bytes = network_of(node, inputs, output);
    expect_logits(name, logits_of(io::parse_onnx(bytes, name, "net"), x), output);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Config) << error.what();
    return error.what();
  }
}

TEST(OnnxOperatorTest, NetworksOfOneOperatorGiveWhatWasRecorded) {
  const auto folder = io::real_data("onnx_tests");
  if (!folder) GTEST_SKIP() << "needs the operator tests of ONNX in the shared data";
  int passed = 0;
  std::map<std::string, int> skipped;
  for (const char* part : {"node", "pytorch-operator"}) {
    std::ifstream stream(*folder / part / "index.json");
    for (const nlohmann::json& entry : nlohmann::json::parse(stream)) {
      const std::string why = check(entry, *folder / part);
      why.empty() ? ++passed : ++skipped[why];
    }
  }
  for (const auto& [why, count] : skipped) std::printf("skipped %3d: %s\n", count, why.c_str());
  std::printf("passed %d\n", passed);
  EXPECT_GE(passed, 20);
}

std::string scalar(OnnxBytes& o, const std::string& name, float value) {
  o.tensor(name, {}).add_float_data(value);
  return name;
}

/// Sums and the like with constants, and activations in parts, as other programs write them.
OnnxBytes network_in_parts() {
  OnnxBytes o({-1, 3, 8, 8});
  const std::string three = scalar(o, "three", 3.0f);
  const std::string six = scalar(o, "six", 6.0f);
  std::string a = o.conv("a", "x", {4, 3, 3, 3}, 1, 1);
  a = o.plain("Sub", "a.sub", {a, o.weight("a.mean", {4, 1, 1}, 0.5)});
  a = o.plain("Div", "a.div", {a, o.weight("a.deviation", {1, 4, 1, 1}, 0.25, 0.5)});
  const std::string a6 = o.clip("a.clip", o.plain("Add", "a.add", {a, three}));
  const std::string h = o.plain("Div", "a.sixth", {o.plain("Mul", "a.mul", {a, a6}), six});
  std::string b = o.conv("b", h, {4, 4, 3, 3}, 1, 1);
  b = o.plain("Sub", "b.sub", {scalar(o, "half", 0.5f), b});
  const std::string b6 = o.clip("b.clip", o.plain("Add", "b.add", {three, b}));
  const std::string gate = o.plain("Mul", "b.sixth", {scalar(o, "sixth", 1.0f / 6.0f), b6});
  b = o.plain("Mul", "b.mul", {gate, b});
  const std::string c = o.conv("c", h, {4, 4, 1, 1}, 1, 0);
  std::string y = o.plain("Sum", "sum", {b, c, o.weight("shift", {4, 1, 1}, 1.0)});
  y = o.plain("Div", "d.div", {o.norm("d", y, 4), scalar(o, "two", 2.0f)});
  y = o.plain("Div", "d.sixth", {o.clip("d.clip", o.plain("Add", "d.add", {y, three})), six});
  const std::string fc = o.weight("fc.weight", {10, 256}, 0.2);
  OnnxBytes::set(o.node("Gemm", "fc", {o.plain("Flatten", "flat", {y}), fc}, "y"), "transB",
                 std::int64_t{1});
  return o;
}

// ONNX Runtime 1.32 gave these logits of the image 2 x NamedUniform("images@0"), without its own
// optimizations.
TEST(OnnxOperatorTest, ANetworkInPartsGivesTheLogitsOfOnnxRuntime) {
  constexpr std::array<double, kLogits> kRecorded = {
      1.29709148,   0.152371332, -1.2401731,   0.0848135427, -1.25379431,
      -0.837166846, 0.674236655, -0.349962473, 0.573421896,  -1.96308172};
  OnnxTensor x{.dims = {1, 3, 8, 8}, .values = std::vector<float>(192)};
  const test::NamedUniform images("images@0");
  for (std::size_t i = 0; i < x.values.size(); ++i)
    x.values[i] = static_cast<float>(2.0 * images(i));
  const io::NetworkFile file = io::parse_onnx(network_in_parts().bytes(), "net.onnx", "net");
  EXPECT_EQ(file.graph.ops.size(), 10U)
      << "three convolutions, a normalization, three activations, a sum, a dense op and the loss";
  const std::vector<float> logits = logits_of(file, x);
  for (std::size_t i = 0; i < logits.size(); ++i)
    EXPECT_NEAR(static_cast<double>(logits[i]), kRecorded[i], 1e-5) << "logit " << i;
}

}  // namespace
}  // namespace millrace
