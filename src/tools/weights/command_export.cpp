// SPDX-License-Identifier: Apache-2.0
//
// Files that other programs read weights from.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "cli/open_run.hpp"
#include "core/error.hpp"
#include "tools/weights/commands.hpp"

namespace millrace::cli {
namespace {

using training::ExportFormat;

/// The format to write. Errors: Usage, if --like chooses names for one that has millrace's own.
ExportFormat wanted_format(const Patch& options) {
  const std::string name = options.value<std::string>("to");
  const ExportFormat format = name == "onnx"   ? ExportFormat::Onnx
                              : name == "hdf5" ? ExportFormat::Hdf5
                                               : ExportFormat::Safetensors;
  const Setting* const like = options.find("like");
  if (like != nullptr && format != ExportFormat::Safetensors)
    fail(ErrorKind::Usage,
         "{} {} has no effect with --to {}, which writes millrace's own names: leave it out, or "
         "give --to safetensors",
         like->where, to_string(like->value), name);
  return format;
}

int command_export(const Invocation& invocation) {
  const Patch& options = invocation.options;
  const ExportFormat format = wanted_format(options);
  const std::filesystem::path path = invocation.arguments.at(0);
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = io::open_newest(path, complaints);
  print_lines(stderr, complaints);
  std::optional<io::WeightStyle> like;
  if (options.text("like")) like = wanted_styles(options).front();
  const training::Exported done =
      export_checkpoint(checkpoint, format, like, path, options.text("output").value_or(""));
  fmt::print("{}\n", done.line);
  if (!done.note.empty()) print_lines(stderr, {done.note});
  return 0;
}

}  // namespace
}  // namespace millrace::cli

namespace millrace::tools {

cli::Tool weights_tool() {
  using cli::Command;
  static constexpr auto kCommands = std::to_array<cli::CommandSpec>({
      {Command::Import, "import", "FILE RUN_DIR", cli::command_import,
       "Creates a run from weights of PyTorch (.safetensors, .pth), Keras (.h5, .keras) or ONNX.",
       "millrace import resnet50.pth runs/resnet50 --like torchvision"},
      {Command::Export, "export", "CHECKPOINT|RUN_DIR", cli::command_export,
       "Writes the weights of a checkpoint for PyTorch (safetensors), ONNX or h5py.",
       "millrace export logs/RN20_bs32_BN_16.32_v0.2.0_3S9 --to onnx"},
  });
  return {.commands = kCommands};
}

}  // namespace millrace::tools
