// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/commands.hpp"

#include <algorithm>
#include <string_view>

#include "cli/prepare.hpp"
#include "core/error.hpp"

namespace millrace::cli {
namespace {

constexpr const char* kConfig = "millrace.config";
constexpr const char* kNetwork = "millrace.network";
constexpr const char* kNames = "millrace.names";
constexpr const char* kOwnNames = "millrace";

/// Settings of a run that belong to its machine and its data, or to what it began with.
bool belongs_to_run(const Field& spec) {
  constexpr auto kNamed = std::to_array<std::string_view>(
      {"init-path", "init-fresh", "synthetic-data", "generated-data", "data-dir", "BN-span"});
  return spec.on_restore == OnRestore::MayChange || spec.section == Section::Pipeline ||
         std::ranges::find(kNamed, spec.name) != kNamed.end();
}

/// Nobody typed what a file notes: what is wrong with it is wrong with the file. Errors: Data.
template <class Read>
auto of_file(const std::string& label, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    std::string_view what = error.what();
    if (what.starts_with(label + ": ")) what.remove_prefix(label.size() + 2);
    fail(ErrorKind::Data,
         "{}: what millrace noted in it is damaged, or of a newer version ({}): export it again{}",
         label, what,
         io::is_network_file(label) ? "" : ", or give --like NAME to read its tensors alone");
  }
}

/// Errors: Config and Checkpoint.
std::optional<NotedExport> parse_notes(const ExportNotes& notes, const std::string& label) {
  const auto config = notes.find(kConfig);
  if (config == notes.end()) return std::nullopt;
  NotedExport noted;
  const Patch recorded = parse_config(config->second, label + ": " + kConfig);
  for (const auto& [name, setting] : recorded.settings())
    if (const Field& spec = *find_field(name); !belongs_to_run(spec))
      noted.options.set(spec, setting);
  if (const auto network = notes.find(kNetwork); network != notes.end())
    noted.facts = train::parse_facts(network->second, label);
  if (noted.facts) noted.options.network = noted.facts->given.graph;
  const auto names = notes.find(kNames);
  if (names == notes.end()) return noted;
  noted.tells_names = true;
  const auto* const style =
      std::ranges::find(io::kWeightStyles, std::string_view(names->second), io::name_of);
  if (style != io::kWeightStyles.end()) noted.names = *style;
  if (!noted.names && names->second != kOwnNames)
    fail(ErrorKind::Config, "{}: {} {} is unknown", label, kNames, names->second);
  return noted;
}

}  // namespace

ExportNotes notes_of(const io::CheckpointReader& checkpoint, const std::string& network,
                     const std::string& resolved_toml) {
  return {{"format", "pt"},
          {"millrace.model", network},
          {"millrace.checkpoint", checkpoint.path().filename().string()},
          {kConfig, resolved_toml},
          {kNetwork, checkpoint.header().network}};
}

void note_names(ExportNotes& notes, std::optional<io::WeightStyle> style) {
  notes.insert_or_assign(kNames, std::string(style ? io::name_of(*style) : kOwnNames));
}

std::optional<NotedExport> read_notes(const ExportNotes& notes, const std::string& label) {
  return of_file(label, [&] { return parse_notes(notes, label); });
}

models::ModelOptions network_of(const NotedExport& noted, const std::string& label) {
  return of_file(label, [&] {
    const DatasetFacts facts = recorded_facts(noted.options, noted.facts);
    return resolve(noted.options, facts, this_machine()).config.model;
  });
}

}  // namespace millrace::cli
