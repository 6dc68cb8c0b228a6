// SPDX-License-Identifier: Apache-2.0
//
// Runs and checkpoints that were recorded: what a restore continues and a validation reads.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/foreign_files.hpp"
#include "io/tensor_checks.hpp"
#include "models/registry.hpp"
#include "run/learning_rate.hpp"
#include "train/agreement.hpp"
#include "train/network_facts.hpp"
#include "train/open_run.hpp"
#include "train/recorded_classes.hpp"
#include "train/resolve.hpp"

namespace millrace::training {
namespace {

/// What a checkpoint says of its network.
std::optional<NetworkFacts> facts_in(const io::CheckpointReader& checkpoint) {
  return parse_facts(checkpoint.header().network, (checkpoint.path() / "manifest.json").string());
}

std::optional<std::int64_t> outputs_of(const std::optional<NetworkFacts>& facts) {
  return facts ? std::optional(facts->classes) : std::nullopt;
}

}  // namespace

DatasetFacts recorded_facts(const Patch& options, const std::optional<NetworkFacts>& recorded) {
  DatasetFacts facts = published_facts(options);
  if (!recorded) return facts;
  facts.classes = recorded->classes;
  facts.image = recorded->image;
  facts.class_names = recorded->class_names;
  if (recorded->preparation) facts.preparation = recorded->preparation;
  return facts;
}

Patch recorded_in(const io::CheckpointReader& checkpoint) {
  Patch options =
      parse_config(checkpoint.header().config_toml, (checkpoint.path() / "manifest.json").string());
  if (const auto facts = facts_in(checkpoint)) options.network = facts->given.graph;
  return options;
}

namespace {

/// What rank 0 found in the directory of a run to be restored.
struct FoundRun {
  std::optional<io::RunLock> lock;
  std::string config_toml;
};

/// The run that continues for `given`: itself, a folder that a program has saved checkpoints in,
/// the run of the checkpoints in it, or the run of which it is the newest checkpoint. Errors: Usage
/// for another checkpoint, as no run would begin with it.
std::filesystem::path run_of(const std::filesystem::path& given) {
  const std::vector<std::filesystem::path> found = io::list_checkpoints(given);
  if (found.empty() || std::filesystem::is_directory(given / "checkpoints")) return given;
  const std::filesystem::path checkpoint = std::filesystem::canonical(found.back());
  const bool is_one = std::filesystem::equivalent(given, checkpoint);
  if (!is_one && checkpoint.parent_path().filename() != "checkpoints") return given;
  std::filesystem::path run = checkpoint.parent_path().parent_path();
  const std::vector<std::filesystem::path> all = io::list_checkpoints(run);
  if (!all.empty() && std::filesystem::equivalent(all.back(), checkpoint)) return run;
  fail(ErrorKind::Usage,
       "{}: is {}: give the directory of a run, or start a new one with these weights: train "
       "`init-path`",
       given.string(),
       all.empty() ? "a checkpoint without a run (its folder can be continued as one)"
                   : fmt::format("an older checkpoint of the run in {}, which continues from {}",
                                 run.string(), all.back().filename().string()));
}

FoundRun find_run(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.toml";
  io::require_recorded_directory(directory);
  // A checkpoint contains its configuration.
  if (!std::filesystem::exists(file) && io::list_checkpoints(directory).empty())
    fail(ErrorKind::Checkpoint,
         "{}: contains no checkpoint and no config.toml: give the directory of a run",
         directory.string());
  FoundRun found;
  found.lock.emplace(directory);
  // Only now: the process that held the lock may have written it again.
  if (std::filesystem::exists(file)) found.config_toml = io::read_text(file, run::kMaxConfigBytes);
  // Remains of processes of this run that were killed while writing.
  io::remove_leftovers(directory, [](std::string_view) { return true; });
  const std::filesystem::path checkpoints = directory / "checkpoints";
  if (std::filesystem::is_directory(checkpoints)) io::retire_checkpoints(checkpoints, {});
  return found;
}

/// The options of the rest of a run. The checkpoint records those it was trained with; config.toml
/// may have been edited since, or removed.
Patch options_of_rest(const Patch& given, const std::filesystem::path& directory,
                      const std::string& config_toml, const io::CheckpointReader& checkpoint) {
  Patch recorded = recorded_in(checkpoint);
  if (!config_toml.empty()) {
    const Patch written = parse_config(config_toml, (directory / "config.toml").string());
    try {
      recorded = continued_options(written, recorded);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}; or is {} a checkpoint of another run?",
                                            error.what(), checkpoint.path().string()));
    }
  }
  return continued_options(given, recorded);
}

/// Whether its images are neither in files nor made here.
bool has_own_images(const io::CheckpointReader& checkpoint) {
  const Patch recorded = recorded_in(checkpoint);
  return run::image_source(recorded) == run::ImageSource::Files &&
         recorded.find("data-dir") == nullptr && !checkpoint.header().data.empty();
}

/// When a run with these options ends.
struct RunEnds {
  std::int64_t by_length = 0;  ///< `epochs` or `iterations`
  std::int64_t last = 0;       ///< whichever ends first, with `max-iterations`
  std::int64_t horizon = 0;    ///< when its learning rates are those of its end
};

RunEnds ends_of(const Patch& options, std::int64_t updates_per_epoch) {
  const auto in_updates = [&](double epochs) {
    return static_cast<std::int64_t>(epochs * static_cast<double>(updates_per_epoch));
  };
  RunEnds ends;
  if (const auto updates = options.integer("iterations"))
    ends.by_length = *updates;
  else
    ends.by_length = in_updates(options.real("epochs").value_or(0.0));
  ends.last = std::min(ends.by_length, options.integer("max-iterations").value_or(ends.by_length));
  const auto horizon = options.real("lr-horizon-epochs");
  ends.horizon =
      options.integer("lr-horizon").value_or(horizon ? in_updates(*horizon) : ends.by_length);
  return ends;
}

/// What becomes of the learning rates of an extended run after their schedule has ended.
std::string rates_after_horizon(const OpenedRun& run, const Patch& recorded, std::int64_t horizon) {
  const run::LearningRateConfig& rate = run.config.learning_rate;
  if (run::learning_rate_at(rate, horizon, run.config.iterations) > 0.0)
    return fmt::format("its learning rates stay as they were, and constant from update {} on",
                       horizon);
  const std::string_view option =
      run.options.find("lr-horizon") != nullptr ? "lr-horizon" : "lr-horizon-epochs";
  return fmt::format(
      "its learning rates stay as they were: from update {} on the rate is 0 and weights stay as "
      "they are (only the moving statistics of norms go on); {}",
      horizon + 1,
      recorded.find(option) != nullptr
          ? fmt::format("start a new run with a longer `{0}`, or with none", option)
          : fmt::format("without `{}` the schedule is stretched to the new length", option));
}

/// What becomes of the learning rates of an extended run. `recorded` are the options before.
std::string rates_of_extended(const OpenedRun& run, std::int64_t done, const Patch& recorded) {
  const run::Run& config = run.config;
  const run::LearningRateConfig& rate = config.learning_rate;
  if (rate.kind == run::LearningRateKind::Piecewise)
    return "its learning rates drop at the same epochs as before";
  const std::int64_t horizon = ends_of(run.options, config.iterations_per_epoch).horizon;
  if (horizon == ends_of(recorded, config.iterations_per_epoch).horizon)
    return horizon < config.iterations ? rates_after_horizon(run, recorded, horizon)
                                       : "its learning rates stay as they were";
  const bool limited = run.options.find("max-iterations") != nullptr;
  std::string told = fmt::format(
      "its learning-rate schedule is stretched to {}, so that update {} has the rate {:.4g}",
      limited ? fmt::format("`epochs` {}", to_string(run.options.find("epochs")->value))
              : "the new length",
      done + 1, run::learning_rate_at(rate, done, config.iterations));
  // A schedule that ends at 0 would leave nothing to learn with.
  run::LearningRateConfig ended = rate;
  ended.horizon = config.iterations;
  if (run::learning_rate_at(ended, config.iterations, config.iterations) <= 0.0) return told;
  const bool counted = recorded.find("iterations") != nullptr;
  return told + fmt::format("; `lr-horizon{}` {} keeps the rates as they were",
                            counted ? "" : "-epochs",
                            to_string(recorded.find(counted ? "iterations" : "epochs")->value));
}

/// Errors: Usage, naming the option that ends the run.
[[noreturn]] void refuse_same_end(const Patch& options, const RunEnds& now, const RunEnds& before) {
  const auto length = to_string(options.find("epochs")->value);
  const auto limit = to_string(options.value("max-iterations"));
  fail(ErrorKind::Usage,
       "`epochs` {} and `max-iterations` {}: the run would end after {} updates, and without these "
       "changes after {}: give more with `{}` to extend it",
       length, limit, now.last, before.last,
       now.last < now.by_length ? "max-iterations" : "epochs");
}

/// Says so if a run is longer than it was when the checkpoint was written. Errors: Usage if another
/// length does not make it longer.
void note_extension(const io::CheckpointReader& checkpoint, OpenedRun& run) {
  const Patch recorded = recorded_in(checkpoint);
  const bool limited = run.options.find("max-iterations") != nullptr;
  const bool changed =
      std::ranges::any_of(run::difference(recorded, run.options), [](const run::Difference& other) {
        return other.now != nullptr && run::is_length(other.field->name);
      });
  if (!changed) return;
  const RunEnds before = ends_of(recorded, run.config.iterations_per_epoch);
  const RunEnds now = ends_of(run.options, run.config.iterations_per_epoch);
  if (limited && now.last <= before.last) refuse_same_end(run.options, now, before);
  const bool counted = limited || recorded.find("iterations") != nullptr;
  const auto epochs = [](const Patch& options) { return to_string(options.find("epochs")->value); };
  run.notices.push_back(fmt::format(
      "The run is extended from {} to {} {}; {}",
      counted ? fmt::format("{}", before.last) : epochs(recorded),
      counted ? fmt::format("{}", now.last) : epochs(run.options), counted ? "updates" : "epochs",
      rates_of_extended(run, checkpoint.header().iteration, recorded)));
  if (std::string warmup = notice_of_warmup(run.config); !warmup.empty())
    run.notices.push_back(std::move(warmup));
}

}  // namespace

OpenedRun open_restored_run(const RunRequest& request, const comm::World& world) {
  const FailTogether together(world);
  require_asked_alike(world, request);
  const MachineFacts machine = machine_for(request, world);
  std::filesystem::path directory;
  FoundRun found;
  together.run([&] {
    const std::optional<std::string> path = request.options.text("restore-path");
    if (!path) fail(ErrorKind::Usage, "`restore-path` is missing: give the directory of a run");
    directory = *path;
  });
  together.lead([&] {
    directory = run_of(directory);
    found = find_run(directory);
  });
  directory = world.broadcast(directory.string());
  found.config_toml = world.broadcast(found.config_toml);
  std::vector<std::string> complaints;  // the trainer repeats them
  const io::CheckpointReader newest = agreed_newest(world, directory, complaints);
  OpenedRun run = open_in_turn(world, [&](const std::string& decided) {
    if (!request.train && has_own_images(newest))
      fail(ErrorKind::Data,
           "{}: was trained on images of a program's own, {}: only that program can continue it, "
           "by Training::load(), or by restore() with these images",
           newest.path().string(), newest.header().data);
    const std::optional<NetworkFacts> known = facts_in(newest);
    const auto rest = [&](const Patch& given) {
      return options_of_rest(given, directory, found.config_toml, newest);
    };
    OpenedRun opened =
        request.for_images
            ? open_and_resolve(
                  located_options(request.options, recorded_in(newest)), machine, decided, request,
                  [&](std::int64_t images) { return rest(request.for_images(images)); }, Reads::All,
                  outputs_of(known))
            : open_and_resolve(rest(request.options), machine, decided, request, nullptr,
                               Reads::All, outputs_of(known));
    require_threads(request, opened.config);
    check_recordable(opened.options, opened);
    opened.config.run_directory = directory;
    place_trace(request.options, opened.config);
    note_extension(newest, opened);
    if (known) match_classes(opened, *known, newest.path(), ImagesFor::Training);
    return opened;
  });
  run.lock = std::move(found.lock);
  run.done = newest.header().iteration;
  require_alike(world, run);
  together.lead([&] { require_export(run.options); });
  run.notices.insert(run.notices.begin(), request.notices.begin(), request.notices.end());
  return run;
}

namespace {

using Over = Patch(const Patch& given, const Patch& recorded);

/// Recorded options, with those that only change how weights are validated. `over` combines the
/// others.
Patch with_given(Patch given, const Patch& recorded, Over* over) {
  // Precision, seed and batch size of a validation may differ: they do not affect the training.
  Patch options;
  for (const char* name : {"precision", "half", "seed"}) {
    const Setting* setting = given.find(name);
    if (setting == nullptr) continue;
    options.set(*find_field(name), *setting);
    given.erase(name);
  }
  if (const Setting* batch = given.find("batch-size")) {
    if (given.find("valid-batch-size") == nullptr)
      options.set(*find_field("valid-batch-size"), *batch);
    given.erase("batch-size");
  }
  Patch others = over(given, recorded);
  if (options.text("precision") == "32.32") others.erase("half");  // of the training
  return merge(std::move(options), others);
}

/// How much a validation of random images computes, which have the size of the data set that they
/// stand for. Nothing for images from files.
std::vector<std::string> length_of_random(const OpenedRun& run, const Patch& given) {
  if (run.config.data.source == run::ImageSource::Files) return {};
  const bool shortened = given.integer("max-eval-steps").value_or(0) > 0;
  return {fmt::format("validating {} random images{}", run.config.data.validation_size,
                      shortened ? ""
                                : fmt::format("; `max-eval-steps` N takes N batches of {} alone",
                                              run.config.validation_batch_size))};
}

/// Errors: Usage, if the options name neither weights nor images.
void require_something(const Patch& options) {
  for (const char* name : {"restore-path", "model", "dataset", "data-dir"})
    if (options.find(name) != nullptr) return;
  fail(ErrorKind::Usage,
       "nothing to validate: give the directory of a run, or a checkpoint, with `restore-path`");
}

}  // namespace

OpenedRun open_validated_run(const RunRequest& request, const comm::World& world) {
  require_asked_alike(world, request);
  const MachineFacts machine = machine_for(request, world);
  std::vector<std::string> notices = request.notices;
  const std::optional<std::string> path = request.options.text("restore-path");
  FailTogether(world).run([&] { require_something(request.options); });
  std::optional<io::CheckpointReader> newest;
  if (path)
    newest.emplace(agreed_newest(world, *path, notices));
  else
    notices.push_back(
        fmt::format("no `restore-path`: validating {}",
                    is_given_network(request.options) &&
                            request.options.value("init-weights") == Value(std::string("file"))
                        ? "the weights of the file"
                        : "untrained weights"));
  OpenedRun run = open_in_turn(world, [&](const std::string& decided) {
    const auto known = newest ? facts_in(*newest) : std::nullopt;
    Patch options = newest
                        ? with_given(request.options, recorded_in(*newest), run::validated_options)
                        : validated_options(request.options);
    if (newest) drop_replicas(options, request.options, machine.ranks);
    // The launcher's number of ranks holds, unless another one was typed.
    if (machine.ranks > 0 && request.options.find("ranks") == nullptr) options.erase("ranks");
    const bool own = newest && has_own_images(*newest) && !request.train;
    if (own && !(known && known->preparation))
      fail(ErrorKind::Data,
           "{}: was trained on floats of a program's own, {}: only that program can validate it, "
           "with these images",
           newest->path().string(), newest->header().data);
    OpenedRun opened =
        open_and_resolve(options, machine, decided, request, nullptr, Reads::Validation,
                         outputs_of(known), own ? known->preparation : std::nullopt);
    require_threads(request, opened.config);
    if (known) match_classes(opened, *known, newest->path(), ImagesFor::Validation);
    return opened;
  });
  require_alike(world, run);
  std::ranges::move(length_of_random(run, request.options), std::back_inserter(notices));
  run.notices.insert(run.notices.begin(), notices.begin(), notices.end());
  return run;
}

void add_recorded_network(Patch& options, const std::filesystem::path& run) {
  if (!io::is_network_file(options.text("model").value_or(""))) return;
  std::vector<std::string> complaints;
  options.network = recorded_in(io::open_newest(run, complaints)).network;
}

Patch options_for_use(Patch recorded) {
  for (const Field& spec : run::field_table())
    if (spec.section == Section::Pipeline) recorded.erase(spec.name);
  for (const char* name : {"BN-span", "data-dir", "no-validation"}) recorded.erase(name);
  impose(recorded, "validation-mode", std::string("all"));
  return recorded;
}

RecordedNetwork network_of(const io::CheckpointReader& checkpoint, const Patch& given) {
  const Patch options =
      options_for_use(with_given(given, recorded_in(checkpoint), run::continued_options));
  Resolution resolution =
      resolve(options, recorded_facts(options, facts_in(checkpoint)), this_machine());
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

run::Preparation measured_preparation(const io::CheckpointReader& checkpoint, const Patch& given) {
  const Patch recorded = recorded_in(checkpoint);
  const auto directory =
      given.text("data-dir") ? given.text("data-dir") : recorded.text("data-dir");
  if (!directory)
    fail(ErrorKind::Usage,
         "{}: does not say by which mean and deviation its images are normalized: give `data-dir` "
         "with its training images",
         checkpoint.path().string());
  const io::DatasetKind& kind = io::dataset_kind(*recorded.text("dataset"));
  return kind
      .open({.directory = *directory,
             .validation = false,
             .normalisation = io::CifarNormalisation::Dataset})
      .train->preparation()
      .value();
}

}  // namespace millrace::training
