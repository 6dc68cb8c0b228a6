// SPDX-License-Identifier: Apache-2.0
#include "cli/exports.hpp"

#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/export_notes.hpp"
#include "cli/like.hpp"
#include "cli/prepare.hpp"
#include "cli/run_name.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint_attributes.hpp"
#include "io/onnx/export.hpp"
#include "io/safetensors.hpp"

namespace millrace::cli {
namespace {

struct Format {
  ExportFormat id;
  std::string_view name;
  std::string_view extension;
};
constexpr std::array kFormats = {Format{ExportFormat::Safetensors, "safetensors", ".safetensors"},
                                 Format{ExportFormat::Onnx, "onnx", ".onnx"},
                                 Format{ExportFormat::Hdf5, "hdf5", ".h5"}};

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
io::WeightStyle style_of(const Patch& options, const models::ModelOptions& model) {
  if (options.text("like")) return wanted_styles(options).front();
  const bool akamaster = model.task == models::Task::Cifar && model.model.starts_with("res");
  return akamaster ? io::WeightStyle::Akamaster : io::WeightStyle::Torchvision;
}

/// Whose names safetensors have.
struct Names {
  std::optional<io::WeightStyle> style;  ///< none: millrace's own
  std::string note;                      ///< why
};

/// A library that was not asked for need not have the network of a file.
Names names_for(const Patch& options, const models::ModelOptions& model, const Graph& graph) {
  const io::WeightStyle style = style_of(options, model);
  if (model.given.graph && !options.text("like"))
    if (const std::string misfit = foreign_parameters(graph, style).misfit; !misfit.empty())
      return {std::nullopt,
              fmt::format("{}: the tensors have millrace's names and its order of kernels, OHWI; "
                          "--to onnx writes the network as well",
                          misfit)};
  return {style, ""};
}

std::string own_safetensors(const Graph& graph,
                            const std::map<std::string, std::vector<float>>& values,
                            ExportNotes notes) {
  io::SafeTensors tensors;
  for (const Parameter& parameter : graph.parameters)
    tensors.emplace(parameter.name,
                    io::SafeTensor{"F32", parameter.shape,
                                   std::as_bytes(std::span(values.at(parameter.name)))});
  notes.emplace("millrace.layout", "OHWI");
  return format_safetensors(tensors, notes);
}

std::string safetensors_of(const Graph& graph, io::WeightStyle style,
                           const std::map<std::string, std::vector<float>>& values,
                           const ExportNotes& notes) {
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

ExportFormat export_format(std::string_view name) {
  for (const Format& format : kFormats)
    if (format.name == name) return format.id;
  fail(ErrorKind::Internal, "no format is called {}", name);
}

std::string_view extension_of(ExportFormat format) {
  return kFormats.at(static_cast<std::size_t>(format)).extension;
}

Exported export_checkpoint(const io::CheckpointReader& checkpoint, ExportFormat format,
                           const Patch& options, const std::filesystem::path& folder,
                           const std::filesystem::path& file) {
  const auto [config, graph] = network_of(checkpoint);
  const std::string name = checkpoint.path().filename().string();
  ExportNotes notes = notes_of(checkpoint, graph.name, to_toml(config));
  const std::filesystem::path path =
      file.empty() ? folder / (graph.name + std::string(extension_of(format))) : file;
  Exported done;
  std::string whose;
  if (format == ExportFormat::Hdf5) {
    io::write_merged(checkpoint, path);
  } else if (format == ExportFormat::Onnx) {
    const auto values = values_of(checkpoint, graph);
    io::write_file_atomically(
        path, io::to_onnx(
                  graph, [&](const Parameter& p) { return std::span(values.at(p.name)); }, notes));
  } else {
    const auto values = values_of(checkpoint, graph);
    Names names = names_for(options, config.model, graph);
    note_names(notes, names.style);
    io::write_file_atomically(path, names.style ? safetensors_of(graph, *names.style, values, notes)
                                                : own_safetensors(graph, values, notes));
    whose =
        fmt::format(" with the names of {}", names.style ? io::name_of(*names.style) : "millrace");
    done.note = std::move(names.note);
  }
  done.line = fmt::format("{} of {}{}: {} parameters in {}", name, graph.name, whose,
                          graph.trainable_elements(), printable(path.string()));
  return done;
}

namespace {

constexpr std::string_view kInRun = "RUN_DIR/";

}  // namespace

std::filesystem::path export_folder(const Patch& options,
                                    const std::filesystem::path& run_directory) {
  const std::string given = options.text("export-dir").value_or("");
  return given.starts_with(kInRun) ? run_directory / given.substr(kInRun.size())
                                   : std::filesystem::path(given);
}

void require_export_folder(const Patch& options) {
  const std::filesystem::path folder = options.text("export-dir").value_or("");
  if (folder.empty() || folder.string().starts_with(kInRun)) return;
  const std::vector<std::filesystem::path> missing = missing_directories(folder);
  try {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) io::fail_io("create", folder, error.value());
    (void)io::StagedFile(folder / "export");
  } catch (const Error& error) {
    remove_empty(missing);
    fail(error.kind(), "{}: {}", options.find("export-dir")->where, error.what());
  }
  remove_empty(missing);
}

}  // namespace millrace::cli
