// SPDX-License-Identifier: Apache-2.0
//
// Runs and checkpoints that were recorded: what a restore continues and a validation reads.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/prepare.hpp"
#include "cli/prepare_parts.hpp"
#include "cli/resolve.hpp"
#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/data/cifar.hpp"
#include "io/onnx/onnx_file.hpp"
#include "io/tensor_checks.hpp"
#include "models/registry.hpp"
#include "train/agreement.hpp"
#include "train/learning_rate.hpp"
#include "train/network_facts.hpp"

namespace millrace::cli {
namespace {

/// What tells the classes of a set apart: "n01443537" of "n01443537 (goldfish)", or the whole names
/// where that would be the same for two classes.
std::vector<std::string> class_keys(const std::vector<std::string>& names) {
  std::vector<std::string> keys = names;
  for (std::string& key : keys)
    if (key.ends_with(')')) key.resize(std::min(key.find(" ("), key.size()));
  const std::set<std::string_view> distinct(keys.begin(), keys.end());
  return distinct.size() == keys.size() ? keys : names;
}

/// Adds to the names of classes what only the checkpoint knows of them: data without words.txt have
/// no names for people.
void keep_names(std::vector<std::string>& names, const std::vector<std::string>& known) {
  if (names.empty()) names = known;
  const std::vector<std::string> here = class_keys(names);
  const std::vector<std::string> there = class_keys(known);
  for (std::size_t i = 0; i < std::min(here.size(), there.size()); ++i)
    if (names[i] == here[i] && here[i] == there[i]) names[i] = known[i];
}

/// What a checkpoint says of its network.
std::optional<train::NetworkFacts> facts_in(const io::CheckpointReader& checkpoint) {
  return train::parse_facts(checkpoint.header().network,
                            (checkpoint.path() / "manifest.json").string());
}

/// The configuration recorded in a checkpoint.
Options recorded_in(const io::CheckpointReader& checkpoint) {
  Options options =
      parse_config(checkpoint.header().config_toml, (checkpoint.path() / "manifest.json").string());
  if (const auto facts = facts_in(checkpoint)) options.network = facts->given.graph;
  return options;
}

/// What rank 0 found in the directory of a run to be restored.
struct FoundRun {
  std::optional<io::RunLock> lock;
  std::string config_toml;
};

/// Errors: Usage if `directory` is a checkpoint of a run or the folder of its checkpoints: a run
/// that went on there would write elsewhere.
void require_not_inside_run(const std::filesystem::path& directory) {
  const std::vector<std::filesystem::path> found = io::list_checkpoints(directory);
  if (found.empty() || std::filesystem::is_directory(directory / "checkpoints")) return;
  const std::filesystem::path checkpoint = std::filesystem::canonical(found.back());
  fail(ErrorKind::Usage,
       "{}: {} of the run in {}: --restore-path takes the directory of the run, which continues "
       "from its newest checkpoint",
       directory.string(), found.back() == directory ? "is a checkpoint" : "holds the checkpoints",
       checkpoint.parent_path().parent_path().string());
}

FoundRun find_run(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.toml";
  if (!std::filesystem::exists(directory))
    fail(ErrorKind::Checkpoint,
         "{}: no such directory: --restore-path takes the directory of a run", directory.string());
  require_not_inside_run(directory);
  FoundRun found;
  if (std::filesystem::exists(file))
    found.config_toml = io::read_text(file, kMaxConfigBytes);
  else if (io::list_checkpoints(directory).empty())  // a checkpoint contains its configuration
    fail(ErrorKind::Io,
         "{}: is missing: --restore-path takes the directory of a run, which contains config.toml "
         "and checkpoints",
         file.string());
  found.lock.emplace(directory);
  // Remains of processes of this run that were killed while writing.
  io::remove_leftovers(directory, [](std::string_view) { return true; });
  const std::filesystem::path checkpoints = directory / "checkpoints";
  if (std::filesystem::is_directory(checkpoints)) io::retire_checkpoints(checkpoints, {});
  return found;
}

/// The options of the rest of a run. The checkpoint records those it was trained with; config.toml
/// may have been edited since, or removed.
Options options_of_rest(const Invocation& invocation, const std::filesystem::path& directory,
                        const std::string& config_toml, const io::CheckpointReader& checkpoint) {
  Options recorded = recorded_in(checkpoint);
  if (!config_toml.empty()) {
    const Options written = parse_config(config_toml, (directory / "config.toml").string());
    try {
      recorded = continued_options(written, recorded);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}; or is {} a checkpoint of another run?",
                                            error.what(), checkpoint.path().string()));
    }
  }
  return continued_options(invocation.options, recorded);
}

/// The option that sets the length of the schedule.
std::string_view horizon_option(const Options& options) {
  return options.find("lr-horizon") != nullptr ? "lr-horizon" : "lr-horizon-epochs";
}

/// What becomes of the learning rates of an extended run after their schedule has ended.
std::string rates_after_horizon(const PreparedRun& run, const Options& recorded) {
  const train::LearningRateConfig& rate = run.config.learning_rate;
  if (train::learning_rate_at(rate, rate.horizon, run.config.iterations) > 0.0)
    return fmt::format("its learning rates stay as they were, and constant from update {} on",
                       rate.horizon);
  const std::string_view option = horizon_option(run.options);
  return fmt::format(
      "its learning rates stay as they were: from update {} on the rate is 0 and the run learns "
      "nothing; {}",
      rate.horizon + 1,
      recorded.find(option) != nullptr
          ? fmt::format("start a new run with a longer --{0}, or with none", option)
          : fmt::format("without --{} the schedule is stretched to the new length", option));
}

/// What becomes of the learning rates of an extended run.
std::string rates_of_extended(const PreparedRun& run, const Options& recorded, std::int64_t done,
                              std::string_view unit, const std::string& before) {
  const train::LearningRateConfig& rate = run.config.learning_rate;
  const std::int64_t length = run.config.iterations;
  if (rate.kind == train::LearningRateKind::Piecewise)
    return "its learning rates drop at the same epochs as before";
  if (rate.horizon > 0) return rates_after_horizon(run, recorded);
  std::string told = fmt::format(
      "its learning-rate schedule is stretched to the new length, so that update {} has the rate "
      "{:.4g}",
      done + 1, train::learning_rate_at(rate, done, length));
  // A schedule that ends at 0 would leave nothing to learn with.
  train::LearningRateConfig ended = rate;
  ended.horizon = length;
  if (train::learning_rate_at(ended, length, length) > 0.0)
    told += fmt::format("; --lr-horizon{} {} keeps the rates as they were",
                        unit == "epochs" ? "-epochs" : "", before);
  return told;
}

/// Says so if a run is longer than it was when the checkpoint was written.
void note_extension(const io::CheckpointReader& checkpoint, PreparedRun& run) {
  const Options recorded = recorded_in(checkpoint);
  for (const char* name : {"epochs", "iterations", "max-iterations"}) {
    const Setting* before = recorded.find(name);
    const Setting* now = run.options.find(name);
    if (before == nullptr || now == nullptr || before->value == now->value) continue;
    const std::string_view unit = name == std::string_view("epochs") ? "epochs" : "updates";
    run.notices.push_back(
        fmt::format("The run is extended from {} to {} {}; {}", to_string(before->value),
                    to_string(now->value), unit,
                    rates_of_extended(run, recorded, checkpoint.header().iteration, unit,
                                      to_string(before->value))));
  }
}

}  // namespace

PreparedRun prepare_restoring(const Invocation& invocation, const comm::World& world) {
  const train::Together together(world);
  require_asked_alike(world, invocation);
  const MachineFacts machine = this_machine(world);
  std::filesystem::path directory;
  FoundRun found;
  together.run([&] {
    const std::optional<std::string> path = invocation.options.text("restore-path");
    if (!path) fail(ErrorKind::Usage, "--restore-path is missing: give the directory of a run");
    directory = *path;
  });
  together.lead([&] { found = find_run(directory); });
  found.config_toml = world.broadcast(found.config_toml);
  std::vector<std::string> complaints;  // the trainer repeats them
  const io::CheckpointReader newest = train::agreed_newest(world, directory, complaints);
  PreparedRun run;
  open_in_turn(world, [&] {
    const Options options = options_of_rest(invocation, directory, found.config_toml, newest);
    run = open_and_resolve(options, machine);
    device::require_threads(run.config.threads);
    check_recordable(options, run);
    run.config.run_directory = directory;
    place_trace(invocation.options, run.config);
    note_extension(newest, run);
    if (const auto known = facts_in(newest))
      keep_names(run.config.data.class_names, known->class_names);
  });
  run.lock = std::move(found.lock);
  require_alike(world, run);
  run.notices.insert(run.notices.begin(), invocation.notices.begin(), invocation.notices.end());
  return run;
}

namespace {

using Over = Options(const Options& given, const Options& recorded);

/// Recorded options, with those that only change how weights are validated. `over` combines the
/// others.
Options with_given(Options given, const Options& recorded, Over* over) {
  // Precision and batch size of a validation may differ: they do not affect the training.
  Options options;
  for (const char* name : {"precision", "half"}) {
    const Setting* setting = given.find(name);
    if (setting == nullptr) continue;
    options.set(*find_option(name), *setting);
    given.erase(name);
  }
  if (const Setting* batch = given.find("batch-size")) {
    if (given.find("valid-batch-size") == nullptr)
      options.set(*find_option("valid-batch-size"), *batch);
    given.erase("batch-size");
  }
  Options others = over(given, recorded);
  if (options.text("precision") == "32.32") others.erase("half");  // of the training
  return merge(std::move(options), others);
}

/// Requires that the images have the classes of the network that was recorded, whatever people call
/// them, and takes the names that only the checkpoint knows. Errors: Data.
void match_classes(PreparedRun& run, const io::CheckpointReader& checkpoint) {
  const auto known = facts_in(checkpoint);
  if (!known) return;
  constexpr std::string_view kRemedy =
      "give the data set of the run with --data-dir; class folders number their classes by name, "
      "so that none may be missing";
  const std::string place = run.data.facts.directory.string();
  if (known->classes != run.config.model.classes)
    fail(ErrorKind::Data, "{}: has images of {} classes, but {} has {}: {}", place,
         run.config.model.classes, checkpoint.path().string(), known->classes, kRemedy);
  std::vector<std::string>& names = run.config.data.class_names;
  keep_names(names, known->class_names);
  const std::vector<std::string> keys = class_keys(names);
  const std::vector<std::string> known_keys = class_keys(known->class_names);
  const auto [here, there] = std::ranges::mismatch(keys, known_keys);
  if (here != keys.end() && there != known_keys.end())
    fail(ErrorKind::Data, "{}: class {} is {} there, but {} in {}: {}", place, here - keys.begin(),
         *here, *there, checkpoint.path().string(), kRemedy);
}

}  // namespace

PreparedRun prepare_validation(const Invocation& invocation, const comm::World& world) {
  require_asked_alike(world, invocation);
  const MachineFacts machine = this_machine(world);
  std::vector<std::string> notices = invocation.notices;
  const std::optional<std::string> path = invocation.options.text("restore-path");
  std::optional<io::CheckpointReader> newest;
  if (path)
    newest.emplace(train::agreed_newest(world, *path, notices));
  else
    notices.push_back(
        fmt::format("no --restore-path: validating {}",
                    is_given_network(invocation.options) &&
                            invocation.options.value("init-weights") == Value(std::string("file"))
                        ? "the weights of the file"
                        : "untrained weights"));
  PreparedRun run;
  open_in_turn(world, [&] {
    Options options = newest
                          ? with_given(invocation.options, recorded_in(*newest), validated_options)
                          : validated_options(invocation.options);
    if (newest) drop_replicas(options, invocation.options, machine.ranks);
    // The launcher's number of ranks holds, unless another one was typed.
    if (machine.ranks > 0 && invocation.options.find("ranks") == nullptr) options.erase("ranks");
    run = open_and_resolve(options, machine, nullptr, Images::OfValidation);
    device::require_threads(run.config.threads);
    if (newest) match_classes(run, *newest);
  });
  require_alike(world, run);
  run.notices.insert(run.notices.begin(), notices.begin(), notices.end());
  return run;
}

void add_recorded_network(Options& options, const std::filesystem::path& run) {
  if (!io::is_onnx(options.text("model").value_or(""))) return;
  std::vector<std::string> complaints;
  options.network = recorded_in(io::open_newest(run, complaints)).network;
}

RecordedNetwork network_of(const io::CheckpointReader& checkpoint, const Options& given) {
  Options options = with_given(given, recorded_in(checkpoint), continued_options);
  options.erase("no-validation");
  impose(options, "validation-mode", std::string("all"));
  for (const OptionSpec& spec : option_table())
    if (spec.section == Section::Pipeline) options.erase(spec.name);
  options.erase("BN-span");
  options.erase("data-dir");
  DatasetFacts facts = published_facts(options);
  if (const auto known = facts_in(checkpoint)) {
    facts.classes = known->classes;
    facts.image = known->image;
    facts.class_names = known->class_names;
    if (known->preparation) facts.preparation = known->preparation;
  }
  Resolution resolution = resolve(options, facts, this_machine());
  models::Graph graph = models::build_model(resolution.config.model);
  for (const models::Parameter& parameter : graph.parameters) {
    const io::TensorInfo* info = checkpoint.find(parameter.name);
    if (info == nullptr || info->shape != parameter.shape)
      fail(ErrorKind::Checkpoint, "{}: {} is not {} of {} of the recorded options",
           checkpoint.path().string(), info == nullptr ? "nothing" : io::shape_text(info->shape),
           parameter.name, graph.name);
  }
  return {.config = std::move(resolution.config), .graph = std::move(graph)};
}

io::Preparation measured_preparation(const io::CheckpointReader& checkpoint, const Options& given) {
  const Options recorded = recorded_in(checkpoint);
  const auto directory =
      given.text("data-dir") ? given.text("data-dir") : recorded.text("data-dir");
  if (!directory)
    fail(ErrorKind::Usage,
         "{}: does not say by which mean and deviation its images are normalized: give --data-dir "
         "with its training images",
         checkpoint.path().string());
  const bool ten = recorded.text("dataset") == "cifar-10";
  return io::preparation_of(
      io::measure_cifar(*directory, ten ? io::CifarKind::Cifar10 : io::CifarKind::Cifar100));
}

}  // namespace millrace::cli
