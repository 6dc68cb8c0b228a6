// SPDX-License-Identifier: Apache-2.0
#include "train/run_name.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <system_error>
#include <vector>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"

namespace millrace::training {
namespace {

/// mkdir decides which of two processes gets the directory. Returns 0 or errno.
int make_directory(const std::filesystem::path& directory) {
  return ::mkdir(directory.c_str(), 0777) == 0 ? 0 : errno;
}

/// Reports a run directory that cannot be created, with a remedy.
[[noreturn]] void fail_to_create(const std::filesystem::path& directory, int error) {
  fail(ErrorKind::Io,
       "cannot create run directory {}: {}; choose another place with `run-dir` or "
       "`log-dir`",
       directory.string(), std::generic_category().message(error));
}

void make_parents(const std::filesystem::path& directory) {
  const std::filesystem::path parent = directory.parent_path();
  if (parent.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) fail_to_create(parent, error.value());
}

/// "a/b/" names the directory a/b.
std::filesystem::path without_end(const std::filesystem::path& directory) {
  return directory.has_filename() ? directory : directory.parent_path();
}

/// Whether the directory holds a run that was killed before its first checkpoint: a configuration,
/// nothing to restore, and no files of others. Links do not count, as they may lead to files of
/// others or to a disk that is not mounted.
bool holds_no_checkpoint(const std::filesystem::path& directory) {
  constexpr auto kFiles = std::to_array<std::string_view>(
      {".lock", "config.toml", "log.txt", "training.csv", "validation.csv", "metrics.jsonl",
       "trace.json", ".snapshots", ".speeds", kSupervisorLock, kSupervisorLog});
  std::error_code error;
  bool configured = false;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool unfinished = name.starts_with("config.toml.tmp.");
    // A process that was killed, or found the disk full, before writing its configuration left its
    // lock.
    configured = configured || unfinished || name == "config.toml" || name == ".lock" ||
                 name == kSupervisorLock;
    const bool known = unfinished || std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end();
    const bool ours = name == "checkpoints" ? io::holds_leftovers_alone(it->path())
                                            : known && !it->is_symlink(error);
    if (!ours) return false;
  }
  return !error && configured;
}

[[noreturn]] void fail_taken(const std::filesystem::path& directory, std::string_view place) {
  std::error_code ignored;
  const auto checkpoints = std::filesystem::symlink_status(directory / "checkpoints", ignored);
  const bool holds_run = std::filesystem::exists(checkpoints);
  fail(ErrorKind::Usage, "{}: already exists: {}choose another {}{}", directory.string(),
       holds_run ? "continue that run with millrace restore `restore-path`, or " : "", place,
       holds_run ? "" : ", or remove it first");
}

/// Removes the files of a run without checkpoints to make room for a new one, while holding its
/// lock. Errors: Io if that run has saved a checkpoint meanwhile.
void clear_begun_run(const std::filesystem::path& directory, std::string_view place) {
  const io::RunLock lock(directory);
  if (!holds_no_checkpoint(directory)) fail_taken(directory, place);
  for (const std::filesystem::directory_entry& entry :
       std::filesystem::directory_iterator(directory))
    if (const std::string name = entry.path().filename().string();
        name != ".lock" && name != kSupervisorLock && name != kSupervisorLog)
      std::filesystem::remove_all(entry.path());
}

std::string norm_name(const models::ModelOptions& model) {
  if (model.given.graph) return model.norm == models::NormKind::Batch ? "BN" : "noBN";
  if (!models::find_family(model.model).normed) return "noBN";
  return model.norm == models::NormKind::Group ? fmt::format("GN{}", model.groups) : "BN";
}

std::string family_name(const models::ModelOptions& model) {
  if (model.given.graph) {
    std::string name = model.size;
    for (char& c : name)
      if (c == ' ' || c == '/') c = '_';
    return name;
  }
  return fmt::format(fmt::runtime(models::find_family(model.model).run_name), model.size);
}

/// The directory in which those of runs are created.
std::filesystem::path log_directory(const run::Run& config) {
  const std::string& given = config.logging.directory;
  return given.empty() ? std::get<std::string>(*find_field("log-dir")->by_default) : given;
}

std::string precision_name(const run::Run& config) {
  if (config.precision.activations == DType::F32) return "32.32";
  if (config.precision.master == DType::F32) return "16.32";
  return config.stochastic_rounding ? "16.16" : "16.16_noSR";
}

}  // namespace

std::string run_name(const run::Run& config, std::string_view version, std::string_view tag) {
  const models::ModelOptions& model = config.model;
  std::string name = family_name(model);
  name += fmt::format("_bs{}", config.batch_size);
  const bool pipelined = config.pipeline.ranges.size() > 1;
  if (config.pipeline.ranks.replicas > 1)
    name += fmt::format("x{}r", config.pipeline.ranks.replicas);
  if (config.micro_batches > 1)
    name += fmt::format("x{}{}", config.micro_batches, pipelined ? "p" : "a");
  name += fmt::format("_{}_{}", norm_name(model), precision_name(config));
  if (model.task == models::Task::ImageNet && model.image.h != 224)
    name += fmt::format("_{}x{}", model.image.h, model.image.w);
  if (const std::string& suffix = config.logging.suffix; !suffix.empty())
    name += fmt::format("_{}", suffix);
  return name + fmt::format("_v{}_{}", version, tag);
}

std::string random_tag() {
  constexpr std::string_view kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::random_device device;
  std::uniform_int_distribution<std::size_t> pick(0, kCharacters.size() - 1);
  std::string tag(3, ' ');
  for (char& c : tag) c = kCharacters[pick(device)];
  return tag;
}

std::vector<std::filesystem::path> missing_directories(std::filesystem::path path) {
  std::vector<std::filesystem::path> missing;
  std::error_code ignored;
  for (; !path.empty() && !std::filesystem::exists(path, ignored); path = path.parent_path())
    missing.push_back(path);
  return missing;
}

void remove_empty(const std::vector<std::filesystem::path>& directories) {
  std::error_code ignored;
  for (const std::filesystem::path& directory : directories)
    std::filesystem::remove(directory, ignored);
}

void create_run_directory(const std::filesystem::path& directory, std::string_view place) {
  const std::filesystem::path path = without_end(directory);
  make_parents(path);
  const int error = make_directory(path);
  if (error == EEXIST) {
    std::error_code ignored;
    const bool directory_there = std::filesystem::is_directory(path, ignored);
    if (directory_there && std::filesystem::is_empty(path, ignored)) return;
    if (holds_no_checkpoint(path)) return clear_begun_run(path, place);
    fail_taken(path, place);
  }
  if (error != 0) fail_to_create(path, error);
}

std::filesystem::path create_run_directory(const run::Run& config, std::string_view version) {
  if (!config.logging.keeps) return {};
  if (const std::filesystem::path given = config.logging.place; !given.empty()) {
    create_run_directory(given);
    return without_end(given);
  }
  const std::filesystem::path logs = log_directory(config);
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::filesystem::path directory = logs / run_name(config, version, random_tag());
    make_parents(directory);
    const int error = make_directory(directory);
    if (error == 0) return directory;
    if (error != EEXIST) fail_to_create(directory, error);
  }
  fail(ErrorKind::Io,
       "{}: found no unused directory name in {} attempts: choose one with `run-dir`",
       logs.string(), kAttempts);
}

void require_run_directory(const run::Run& config, std::string_view version) {
  if (!config.logging.keeps) return;
  const std::filesystem::path given = without_end(config.logging.place);
  if (std::error_code ignored; !given.empty() && std::filesystem::exists(given, ignored)) {
    const bool empty =
        std::filesystem::is_directory(given, ignored) && std::filesystem::is_empty(given, ignored);
    if (!empty && !holds_no_checkpoint(given)) fail_taken(given, "`run-dir`");
    return;
  }
  std::vector<std::filesystem::path> made =
      missing_directories(given.empty() ? log_directory(config) : given);
  if (const auto directory = create_run_directory(config, version); given.empty())
    made.insert(made.begin(), directory);
  remove_empty(made);
}

}  // namespace millrace::training
