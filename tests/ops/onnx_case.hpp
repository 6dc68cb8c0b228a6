// SPDX-License-Identifier: Apache-2.0
//
// The operator tests of ONNX in the shared data: a folder with index.json and one safetensors file
// per test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/backend.hpp"

namespace millrace::ops {

struct OnnxTensor {
  std::vector<std::int64_t> dims;
  std::vector<double> values;  ///< row-major, NCHW for images
};
using OnnxTensors = std::map<std::string, OnnxTensor>;

struct OnnxNode {
  std::string op;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  nlohmann::json attributes;

  template <class T>
  [[nodiscard]] T attribute(const char* name, T otherwise) const {
    return attributes.value(name, std::move(otherwise));
  }
};

struct OnnxTest {
  std::string name;
  std::filesystem::path file;
  std::vector<OnnxNode> nodes;
  std::vector<std::string> outputs;
};

/// Folder of the tests, if the shared data is there.
[[nodiscard]] std::optional<std::filesystem::path> onnx_folder();

/// All tests of both index files; empty without the data. Throws if an index cannot be parsed.
[[nodiscard]] std::vector<OnnxTest> onnx_tests();

/// Inputs and parameters, by the names that nodes use; or the expected outputs.
enum class OnnxSide { Inputs, Outputs };
[[nodiscard]] OnnxTensors read_tensors(const OnnxTest& test, OnnxSide side);

/// Runs the nodes with our kernels and adds their outputs to `tensors`. Throws std::runtime_error
/// with the name of an operator that has no kernel.
void evaluate(const OnnxTest& test, Backend& backend, OnnxTensors& tensors);

/// The reason why a test does not apply; null if it must pass.
[[nodiscard]] const char* onnx_not_applicable(std::string_view test);

}  // namespace millrace::ops
