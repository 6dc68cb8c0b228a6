// SPDX-License-Identifier: Apache-2.0
//
// What `import` and `export` share. An exported file says of the run that it came from what makes
// an import the same network, with images prepared alike, without any options: in `__metadata__` of
// safetensors, and in the metadata of ONNX.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.hpp"
#include "io/foreign_files.hpp"
#include "tools/weights/import.hpp"
#include "train/open_run.hpp"

namespace millrace::training {

using io::ExportNotes;

/// A file that millrace exported.
struct NotedExport {
  Patch options;                              ///< all that decide what is computed
  std::optional<NetworkFacts> facts = {};     ///< none: an older millrace wrote the file
  std::optional<io::WeightStyle> names = {};  ///< none: the file does not say whose it has
};
/// Nothing for a file of another program. `label` is its path. Errors: Data, if the notes cannot be
/// read.
[[nodiscard]] std::optional<NotedExport> read_notes(const ExportNotes& notes,
                                                    const std::string& label);

/// The network that was exported. Errors: Data, if the notes make none.
[[nodiscard]] models::ModelOptions network_of(const NotedExport& noted, const std::string& label);

/// The values of the network in safetensors that note whose names they have, or of an older export.
[[nodiscard]] std::vector<io::ImportedParameter> values_of(const io::TensorFile& file,
                                                           const models::Graph& graph,
                                                           const NotedExport& noted);

enum class ExportFormat : std::uint8_t { Safetensors, Onnx, Hdf5 };
/// What an export says.
struct Exported {
  std::string line;  ///< "ckpt-5 of resnet-8: 78042 parameters in a.onnx"
  std::string note;  ///< why safetensors have millrace's own names; "" if they do not
};

/// Writes a checkpoint to `file`, or without one into `folder` under the name of its network.
/// `like` may choose the library whose names safetensors have. The network of a file (--model
/// FILE.onnx) is written in every format; where no library was chosen and the usual one has no such
/// network, its safetensors have millrace's names and order of kernels, which a note says.
/// Errors: Checkpoint; Config, if the chosen library, or the usual one of a network that millrace
/// builds, has no such network; Io.
[[nodiscard]] Exported export_checkpoint(const io::CheckpointReader& checkpoint,
                                         ExportFormat format, std::optional<io::WeightStyle> like,
                                         const std::filesystem::path& folder,
                                         const std::filesystem::path& file = {});

}  // namespace millrace::training

namespace millrace::cli {

struct Invocation;
int command_import(const Invocation& invocation);

// ---- what the files of other libraries imply

/// The libraries of --like; all without it.
[[nodiscard]] std::vector<io::WeightStyle> wanted_styles(const Patch& options);

/// Options and their values, in the words of a command line.
struct ImpliedOption {
  std::string name;
  std::string value;  ///< "true" for a flag
};
/// What a file says about its network: by the shapes of its tensors, and Keras by its
/// configuration.
[[nodiscard]] std::vector<ImpliedOption> options_shown(const io::Identified& found);
/// What no shape shows: padding, epsilon, and how images are prepared, as in the library.
[[nodiscard]] std::vector<ImpliedOption> options_assumed(const io::Identified& found);

/// Sets those of the options that were not given.
void add_implied(Patch& options, std::span<const ImpliedOption> implied, std::string_view where);
/// "--padding torch --norm-epsilon 1e-05", with the values that hold.
[[nodiscard]] std::string text_of(std::span<const ImpliedOption> implied, const Patch& options);

}  // namespace millrace::cli
