// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/onnx_case.hpp"

#include <cstdlib>
#include <fstream>

#include "io/safetensors.hpp"

namespace millrace::ops {
namespace {

namespace fs = std::filesystem;

fs::path data_folder() {
  if (const char* folder = std::getenv("MILLRACE_TEST_DATA")) return folder;
  return fs::path(MILLRACE_SOURCE_DIR) / ".." / "shared" / "data";
}

OnnxTest parse_test(const nlohmann::json& entry, const fs::path& folder) {
  OnnxTest test;
  test.name = entry.at("test").get<std::string>();
  test.file = folder / (test.name + ".safetensors");
  test.outputs = entry.at("outputs").get<std::vector<std::string>>();
  for (const nlohmann::json& node : entry.at("nodes")) {
    test.nodes.push_back({node.at("op").get<std::string>(),
                          node.at("inputs").get<std::vector<std::string>>(),
                          node.at("outputs").get<std::vector<std::string>>(), node.at("attrs")});
  }
  return test;
}

}  // namespace

std::optional<fs::path> onnx_folder() {
  const fs::path folder = data_folder() / "onnx_tests";
  if (!fs::is_directory(folder)) return std::nullopt;
  return folder;
}

std::vector<OnnxTest> onnx_tests() {
  std::vector<OnnxTest> tests;
  const std::optional<fs::path> folder = onnx_folder();
  if (!folder) return tests;
  for (const char* part : {"node", "pytorch-operator"}) {
    std::ifstream stream(*folder / part / "index.json");
    for (const nlohmann::json& entry : nlohmann::json::parse(stream)) {
      tests.push_back(parse_test(entry, *folder / part));
    }
  }
  return tests;
}

OnnxTensors read_tensors(const OnnxTest& test, OnnxSide side) {
  const io::SafeTensorsFile file(test.file);
  OnnxTensors tensors;
  for (const auto& [key, tensor] : file.tensors()) {
    const std::size_t dot = key.find('.');
    const bool output = key.substr(0, dot) == "output";
    if (output != (side == OnnxSide::Outputs)) continue;
    const std::vector<float> floats = tensor.to_floats();
    tensors[key.substr(dot + 1)] = {tensor.shape, {floats.begin(), floats.end()}};
  }
  return tensors;
}

}  // namespace millrace::ops
