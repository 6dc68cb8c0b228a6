// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/like.hpp"
#include "cli/prepare.hpp"
#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/onnx/export.hpp"
#include "io/safetensors.hpp"

namespace millrace::cli {
namespace {

using models::Graph;
using models::Parameter;

/// The parameters of a checkpoint in float32, by name.
std::map<std::string, std::vector<float>> values_of(const io::CheckpointReader& checkpoint,
                                                    const Graph& graph) {
  std::map<std::string, std::vector<float>> all;
  for (const Parameter& parameter : graph.parameters) {
    const io::TensorInfo& info = *checkpoint.find(parameter.name);
    std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
    checkpoint.read(info.name, bytes);
    const io::SafeTensor tensor{info.type == DType::F32    ? "F32"
                                : info.type == DType::BF16 ? "BF16"
                                                           : "F16",
                                info.shape, bytes};
    all.emplace(parameter.name, tensor.to_floats());
  }
  return all;
}

/// The library whose names are used.
io::WeightStyle style_of(const Options& options, const models::ModelOptions& model) {
  if (options.text("like")) return wanted_styles(options).front();
  const bool akamaster = model.task == models::Task::Cifar && model.model.starts_with("res");
  return akamaster ? io::WeightStyle::Akamaster : io::WeightStyle::Torchvision;
}

std::string safetensors_of(const Graph& graph, io::WeightStyle style,
                           const std::map<std::string, std::vector<float>>& values,
                           const std::map<std::string, std::string>& notes) {
  const io::ForeignParameters names = foreign_parameters(graph, style);
  if (!names.misfit.empty())
    fail(ErrorKind::Config, "{}; --to onnx writes every network", names.misfit);
  std::vector<std::vector<float>> turned;
  io::SafeTensors tensors;
  turned.reserve(names.all.size());
  for (std::size_t i = 0; i < names.all.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    turned.push_back(to_foreign(graph, parameter, style, values.at(parameter.name)));
    tensors.emplace(names.all[i].name, io::SafeTensor{"F32", names.all[i].shape,
                                                      std::as_bytes(std::span(turned.back()))});
  }
  return format_safetensors(tensors, notes);
}

}  // namespace

int command_export(const Invocation& invocation) {
  const Options& options = invocation.options;
  const std::filesystem::path path = options.arguments.at(0);
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = io::open_newest(path, complaints);
  print_lines(stderr, complaints);
  const auto [config, graph] = network_of(checkpoint);
  const std::map<std::string, std::vector<float>> values = values_of(checkpoint, graph);
  const std::map<std::string, std::string> notes = {
      {"format", "pt"},
      {"millrace.model", graph.name},
      {"millrace.checkpoint", checkpoint.path().filename().string()},
      {"millrace.config", config.resolved_toml}};
  const bool onnx = options.text("to") == "onnx";
  const io::WeightStyle style = style_of(options, config.model);
  const std::string bytes =
      onnx ? io::to_onnx(
                 graph, [&](const Parameter& p) { return std::span(values.at(p.name)); }, notes)
           : safetensors_of(graph, style, values, notes);
  const std::string extension = onnx ? ".onnx" : ".safetensors";
  const std::filesystem::path file =
      options.text("output").value_or((path / (graph.name + extension)).string());
  io::write_file_atomically(file, bytes);
  fmt::print("{} of {}{}: {} parameters in {}\n", checkpoint.path().filename().string(), graph.name,
             onnx ? "" : fmt::format(" with the names of {}", io::name_of(style)),
             graph.trainable_elements(), file.string());
  return 0;
}

}  // namespace millrace::cli
