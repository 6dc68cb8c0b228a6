// SPDX-License-Identifier: Apache-2.0
#include "train/open_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>

#include "core/counted.hpp"
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
#include "train/initial_network.hpp"
#include "train/resolve.hpp"
#include "train/run_name.hpp"
#include "train/setup.hpp"
#include "train/warm_start.hpp"

namespace millrace::training {
namespace {

using Initial = std::optional<InitialNetwork>;

/// The options of a new training.
Patch training_options(const RunRequest& request, const Patch& given, const Initial& initial,
                       std::vector<std::string>& notices) {
  notices = request.notices;
  Patch options = initial ? with_initial_network(given, *initial) : given;
  if (request.reduce) return request.reduce(options, notices);
  const std::vector<std::string> rates = rates_of_other_batch(options);
  notices.insert(notices.end(), rates.begin(), rates.end());
  return options;
}

/// Opens the data of a training and resolves its options.
OpenedRun open_training(const RunRequest& request, const Initial& initial,
                        const MachineFacts& machine, const std::string& decided) {
  std::vector<std::string> notices;
  const Patch options = training_options(request, request.options, initial, notices);
  std::function<Patch(std::int64_t)> for_images;
  if (request.for_images)
    for_images = [&](std::int64_t images) {
      std::vector<std::string> told_already;
      return training_options(request, request.for_images(images), initial, told_already);
    };
  OpenedRun run = open_and_resolve(options, machine, decided, request, for_images);
  check_recordable(options, run);
  if (options.flag("pipeline") && run.config.pipeline.ranges.size() < 2)
    fail(ErrorKind::Usage, "`pipeline` needs more than one stage: give `shards`");
  // Only for trainings: validation does not use the learning rate.
  const auto note = [&](std::string line) {
    if (!line.empty()) notices.push_back(std::move(line));
  };
  note(notice_of_warmup(run.config));
  for (std::string& doubt : doubts_about_training(options, run.config)) note(std::move(doubt));
  if (initial) note(other_classes(request.options, *initial, run.config.data.class_names));
  note(rates_to_propose(request.options, initial ? initial->recorded : Patch{}, run.config));
  run.notices.insert(run.notices.begin(), notices.begin(), notices.end());
  return run;
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
                           const RunRequest& request,
                           const std::function<Patch(std::int64_t images)>& for_images, Reads reads,
                           std::optional<std::int64_t> outputs,
                           const std::optional<run::Preparation>& preparation) {
  FoundData found{.dataset = request.train ? "" : find_dataset(options),
                  .only_training = request.train && !request.validation};
  found.impose_on(options);
  Datasets data = with_facts({.train = request.train, .validation = request.validation});
  if (!request.train) {
    DataRequest wanted = data_request(options);
    if (preparation) prepare_as(*preparation, wanted);
    if (outputs && !wanted.files.open.classes_are_told) wanted.files.open.classes = *outputs;
    // In a dialect nobody asked for validation by its name here.
    if (for_images && !options.text("validation-mode") && holds_only_training(wanted)) {
      found.only_training = true;
      wanted.files.validation = false;
    }
    wanted.files.train = reads == Reads::All;
    wanted.files.cached_bytes /= std::max(1, machine.local_ranks);
    data = open_datasets(wanted, request.reports);
    if (found.only_training)
      data.notices.push_back(
          fmt::format("{} holds no validation images: this run does not validate",
                      wanted.files.directory.string()));
  }
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
  if (request.train) {
    run.config.data.directory.clear();  // so that what is recorded names no other images
    adapt_to(run.config, *request.train, request.validation.get());
  }
  if (request.check) request.check(run.config);
  return run;
}

MachineFacts machine_for(const RunRequest& request, const comm::World& world) {
  MachineFacts machine = this_machine(world);
  if (request.threads == 0) return machine;
  machine.threads = request.threads;  // of a program whose processes are there
  machine.ranks = world.size();
  machine.local_ranks = world.local_size();
  return machine;
}

void require_threads(const RunRequest& request, const run::Run& config) {
  if (request.threads == 0) return device::require_threads(config.threads);
  if (request.threads != config.threads)
    fail(ErrorKind::Config,
         "`threads-per-device` {}: the Runtime has {}: make one with that number, or leave it out",
         config.threads, counted(request.threads, "thread"));
}

void check_recordable(const Patch& options, const OpenedRun& run) {
  if (run.config.tensorboard && built_guests().summaries == nullptr)
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
  const FailTogether together(world);
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
         "`gc-profile` writes to the run directory, but `no-logs` creates none: give `trace` FILE");
  config.trace = config.run_directory / config.trace;
}

void require_alike(const comm::World& world, const OpenedRun& run) {
  if (world.size() == 1 || must_launch(run.config, world)) return;
  const pipeline::PipelinePlan& plan = run.config.pipeline;
  std::vector<Fact> facts = {
      {"options", to_toml(run.config), "start all ranks with the same options"},
      {"schedule", rows_of(plan.is_joint() ? plan.joint : plan.schedule),
       "run the same build on all ranks"},
      {"build", fmt::format("millrace {} ({})", kVersion, kCommit),
       "run the same build on all ranks"},
      {"kernels", device::describe_arithmetic(),
       "set MILLRACE_MAX_ISA on all ranks to a level that each supports, and install the same "
       "oneDNN"}};
  if (const models::GivenNetwork& given = run.config.model.given; given.graph) {
    facts.push_back({"network", sha256_of(to_json(*given.graph).dump()),
                     "give all ranks the same file with `model`"});
  }
  for (const auto& [name, images] :
       {std::pair{"training images", run.data.train}, {"validation images", run.data.validation}})
    facts.push_back({name, images ? io::describe_content(*images) : "none",
                     "give all ranks the same data set with `data-dir`", ErrorKind::Data});
  require_alike(world, facts);
}

void require_asked_alike(const comm::World& world, const RunRequest& request) {
  // Wherever they were given. Rank 0 decides where the run lies.
  std::string asked = fmt::format("command = {}\n", request.command);
  for (const auto& [name, setting] : request.options.settings())
    if (name != "config" && name != "dialect" && name != "run-dir")
      asked += fmt::format("{} = {}\n", name, to_string(setting.value));
  require_alike(world, {{"options", asked, "start all ranks with the same options"}});
}

void record_options(const OpenedRun& run) {
  const std::filesystem::path& directory = run.config.run_directory;
  if (!directory.empty())
    io::write_file_atomically(directory / "config.toml", config_file_text(run.config));
}

namespace {

/// The data and the options of a training that could start here. Collective.
OpenedRun open_checked(const RunRequest& request, const Initial& initial,
                       const comm::World& world) {
  const MachineFacts machine = machine_for(request, world);
  return open_in_turn(world, [&](const std::string& decided) {
    OpenedRun run = open_training(request, initial, machine, decided);
    require_threads(request, run.config);  // before anything is written
    (void)gpu_of(run.config, world.rank());
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
    built_guests().files.require_export(folder);
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", options.find("export-dir")->where, error.what());
  }
}

namespace {

/// What a start needs besides options and data: found out before anything is written.
void require_start(const RunRequest& request, const Initial& initial, const OpenedRun& run,
                   WeightCheck check = WeightCheck::Shapes) {
  if (request.options.text("trace")) require_trace_file(run.config.trace);
  require_export(run.options);
  require_weights(
      run.config, built_guests().files, check,
      initial ? asking_for_another(request.options, *initial, run.config.data.dataset) : "");
}

}  // namespace

OpenedRun open_new_run(const RunRequest& request, const comm::World& world) {
  const FailTogether together(world);
  require_asked_alike(world, request);
  const Initial initial = initial_network(request.options, world);
  OpenedRun run = open_checked(request, initial, world);
  if (must_launch(run.config, world)) {
    if (world.size() == 1) require_start(request, initial, run);
    return run;
  }
  require_alike(world, run);
  together.lead([&] {
    require_start(request, initial, run);
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
  together.run([&] { place_trace(request.options, run.config); });
  return run;
}

OpenedRun open_checked_run(const RunRequest& request, const comm::World& world) {
  require_asked_alike(world, request);
  const Initial initial = initial_network(request.options, world);
  OpenedRun run = open_checked(request, initial, world);
  FailTogether(world).lead([&] {
    require_start(request, initial, run, WeightCheck::Values);
    require_run_directory(run.config, kVersion);
  });
  run.config = saving(std::move(run.config));
  place_trace(request.options, run.config);
  return run;
}

run::Run saving(run::Run config) {
  if (config.logging.keeps) config.run_directory = "run";
  return config;
}

bool must_launch(const run::Run& config, const comm::World& world) {
  return config.pipeline.ranks.ranks != world.size();
}

Resolution fit_layout(const MachineFacts& machine, Resolution first, const MeasureUse& measure) {
  if (first.config.device_memory == 0 || first.layout.notices.empty()) return first;
  const models::Graph graph = network_of(first.config);
  run::Run asked = first.config;
  asked.layout = asked.asked_layout;
  partition::Sizer sizer = sizer_of(graph);
  sizer.measure = measure;
  const partition::LayoutFacts facts = layout_facts(graph, asked, machine);
  partition::Choice choice = partition::choose(graph, std::move(asked), facts, sizer);
  first.config = std::move(choice.run);
  first.layout = std::move(choice.layout);
  return first;
}

namespace {

/// On rank 0: the layout that fits, for which all ranks measure. Returns the run as it was handed
/// over. Collective with follow_search() on the other ranks.
std::string lead_search(OpenedRun& run, const comm::World& world, const MeasureUse& measure) {
  std::exception_ptr error;
  try {
    static_cast<Resolution&>(run) =
        fit_layout(run.machine, static_cast<const Resolution&>(run), [&](const run::Run& config) {
          (void)world.broadcast(handed_over(config));
          return measure(config);
        });
  } catch (const Error&) {
    error = std::current_exception();
  }
  (void)world.broadcast({});  // nothing more is to be measured
  FailTogether(world).lead([&] {
    if (error) std::rethrow_exception(error);
  });
  return world.broadcast(handed_over(run.config));
}

std::string follow_search(OpenedRun& run, const comm::World& world, const MeasureUse& measure) {
  const auto taken = [&](const std::string& text) {
    run::Run config = taken_over(text, run.options, run.data.facts, run.machine).config;
    config.data = run.config.data;
    config.trace = run.config.trace;
    config.run_directory = run.config.run_directory;
    return config;
  };
  for (std::string text; !(text = world.broadcast({})).empty();) (void)measure(taken(text));
  FailTogether(world).lead([] {});
  std::string found = world.broadcast({});
  if (found != handed_over(run.config)) run.config = taken(found);
  return found;
}

}  // namespace

void fit_layout(OpenedRun& run, const comm::World& world) {
  if (run.config.device_memory == 0) return;
  const TrainInputs inputs{.train = run.data.train,
                           .validation = run.data.validation,
                           .command_line = {},
                           .notices = {}};
  std::optional<std::int64_t> base;  // measured once: it varies a little from time to time
  const MeasureUse measure = [&](const run::Run& config) {
    if (must_launch(config, world)) {
      const auto processes = forecast_processes(config, inputs, world, base);
      for (const partition::ProcessMemory& process : processes)
        base = std::max(base.value_or(0), process.base);
      return device_use(processes);
    }
    device::release_unused();
    const Session session(config, Use::Training, world, world.rank());
    base = base.value_or(resident_bytes());
    return most_of(device_use(forecast_memory(session, config, inputs, *base)), world);
  };
  const std::string before = handed_over(run.config);
  const std::string after =
      world.rank() == 0 ? lead_search(run, world, measure) : follow_search(run, world, measure);
  if (after == before) return;
  require_alike(world, run);
  if (run.is_new) FailTogether(world).lead([&] { record_options(run); });
}

}  // namespace millrace::training
