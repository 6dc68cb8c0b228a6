// SPDX-License-Identifier: Apache-2.0
//
// Files that other programs read weights from.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/open_run.hpp"
#include "cli/run_name.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "tools/weights/commands.hpp"

namespace millrace::cli {

// ---- notes in exported files

namespace {

constexpr const char* kConfig = "millrace.config";
constexpr const char* kNetwork = "millrace.network";
constexpr const char* kNames = "millrace.names";

/// Settings of a run that belong to its machine and its data, or to what it began with.
bool belongs_to_run(const Field& spec) {
  constexpr auto kNamed = std::to_array<std::string_view>(
      {"init-path", "init-fresh", "synthetic-data", "generated-data", "data-dir", "BN-span"});
  return spec.decides != Decides::Mathematics || spec.section == Section::Pipeline ||
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

// ---- the command

namespace {

enum class ExportFormat : std::uint8_t { Safetensors, Onnx, Hdf5 };

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

/// Whose names safetensors have, and why, if there is more to say. A library that was not asked for
/// need not have the network of a file.
std::pair<io::WeightStyle, std::string> names_for(const Patch& options,
                                                  const models::ModelOptions& model,
                                                  const Graph& graph) {
  const io::WeightStyle style = style_of(options, model);
  if (model.given.graph && !options.text("like"))
    if (const std::string misfit = foreign_parameters(graph, style).misfit; !misfit.empty())
      return {io::WeightStyle::Millrace,
              fmt::format("{}: the tensors have millrace's names and its order of kernels, OHWI; "
                          "--to onnx writes the network as well",
                          misfit)};
  return {style, ""};
}

std::string safetensors_of(const Graph& graph, io::WeightStyle style,
                           const std::map<std::string, std::vector<float>>& values,
                           ExportNotes notes) {
  const io::ForeignParameters names = foreign_parameters(graph, style);
  if (!names.misfit.empty())
    fail(ErrorKind::Config, "{}; --to onnx writes every network", names.misfit);
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

/// The format to write. Errors: Usage, if --like chooses names for one that has millrace's own.
ExportFormat wanted_format(const Patch& options) {
  const std::string name = options.value<std::string>("to");
  const auto* const format = std::ranges::find(kFormats, name, &Format::name);
  if (format == kFormats.end()) fail(ErrorKind::Internal, "no format is called {}", name);
  const Setting* const like = options.find("like");
  if (like != nullptr && format->id != ExportFormat::Safetensors)
    fail(ErrorKind::Usage,
         "{} {} has no effect with --to {}, which writes millrace's own names: leave it out, or "
         "give --to safetensors",
         like->where, to_string(like->value), name);
  return format->id;
}

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
Exported export_checkpoint(const io::CheckpointReader& checkpoint, ExportFormat format,
                           const Patch& options, const std::filesystem::path& folder,
                           const std::filesystem::path& file = {}) {
  const auto [config, graph] = network_of(checkpoint);
  const std::string name = checkpoint.path().filename().string();
  const ExportNotes notes = {{"format", "pt"},
                             {"millrace.model", graph.name},
                             {"millrace.checkpoint", name},
                             {kConfig, to_toml(config)},
                             {kNetwork, checkpoint.header().network}};
  const std::filesystem::path path =
      file.empty() ? folder / (graph.name +
                               std::string(kFormats.at(static_cast<std::size_t>(format)).extension))
                   : file;
  Exported done;
  std::string whose;
  if (format == ExportFormat::Hdf5) {
    io::write_merged(checkpoint, path);
  } else if (format == ExportFormat::Onnx) {
    const auto values = values_of(checkpoint, graph);
    io::write_file_atomically(
        path, foreign_files().format_network(
                  graph, [&](const Parameter& p) { return std::span(values.at(p.name)); }, notes));
  } else {
    const auto values = values_of(checkpoint, graph);
    const auto [style, note] = names_for(options, config.model, graph);
    io::write_file_atomically(path, safetensors_of(graph, style, values, notes));
    whose = fmt::format(" with the names of {}", io::name_of(style));
    done.note = note;
  }
  done.line = fmt::format("{} of {}{}: {} parameters in {}", name, graph.name, whose,
                          graph.trainable_elements(), printable(path.string()));
  return done;
}

int command_export(const Invocation& invocation) {
  const Patch& options = invocation.options;
  const ExportFormat format = wanted_format(options);
  const std::filesystem::path path = invocation.arguments.at(0);
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = io::open_newest(path, complaints);
  print_lines(stderr, complaints);
  const Exported done =
      export_checkpoint(checkpoint, format, options, path, options.text("output").value_or(""));
  fmt::print("{}\n", done.line);
  if (!done.note.empty()) print_lines(stderr, {done.note});
  return 0;
}

// ---- --export-dir

constexpr std::string_view kInRun = "RUN_DIR/";

void require_export_folder(const std::string& folder) {
  if (foreign_files().format_network == io::ForeignFiles().format_network)
    (void)foreign_files().format_network({}, {}, {});  // ends with what it lacks
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

void export_run(const std::filesystem::path& run_directory, const std::string& folder) {
  const std::filesystem::path place = folder.starts_with(kInRun)
                                          ? run_directory / folder.substr(kInRun.size())
                                          : std::filesystem::path(folder);
  std::error_code error;
  std::filesystem::create_directories(place, error);
  if (error) io::fail_io("create", place, error.value());
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = io::open_newest(run_directory, complaints);
  print_lines(stderr, complaints);
  for (const ExportFormat format : {ExportFormat::Onnx, ExportFormat::Hdf5})
    fmt::print("Exported {}\n", export_checkpoint(checkpoint, format, Patch{}, place).line);
}

}  // namespace
}  // namespace millrace::cli

namespace millrace::tools {
namespace {

void add_export(io::ForeignFiles& files) {
  files.require_export = cli::require_export_folder;
  files.export_run = cli::export_run;
}

}  // namespace

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
  return {.commands = kCommands, .add_to = add_export};
}

}  // namespace millrace::tools
