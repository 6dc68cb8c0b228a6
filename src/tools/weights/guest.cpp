// SPDX-License-Identifier: Apache-2.0
//
// What the trainer knows of weights in files of other programs: notes in those that millrace
// exported, weights to begin with, and exports.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "models/registry.hpp"
#include "tools/weights/commands.hpp"
#include "train/run_name.hpp"
#include "train/summaries.hpp"

namespace millrace::training {

// ---- notes in exported files

namespace {

constexpr const char* kConfig = "millrace.config";
constexpr const char* kNetwork = "millrace.network";
constexpr const char* kNames = "millrace.names";

/// Settings of a run that belong to its machine and its data, or to what it began with.
bool belongs_to_run(const Field& spec) {
  constexpr auto kNamed = std::to_array<std::string_view>(
      {"init-path", "init-fresh", "synthetic-data", "generated-data", "data-dir", "BN-span"});
  return spec.decides != run::Decides::Mathematics || spec.section == Section::Pipeline ||
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
         io::is_network_file(label) ? "" : ", or give `like` NAME to read its tensors alone");
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
    noted.facts = training::parse_facts(network->second, label);
  if (noted.facts) noted.options.network = noted.facts->given.graph;
  const auto names = notes.find(kNames);
  if (names == notes.end()) return noted;
  const std::string_view known = names->second;
  const auto* const style = std::ranges::find(io::kWeightStyles, known, io::name_of);
  noted.names = style != io::kWeightStyles.end() ? *style : io::WeightStyle::Millrace;
  if (io::name_of(*noted.names) != known)
    fail(ErrorKind::Config, "{}: {} {} is unknown", label, kNames, known);
  return noted;
}

}  // namespace

std::optional<NotedExport> read_notes(const ExportNotes& notes, const std::string& label) {
  return of_file(label, [&] { return parse_notes(notes, label); });
}

models::ModelOptions network_of(const NotedExport& noted, const std::string& label) {
  return of_file(label, [&] {
    const DatasetFacts facts = recorded_facts(noted.options, noted.facts);
    models::ModelOptions model = run::complete(noted.options, facts, this_machine()).run.model;
    (void)models::build_model(model);  // what it cannot be made of is refused
    return model;
  });
}

// ---- exports

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
io::WeightStyle style_of(std::optional<io::WeightStyle> like, const models::ModelOptions& model) {
  if (like) return *like;
  const bool akamaster = model.task == models::Task::Cifar && model.model.starts_with("res");
  return akamaster ? io::WeightStyle::Akamaster : io::WeightStyle::Torchvision;
}

/// Whose names safetensors have, and why, if there is more to say. A library that was not asked for
/// need not have the network of a file.
std::pair<io::WeightStyle, std::string> names_for(std::optional<io::WeightStyle> like,
                                                  const models::ModelOptions& model,
                                                  const Graph& graph) {
  const io::WeightStyle style = style_of(like, model);
  if (model.given.graph && !like)
    if (const std::string misfit = foreign_parameters(graph, style).misfit; !misfit.empty())
      return {io::WeightStyle::Millrace,
              fmt::format("{}: the tensors have millrace's names and its order of kernels, OHWI; "
                          "`to` onnx writes the network as well",
                          misfit)};
  return {style, ""};
}

std::string safetensors_of(const Graph& graph, io::WeightStyle style,
                           const std::map<std::string, std::vector<float>>& values,
                           ExportNotes notes) {
  const io::ForeignParameters names = foreign_parameters(graph, style);
  if (!names.misfit.empty())
    fail(ErrorKind::Config, "{}; `to` onnx writes every network", names.misfit);
  notes.emplace(kNames, io::name_of(style));
  if (style == io::WeightStyle::Millrace) notes.emplace("millrace.layout", "OHWI");
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

namespace {
constexpr std::array kExtensions = {".safetensors", ".onnx", ".h5"};
}  // namespace

Exported export_checkpoint(const io::CheckpointReader& checkpoint, ExportFormat format,
                           std::optional<io::WeightStyle> like, const std::filesystem::path& folder,
                           const std::filesystem::path& file) {
  const auto [config, graph] = network_of(checkpoint);
  const std::string name = checkpoint.path().filename().string();
  const ExportNotes notes = {{"format", "pt"},
                             {"millrace.model", graph.name},
                             {"millrace.checkpoint", name},
                             {kConfig, to_toml(config)},
                             {kNetwork, checkpoint.header().network}};
  const std::filesystem::path path =
      file.empty() ? folder / (graph.name + kExtensions.at(static_cast<std::size_t>(format)))
                   : file;
  Exported done;
  std::string whose;
  if (format == ExportFormat::Hdf5) {
    io::write_merged(checkpoint, path);
  } else if (format == ExportFormat::Onnx) {
    const auto values = values_of(checkpoint, graph);
    io::write_file_atomically(
        path, built_guests().files.format_network(
                  graph, [&](const Parameter& p) { return std::span(values.at(p.name)); }, notes));
  } else {
    const auto values = values_of(checkpoint, graph);
    const auto [style, note] = names_for(like, config.model, graph);
    io::write_file_atomically(path, safetensors_of(graph, style, values, notes));
    whose = fmt::format(" with the names of {}", io::name_of(style));
    done.note = note;
  }
  done.line = fmt::format("{} of {}{}: {} parameters in {}", name, graph.name, whose,
                          graph.trainable_elements(), printable(path.string()));
  return done;
}

// ---- weights to begin with

std::vector<io::ImportedParameter> values_of(const io::TensorFile& file, const models::Graph& graph,
                                             const NotedExport& noted) {
  const io::WeightStyle style = noted.names ? *noted.names : io::find_style(file, graph);
  return style == io::WeightStyle::Millrace ? io::import_own_weights(file, graph)
                                            : io::import_weights(file, graph, style);
}

namespace {

/// The network that a file of weights holds.
io::NetworkFile open_weights(const std::filesystem::path& path) {
  const io::TensorFile file = io::read_tensor_file(path);
  io::NetworkFile network;
  network.notices = file.notices();
  std::vector<io::ImportedParameter> all;
  if (const std::optional<NotedExport> noted = read_notes(file.metadata(), path.string())) {
    network.model = network_of(*noted, path.string());
    network.graph = models::build_model(*network.model);
    all = values_of(file, network.graph, *noted);
  } else {
    const io::Identified found = io::identify(file, io::kWeightStyles);
    network.model = found.model;
    network.graph = models::build_model(found.model);
    all = io::import_weights(file, network.graph, found.style);
  }
  network.values =
      [kept = std::make_shared<const std::vector<io::ImportedParameter>>(std::move(all))](
          models::ParameterId id) { return kept->at(static_cast<std::size_t>(id.value)).values; };
  return network;
}

}  // namespace

// ---- `export-dir`

namespace {

constexpr std::string_view kInRun = "RUN_DIR/";

void require_export_folder(const std::string& folder) {
  if (built_guests().files.format_network == io::ForeignFiles().format_network)
    (void)built_guests().files.format_network({}, {}, {});  // ends with what it lacks
  if (folder.starts_with(kInRun)) return;
  const std::vector<std::filesystem::path> missing = missing_directories(folder);
  try {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) io::fail_io("create", folder, error.value());
    (void)io::StagedFile(std::filesystem::path(folder) / "export");
  } catch (const Error&) {
    remove_empty(missing);
    throw;
  }
  remove_empty(missing);
}

std::vector<std::string> export_run(const std::filesystem::path& run_directory,
                                    const std::string& folder) {
  const std::filesystem::path place = folder.starts_with(kInRun)
                                          ? run_directory / folder.substr(kInRun.size())
                                          : std::filesystem::path(folder);
  std::error_code error;
  std::filesystem::create_directories(place, error);
  if (error) io::fail_io("create", place, error.value());
  std::vector<std::string> lines;
  const io::CheckpointReader checkpoint = io::open_newest(run_directory, lines);
  for (const ExportFormat format : {ExportFormat::Onnx, ExportFormat::Hdf5})
    lines.push_back(fmt::format("Exported {}",
                                export_checkpoint(checkpoint, format, std::nullopt, place).line));
  return lines;
}

}  // namespace
}  // namespace millrace::training

namespace millrace::tools {

void add_weights(training::Guests& guests) {
  guests.files.open_weights = training::open_weights;
  guests.files.require_export = training::require_export_folder;
  guests.files.export_run = training::export_run;
}

}  // namespace millrace::tools
