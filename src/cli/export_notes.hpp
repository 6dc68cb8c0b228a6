// SPDX-License-Identifier: Apache-2.0
//
// What an exported file says of the run that it came from, so that an import makes the same network
// of it, prepares images alike, and needs no options for that: in `__metadata__` of safetensors,
// and in the metadata of ONNX.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "cli/options.hpp"
#include "cli/resolve.hpp"
#include "io/checkpoint.hpp"
#include "io/weights/names.hpp"
#include "train/network_facts.hpp"

namespace millrace::cli {

using ExportNotes = std::map<std::string, std::string>;

/// The configuration of the run and what its data set said of the network; and, for safetensors,
/// whose names and order of elements the tensors have (none: millrace's own).
[[nodiscard]] ExportNotes notes_of(const io::CheckpointReader& checkpoint,
                                   const std::string& network, const std::string& resolved_toml);
void note_names(ExportNotes& notes, std::optional<io::WeightStyle> style);

/// A file that millrace exported.
struct NotedExport {
  Patch options;                                  ///< all that decide what is computed
  std::optional<train::NetworkFacts> facts = {};  ///< none: an older millrace wrote the file
  bool tells_names = false;                       ///< whether it says whose names it has
  std::optional<io::WeightStyle> names = {};      ///< none: millrace's own
};
/// Nothing for a file of another program. `label` is its path. Errors: Data, if the notes cannot be
/// read.
[[nodiscard]] std::optional<NotedExport> read_notes(const ExportNotes& notes,
                                                    const std::string& label);

/// The network that was exported. Errors: Data, if the notes make none.
[[nodiscard]] models::ModelOptions network_of(const NotedExport& noted, const std::string& label);

/// What is known of the data set without its files, from the options and what was recorded.
[[nodiscard]] DatasetFacts recorded_facts(const Patch& options,
                                          const std::optional<train::NetworkFacts>& recorded);

}  // namespace millrace::cli
