// SPDX-License-Identifier: Apache-2.0
//
// Files that other programs read weights from.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "cli/options.hpp"
#include "io/checkpoint.hpp"

namespace millrace::cli {

enum class ExportFormat : std::uint8_t { Safetensors, Onnx, Hdf5 };

/// The format of this name: "safetensors", "onnx", "hdf5".
[[nodiscard]] ExportFormat export_format(std::string_view name);
/// ".safetensors", ".onnx", ".h5".
[[nodiscard]] std::string_view extension_of(ExportFormat format);

/// What an export says.
struct Exported {
  std::string line;  ///< "ckpt-5 of resnet-8: 78042 parameters in a.onnx"
  std::string note;  ///< why safetensors have millrace's own names; "" if they do not
};
/// Writes a checkpoint to `file`, or without one into `folder` under the name of its network.
/// `options` may choose the library whose names safetensors have. The network of a file (--model
/// FILE.onnx) is written in every format; where no library was chosen and the usual one has no such
/// network, its safetensors have millrace's names and order of kernels, which a note says.
/// Errors: Checkpoint; Config, if the chosen library, or the usual one of a network that millrace
/// builds, has no such network; Io.
[[nodiscard]] Exported export_checkpoint(const io::CheckpointReader& checkpoint,
                                         ExportFormat format, const Patch& options,
                                         const std::filesystem::path& folder,
                                         const std::filesystem::path& file = {});

/// The folder of --export-dir, which may be one in the run directory: "RUN_DIR/export". Empty
/// without the option.
[[nodiscard]] std::filesystem::path export_folder(const Patch& options,
                                                  const std::filesystem::path& run_directory);
/// Finds out whether the folder of --export-dir can be made and written, and leaves nothing there.
/// One in the run directory is not looked at. Errors: Io.
void require_export_folder(const Patch& options);

}  // namespace millrace::cli
