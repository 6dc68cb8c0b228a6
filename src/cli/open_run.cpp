// SPDX-License-Identifier: Apache-2.0
#include "cli/open_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>

#include "cli/cluster.hpp"
#include "cli/command_line.hpp"
#include "cli/initial_network.hpp"
#include "cli/launch.hpp"
#include "cli/open_run_parts.hpp"
#include "cli/planning.hpp"
#include "cli/resolve.hpp"
#include "cli/run_name.hpp"
#include "cli/smoke.hpp"
#include "cli/training_notes.hpp"
#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "core/sha256.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "io/data/dataset_kinds.hpp"
#include "millrace_version.hpp"
#include "models/graph_json.hpp"
#include "ops/backend.hpp"
#include "pipeline/schedule/schedule.hpp"
#include "run/recipes.hpp"
#include "train/agreement.hpp"
#include "train/setup.hpp"
#include "train/warm_start.hpp"

namespace millrace::cli {
namespace {

using Initial = std::optional<InitialNetwork>;

/// The options of a training, reduced with --smoke.
Patch training_options(const Invocation& invocation, const Initial& initial,
                       std::vector<std::string>& notices) {
  notices.insert(notices.end(), invocation.notices.begin(), invocation.notices.end());
  Patch options =
      for_all_workers(invocation.options, cluster_of(invocation.options, invocation.environment));
  if (initial) options = with_initial_network(options, *initial);
  if (options.flag("smoke")) return smoke_options(options, notices);
  const std::vector<std::string> rates = rates_of_other_batch(options);
  notices.insert(notices.end(), rates.begin(), rates.end());
  return options;
}

/// Opens the data of a training and resolves its options.
OpenedRun open_training(const Invocation& invocation, const Initial& initial,
                        const MachineFacts& machine, const std::string& decided) {
  std::vector<std::string> notices;
  const Patch options = training_options(invocation, initial, notices);
  std::function<Patch(std::int64_t)> for_images;
  if (invocation.for_images)
    for_images = [&](std::int64_t images) {
      Invocation fitted = invocation;
      fitted.options = invocation.for_images(images);
      std::vector<std::string> told_already;
      return training_options(fitted, initial, told_already);
    };
  OpenedRun run = open_and_resolve(options, machine, decided, for_images);
  check_recordable(options, run);
  if (options.flag("pipeline") && run.config.pipeline.ranges.size() < 2)
    fail(ErrorKind::Usage, "--pipeline needs more than one stage: give --shards");
  if (options.flag("distributed") && !invocation.environment("TF_CONFIG"))
    notices.emplace_back("--distributed without TF_CONFIG: all ranks run on this machine");
  // Only for trainings: validation does not use the learning rate.
  if (std::string warmup = notice_of_warmup(run.config); !warmup.empty())
    notices.push_back(std::move(warmup));
  for (std::string& doubt : doubts_about_training(options, run.config))
    notices.push_back(std::move(doubt));
  if (std::string line =
          initial ? other_classes(invocation.options, *initial, run.config.data.class_names) : "";
      !line.empty())
    notices.push_back(std::move(line));
  if (std::string line =
          rates_to_propose(invocation.options, initial ? initial->recorded : Patch{}, run.config);
      !line.empty())
    notices.push_back(std::move(line));
  run.notices.insert(run.notices.begin(), notices.begin(), notices.end());
  return run;
}

/// The command and the options that were given, wherever they were given. Rank 0 decides where the
/// run lies.
std::string asked_now(const Invocation& invocation) {
  std::string asked = fmt::format("command = {}\n", invocation.command);
  for (const auto& [name, setting] : invocation.options.settings())
    if (name != "config" && name != "dialect" && name != "run-dir")
      asked += fmt::format("{} = {}\n", name, to_string(setting.value));
  return asked;
}

/// The schedule, one line for each device.
std::string rows_of(const pipeline::Schedule& schedule) {
  std::string rows;
  int device = 0;
  for (const std::string& row : split_list(pipeline::to_csv(schedule), '\n'))
    rows += fmt::format("device {} = {}\n", device++, row);
  return rows;
}

/// What the data that was found sets besides the options: the name of the set, and no validation.
struct FoundData {
  std::string dataset;
  bool only_training = false;

  void impose_on(Patch& options) const {
    if (!dataset.empty()) impose(options, "dataset", dataset);
    if (only_training) impose(options, "validation-mode", std::string("none"));
  }
};

/// Whether `request` wants validation images of a folder that holds images for training alone.
bool holds_only_training(const DataRequest& request) {
  const auto storage = [&](io::Split split) {
    return io::storage_in(request.files.directory, split, io::PackedFile::Counts);
  };
  return request.source == run::ImageSource::Files && request.files.validation &&
         holds_photos(request.dataset) && storage(io::Split::Train) != io::Storage::None &&
         storage(io::Split::Validation) == io::Storage::None;
}

}  // namespace

OpenedRun open_and_resolve(Patch options, const MachineFacts& machine, const std::string& decided,
                           const std::function<Patch(std::int64_t images)>& for_images,
                           Images images, std::optional<std::int64_t> outputs) {
  FoundData found{.dataset = find_dataset(options)};
  found.impose_on(options);
  DataRequest request = data_request(options);
  if (outputs && !request.files.open.classes_are_told) request.files.open.classes = *outputs;
  // In a dialect nobody asked for validation by its name here.
  if (for_images && !options.text("validation-mode") && holds_only_training(request)) {
    found.only_training = true;
    request.files.validation = false;
  }
  request.files.train = images == Images::All;
  request.files.cached_bytes /= std::max(1, machine.local_ranks);
  Datasets data = open_datasets(request);
  if (found.only_training)
    data.notices.push_back(fmt::format("{} holds no validation images: this run does not validate",
                                       request.files.directory.string()));
  if (for_images) {
    options = for_images(data.facts.train_size);
    found.impose_on(options);
  }
  OpenedRun run{decided.empty() ? resolve(options, data.facts, machine)
                                : taken_over(decided, options, data.facts, machine),
                std::move(options), machine, std::move(data)};
  run.notices.insert(run.notices.end(), run.data.notices.begin(), run.data.notices.end());
  std::shared_ptr<const io::Dataset>& validation = run.data.validation;
  if (validation && run.config.data.validation_size < validation->size())
    validation = io::part_of_set(validation, run.config.data.validation_size);
  return run;
}

void check_recordable(const Patch& options, const OpenedRun& run) {
  if (run.config.tensorboard && summaries_of_tools() == nullptr)
    fail(ErrorKind::Usage,
         "`enable-tensorboard`: this program was built without the tool that writes event files: "
         "see MILLRACE_TOOLS");
  const bool is_recorded = run.config.logging.keeps || run.config.pipeline.ranks.ranks > 1;
  if (!is_recorded || is_utf8(to_toml(run.config))) return;
  std::string culprit = "an option";
  for (const auto& [name, setting] : options.settings())
    if (const auto* const text = std::get_if<std::string>(&setting.value);
        text != nullptr && !is_utf8(*text))
      culprit = fmt::format("{} '{}'", setting.where, printable(*text));
  fail(ErrorKind::Usage,
       "{} is not valid UTF-8, which config.toml, checkpoints and ranks require: rename it, or use "
       "a link with a UTF-8 name",
       culprit);
}

OpenedRun open_in_turn(const comm::World& world,
                       const std::function<OpenedRun(const std::string& decided)>& open) {
  enum class Turn { Rank0, FirstOfMachine, Rest };
  const Turn own = world.rank() == 0         ? Turn::Rank0
                   : world.local_rank() == 0 ? Turn::FirstOfMachine
                                             : Turn::Rest;
  const training::FailTogether together(world);
  OpenedRun run;
  std::string decided;
  for (const Turn turn : {Turn::Rank0, Turn::FirstOfMachine, Turn::Rest}) {
    together.run([&] {
      if (turn == own) run = open(decided);
    });
    if (turn == Turn::Rank0 && world.size() > 1)
      decided = world.broadcast(own == turn ? handed_over(run.config) : std::string());
  }
  return run;
}

void place_trace(const Patch& options, run::Run& config) {
  if (options.text("trace") || config.trace.empty()) return;
  if (config.run_directory.empty())
    fail(ErrorKind::Usage,
         "--gc-profile writes to the run directory, but --no-logs creates none: give --trace FILE");
  config.trace = config.run_directory / config.trace;
}

void require_alike(const comm::World& world, const OpenedRun& run) {
  if (world.size() == 1 || must_launch(run.config, world)) return;
  const pipeline::PipelinePlan& plan = run.config.pipeline;
  std::vector<training::Fact> facts = {
      {"options", to_toml(run.config), "start all ranks with the same options"},
      {"schedule", rows_of(plan.is_joint() ? plan.joint : plan.schedule),
       "run the same build on all ranks"},
      {"build", fmt::format("millrace {} ({})", kVersion, kCommit),
       "run the same build on all ranks"},
      {"kernels", device::describe_arithmetic(),
       "set MILLRACE_MAX_ISA on all ranks to a level that each supports, and install the same "
       "oneDNN"}};
  if (const models::GivenNetwork& given = run.config.model.given; given.graph) {
    const std::string text = to_json(*given.graph).dump();
    Sha256 digest;
    digest.update(std::as_bytes(std::span(text)));
    facts.push_back({"network", digest.hex_digest(), "give all ranks the same file with --model"});
  }
  for (const auto& [name, images] :
       {std::pair{"training images", run.data.train}, {"validation images", run.data.validation}})
    facts.push_back({name, images ? io::describe_content(*images) : "none",
                     "give all ranks the same data set with --data-dir", ErrorKind::Data});
  training::require_alike(world, facts);
}

void require_asked_alike(const comm::World& world, const Invocation& invocation) {
  training::require_alike(
      world, {{"options", asked_now(invocation), "start all ranks with the same options"}});
}

void drop_length(Patch& options) {
  for (const char* name :
       {"epochs", "max-iterations", "warmup", "warmup-epochs", "warmup-iterations", "lr-horizon",
        "lr-horizon-epochs", "no-validation", "epochs-between-evals", "iterations-between-evals",
        "valid-batch-size", "max-eval-steps"})
    options.erase(name);
}

std::vector<std::string> notices_of(const OpenedRun& run, const Invocation& invocation) {
  std::vector<std::string> lines = run.notices;
  lines.insert(lines.end(), run.layout.notices.begin(), run.layout.notices.end());
  return respelled(std::move(lines), run.options, invocation.spellings);
}

void record_options(const OpenedRun& run) {
  const std::filesystem::path& directory = run.config.run_directory;
  if (!directory.empty())
    io::write_file_atomically(directory / "config.toml", training::config_file_text(run.config));
}

void print_lines(std::FILE* out, const std::vector<std::string>& lines) {
  for (const std::string& line : lines)
    fmt::print(out, "{}\n", printable(respelled(line, Patch())));
}

void print_notices(const Invocation& invocation, const std::vector<std::string>& lines) {
  print_lines(stderr, respelled(lines, invocation.options, invocation.spellings));
  if (verbosity_of(invocation.options) == run::Verbosity::Verbose)
    print_lines(stderr, environment_lines());
}

namespace {

/// The data and the options of a training that could start here. Collective.
OpenedRun open_checked(const Invocation& invocation, const Initial& initial,
                       const comm::World& world) {
  const MachineFacts machine = this_machine(world);
  return open_in_turn(world, [&](const std::string& decided) {
    OpenedRun run = open_training(invocation, initial, machine, decided);
    device::require_threads(run.config.threads);  // before anything is written
    (void)training::gpu_of(run.config, world.rank());
    return run;
  });
}

/// Finds out whether the trace can be written, and leaves nothing there.
void require_trace_file(const std::filesystem::path& trace) {
  const std::filesystem::path folder = trace.parent_path();
  const std::vector<std::filesystem::path> missing = missing_directories(folder);
  try {
    if (!folder.empty()) std::filesystem::create_directories(folder);
    (void)io::StagedFile(trace);
  } catch (...) {
    remove_empty(missing);
    throw;
  }
  remove_empty(missing);
}

}  // namespace

void require_export(const Patch& options) {
  const std::string folder = options.text("export-dir").value_or("");
  if (folder.empty()) return;
  try {
    foreign_files().require_export(folder);
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", options.find("export-dir")->where, error.what());
  }
}

namespace {

/// What a start needs besides options and data: found out before anything is written.
void require_start(const Invocation& invocation, const Initial& initial, const OpenedRun& run,
                   training::WeightCheck check = training::WeightCheck::Shapes) {
  if (invocation.options.text("trace")) require_trace_file(run.config.trace);
  require_export(run.options);
  training::require_weights(
      run.config, foreign_files(), check,
      initial ? asking_for_another(invocation.options, *initial, run.config.data.dataset) : "");
}

}  // namespace

OpenedRun open_new_run(const Invocation& invocation, const comm::World& world) {
  const training::FailTogether together(world);
  require_asked_alike(world, invocation);
  const Initial initial = initial_network(invocation.options, world);
  OpenedRun run = open_checked(invocation, initial, world);
  if (must_launch(run.config, world)) {
    if (world.size() == 1) require_start(invocation, initial, run);
    return run;
  }
  require_alike(world, run);
  together.lead([&] {
    require_start(invocation, initial, run);
    if (const auto folder = run.config.trace.parent_path(); !folder.empty())
      std::filesystem::create_directories(folder);
    const std::filesystem::path directory = create_run_directory(run.config, kVersion);
    run.config.run_directory = directory;
    if (directory.empty()) return;
    run.lock.emplace(directory);
    record_options(run);
  });
  run.config.run_directory = world.broadcast(run.config.run_directory.string());
  run.is_new = true;
  together.run([&] { place_trace(invocation.options, run.config); });
  return run;
}

OpenedRun open_checked_run(const Invocation& invocation, const comm::World& world) {
  require_asked_alike(world, invocation);
  const Initial initial = initial_network(invocation.options, world);
  OpenedRun run = open_checked(invocation, initial, world);
  training::FailTogether(world).lead([&] {
    require_start(invocation, initial, run, training::WeightCheck::Values);
    require_run_directory(run.config, kVersion);
  });
  run.config = saving(std::move(run.config));
  place_trace(invocation.options, run.config);
  return run;
}

bool must_launch(const run::Run& config, const comm::World& world) {
  return config.pipeline.ranks.ranks != world.size();
}

}  // namespace millrace::cli
