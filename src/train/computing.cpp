// SPDX-License-Identifier: Apache-2.0
#include "train/computing.hpp"

#include <fmt/format.h>

#include "device/environment.hpp"
#include "ops/backend.hpp"

namespace millrace::train {

std::vector<std::string> describe_computing(const TrainConfig& config) {
  std::vector<std::string> lines = {fmt::format("Kernels: {}", device::describe_kernels())};
  const DType type = config.precision.activations;
  if (type != DType::F32) lines.push_back(ops::describe_products(type));
  return lines;
}

std::string config_file_text(const TrainConfig& config) {
  std::string text;
  for (const std::string& line : describe_computing(config)) text += fmt::format("# {}\n", line);
  return text + "\n" + config.resolved_toml;
}

}  // namespace millrace::train
