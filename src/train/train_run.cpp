// SPDX-License-Identifier: Apache-2.0
#include "train/train_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "run/recipes.hpp"
#include "train/agreement.hpp"
#include "train/open_run.hpp"
#include "train/reporter.hpp"
#include "train/runtime_call.hpp"
#include "train/summaries.hpp"
#include "train/trainer.hpp"

namespace millrace::training {

namespace {

/// A Patch says where a value was given: here by the name of its field.
void put(Patch& patch, std::string_view name, Value value, Origin origin = Origin::CommandLine) {
  const Field& field = *find_field(name);
  const std::string where = fmt::format("`{}`", field.name);
  patch.set(field, {.value = check_value(field, std::move(value), origin, where),
                    .origin = origin,
                    .where = where});
}

/// What a patch asks for, with the network of a file read, and without a watchdog, which would end
/// the program.
run::Run asked_of(Patch patch) {
  if (run::is_given_network(patch))
    patch.network = std::make_shared<const models::Graph>(
        built_guests().files.open_network(*patch.text("model")).graph);
  run::Run run = asked_run(patch);
  run.hang_timeout = 0;
  return run;
}

/// What no config.toml records: of one process, or of its machine.
void put_unrecorded(const run::Run& run, Patch& patch) {
  const auto flag = [&](bool on, std::string_view name) {
    if (on) put(patch, name, true);
  };
  const auto text = [&](const std::string& value, std::string_view name) {
    if (!value.empty()) put(patch, name, value);
  };
  flag(!run.logging.keeps, "no-logs");
  if (run.logging.keeps) text(run.logging.place, "run-dir");
  text(run.layout.plan, "plan");
  text(run.layout.devices, "select-ipus");
  flag(run.data.normalises_on_host, "hostside-norm");
  flag(run.verbosity == run::Verbosity::Quiet, "quiet");
  flag(run.verbosity == run::Verbosity::Verbose, "verbose");
  if (run.stop_after) put(patch, "stop-after", *run.stop_after);
  text(run.trace.string(), "trace");
  flag(run.trace_detail == run::TraceDetail::Kernels, "trace-kernels");
  if (run.trace_first > 0)
    put(patch, "profile-steps", fmt::format("{},{}", run.trace_first, run.trace_last));
}

/// Names the network of a run as options do: a graph of one's own like that of a file. Errors:
/// Config, and as reading that file.
void name_network(run::Run& run) {
  models::ModelOptions& model = run.model;
  if (model.given.graph) {
    if (!io::is_network_file(run.network)) {
      run.network = model.given.graph->name + ".onnx";
      run.weights_of_file = false;
    }
    const std::int64_t span = model.batch_norm_span;
    model = models::given_options(model.given.graph, run::task_of(run.data.dataset));
    model.batch_norm_span = span;
  } else if (io::is_network_file(run.network)) {
    model = models::given_options(
        std::make_shared<const models::Graph>(built_guests().files.open_network(run.network).graph),
        run::task_of(run.data.dataset));
  } else if (model.model != run.network) {
    fail(ErrorKind::Config,
         "`model`: Run::network is {}, but Run::model has the options of {}: begin with recipe(), "
         "or set both",
         run.network, model.model);
  }
}

/// What a run asks for, as words would, after name_network().
Patch patch_of(const run::Run& run, const Images& images) {
  if (images.validation && !images.train)
    fail(ErrorKind::Config,
         "Images has a set for validation, but none to train: give Images::train");
  if (images.train && !run.data.directory.empty())
    fail(ErrorKind::Config,
         "`data-dir` {} has no effect here: the program gives images of its own: leave it out",
         run.data.directory.string());
  if (run.layout.elastic)
    fail(ErrorKind::Config,
         "`elastic`: the launcher of the program millrace starts ranks again, a library does not: "
         "leave it out, and call restore() after a failure");
  if (run.hang_timeout > 0)
    fail(ErrorKind::Config,
         "`hang-timeout` {} would end the whole process, which a library does not: leave it 0",
         run.hang_timeout);
  if (run.length.epochs && run.length.iterations)
    fail(ErrorKind::Config,
         "`epochs` {} and `iterations` {} exclude each other: recipes have epochs, so begin with "
         "Run::length = {{}}",
         *run.length.epochs, *run.length.iterations);
  Patch patch;
  patch.network = run.model.given.graph;
  const run::Run usual;
  for (const auto& [name, value] : run::recorded_values(run)) {
    const Field& field = *find_field(name);
    const bool is_set = value != field.get(field, usual);
    try {
      // Of what nobody has set, nobody is told that it has no effect.
      put(patch, name, value, is_set ? Origin::CommandLine : Origin::File);
    } catch (const Error&) {
      if (is_set) throw;  // the default of a member may be no value of its field
    }
  }
  patch.erase("threads-per-device");  // what follows from the Runtime is no request
  if (run.layout.threads) put(patch, "threads-per-device", std::int64_t{*run.layout.threads});
  put_unrecorded(run, patch);
  return patch;
}

/// What the length of a run follows from: the one of two fields that it has.
std::string_view of_length(std::string_view field, const run::Run& asked) {
  return field == "epochs" && asked.length.iterations ? "iterations" : field;
}

/// Errors: Config for a member that a program has set, to another value than those of a Run and of
/// the run that it `asks` for, and that is not that of the run that was decided either: it has no
/// effect, or follows from others. What the fields of some sections say is left out.
void require_taken(const run::Run& asked, const Patch& asks, const run::Run& decided,
                   std::initializer_list<Section> left_out) {
  const std::array<run::Run, 2> known = {run::Run(), asked_run(asks)};
  for (const Field& field : run::field_table()) {
    if (std::ranges::find(left_out, field.section) != left_out.end()) continue;
    for (const run::Member& member : field.members) {
      if (member.equal(asked, known[0]) || member.equal(asked, known[1]) ||
          member.equal(asked, decided))
        continue;
      if (member.follows)
        fail(ErrorKind::Config, "{} {} follows from `{}`, with which it is {}: set that",
             member.name, member.text(asked), of_length(field.name, asked), member.text(decided));
      fail(ErrorKind::Config, "{} {} has no effect here{}", member.name, member.text(asked),
           field.needs.empty() ? "" : fmt::format(": it needs {}", field.needs));
    }
  }
}

/// The callbacks of a program, which may throw: the first exception is kept, and asks the run to
/// stop, so that all processes end alike.
class Listener {
 public:
  explicit Listener(const Callbacks& own) : own_(own) {}

  [[nodiscard]] Callbacks callbacks() {
    return {.after_update = kept(own_.after_update),
            .after_validation =
                [this, then = kept(own_.after_validation)](const Validated& found) {
                  if (found.name.empty())
                    last_ = {.loss = found.loss, .accuracy = found.top1, .images = found.images};
                  then(found);
                },
            .after_checkpoint = kept(own_.after_checkpoint),
            .tell = kept(own_.tell)};
  }
  /// As TrainInputs::stop_asked.
  [[nodiscard]] int stop_asked() {
    bool asked = false;
    if (own_.cancelled) kept(std::function<void()>([&] { asked = own_.cancelled(); }))();
    return asked || failure_ ? SIGTERM : 0;
  }
  /// Throws what a callback threw. Collective.
  void rethrow(const comm::World& world, const std::filesystem::path& run) const {
    if (world.maximum(failure_ ? 1 : 0) == 0) return;
    world.fail_together();
    if (failure_) std::rethrow_exception(failure_);
    fail(ErrorKind::Peer, "{}a callback of another process ended the run",
         run.empty() ? "" : run.string() + ": ");
  }
  [[nodiscard]] const std::optional<Score>& last() const { return last_; }

 private:
  template <class... Args>
  std::function<void(Args...)> kept(const std::function<void(Args...)>& call) {
    return [this, &call](Args... args) {
      try {
        if (call) call(args...);
      } catch (...) {
        if (!failure_) failure_ = std::current_exception();
      }
    };
  }

  const Callbacks& own_;
  std::exception_ptr failure_;
  std::optional<Score> last_;
};

/// What both functions ask for.
RunRequest request_of(const Runtime& runtime, std::string_view command, const Images& images,
                      const Callbacks& callbacks) {
  return {.command = command,
          .options = {},
          .reports = {.tell = runtime.rank() == 0 ? callbacks.tell : nullptr},
          .threads = runtime.threads(),
          .train = images.train,
          .validation = images.validation};
}

using Train = Outcome (*)(const run::Run&, const TrainInputs&, const comm::World&);

Trained follow(OpenedRun run, const comm::World& world, Listener& listener, Callbacks callbacks,
               Train train, Voice voice) {
  fit_layout(run, world);
  std::vector<std::string> notices = std::move(run.notices);
  notices.insert(notices.end(), run.layout.notices.begin(), run.layout.notices.end());
  std::int64_t updates = run.done;
  callbacks.after_update = [&updates, then = std::move(callbacks.after_update)](const Update& one) {
    updates = one.iteration;
    then(one);
  };
  const Guests guests = built_guests();
  const TrainInputs inputs{.train = run.data.train,
                           .validation = run.data.validation,
                           .command_line = "none: a program that uses the library",
                           .notices = std::move(notices),
                           .voice = std::move(voice),
                           .summaries = guests.summaries,
                           .files = guests.files,
                           .stop_asked = [&listener] { return listener.stop_asked(); },
                           .validation_set_size = run.data.facts.validation_size,
                           .callbacks = std::move(callbacks)};
  const std::filesystem::path& directory = run.config.run_directory;
  const Outcome outcome = train(run.config, inputs, world);
  listener.rethrow(world, directory);
  FailTogether(world).lead([&] {
    if (const std::string& folder = run.config.saving.export_folder;
        !folder.empty() && outcome == Outcome::Finished)
      for (const std::string& line : guests.files.export_run(directory, folder))
        inputs.callbacks.tell(line);
  });
  listener.rethrow(world, directory);
  return {.outcome = outcome,
          .run_directory = directory,
          .updates = updates,
          .validation = listener.last()};
}

}  // namespace

OpenedRun open_for_steps(const Runtime& runtime, run::Run run, const Images& images) {
  const comm::World& world = world_of(runtime);
  RunRequest request = request_of(runtime, "train", images, {});
  run.logging.keeps = false;
  give_stages_devices(run.layout);
  FailTogether(world).run([&] {
    name_network(run);
    request.options = patch_of(run, images);
  });
  request.check = [&](const run::Run& decided) {
    require_taken(run, request.options, decided,
                  {Section::Checkpoint, Section::Log, Section::Command});
  };
  OpenedRun opened = open_checked_run(request, world);
  require_alike(world, opened);
  fit_layout(opened, world);
  return opened;
}

run::Run recipe(std::string_view name_or_file) { return asked_of(run::read_recipe(name_or_file)); }

run::Run parse_recipe(const std::string& toml) {
  return asked_of(run::parse_config(toml, "the recipe"));
}

run::Run recipe(std::string_view network, std::string_view dataset) {
  Patch patch;
  put(patch, "model", std::string(network));
  put(patch, "dataset", std::string(dataset));
  return asked_of(std::move(patch));
}

Trained train(const Runtime& runtime, run::Run run, const Callbacks& callbacks,
              const Images& images) {
  const comm::World& world = world_of(runtime);
  const RuntimeCall call(world);
  Listener listener(callbacks);
  const Callbacks kept = listener.callbacks();
  RunRequest request = request_of(runtime, "train", images, kept);
  request.check = [&](const run::Run& decided) {
    require_taken(run, request.options, decided, {});
  };
  return in_members([&] {
    FailTogether(world).run([&] {
      name_network(run);
      request.options = patch_of(run, images);
    });
    return follow(open_new_run(request, world), world, listener, kept, training::train,
                  {.spell = run::with_members});
  });
}

Trained train(run::Run run, const Callbacks& callbacks) {
  const Runtime runtime(run.layout.threads.value_or(1));
  return train(runtime, std::move(run), callbacks);
}

Trained restore(const Runtime& runtime, const std::filesystem::path& run_directory,
                const Callbacks& callbacks, const Images& images) {
  const comm::World& world = world_of(runtime);
  const RuntimeCall call(world);
  Listener listener(callbacks);
  const Callbacks kept = listener.callbacks();
  RunRequest request = request_of(runtime, "restore", images, kept);
  FailTogether(world).run([&] {
    put(request.options, "restore-path", run_directory.string());
    put(request.options, "threads-per-device", std::int64_t{runtime.threads()});
  });
  OpenedRun opened = open_restored_run(request, world);
  opened.config.hang_timeout = 0;  // as asked_of()
  return follow(std::move(opened), world, listener, kept, training::restore, {});
}

namespace {

std::vector<Validated> validations(const Runtime& runtime, RunRequest request,
                                   const std::filesystem::path& checkpoint_or_run,
                                   const std::function<void(std::string_view)>& tell) {
  const comm::World& world = world_of(runtime);
  const auto lead = [&](std::string_view line) {
    if (runtime.rank() == 0 && tell) tell(line);
  };
  FailTogether(world).run([&] {
    put(request.options, "restore-path", checkpoint_or_run.string());
    put(request.options, "threads-per-device", std::int64_t{runtime.threads()});
  });
  OpenedRun run = open_validated_run(request, world);
  run.config.hang_timeout = 0;  // as asked_of()
  for (const std::string& notice : run.notices) lead(notice);
  std::vector<Validated> all;
  validate(
      run.config, world, run.data.validation, checkpoint_or_run,
      [&](const io::CheckpointHeader&, const ValidationResult& result,
          std::span<const pipeline::ClassCounts>) { all.push_back(told(result)); },
      built_guests().files, lead);
  return all;
}

}  // namespace

std::vector<Validated> validate(const Runtime& runtime,
                                const std::filesystem::path& checkpoint_or_run,
                                const std::filesystem::path& data_directory,
                                const std::function<void(std::string_view)>& tell) {
  const RuntimeCall call(world_of(runtime));
  RunRequest request = request_of(runtime, "validate", {}, {});
  if (!data_directory.empty()) put(request.options, "data-dir", data_directory.string());
  return validations(runtime, std::move(request), checkpoint_or_run, tell);
}

std::vector<Validated> validate(const Runtime& runtime,
                                const std::filesystem::path& checkpoint_or_run,
                                const std::shared_ptr<const io::Dataset>& images,
                                const std::function<void(std::string_view)>& tell) {
  const RuntimeCall call(world_of(runtime));
  return validations(runtime, request_of(runtime, "validate", {images, images}, {}),
                     checkpoint_or_run, tell);
}

}  // namespace millrace::training
