// SPDX-License-Identifier: Apache-2.0
#include "train/training.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "comm/world.hpp"
#include "core/error.hpp"
#include "device/environment.hpp"
#include "io/checkpoint.hpp"
#include "partition/choose.hpp"
#include "run/complete.hpp"
#include "run/learning_rate.hpp"
#include "train/agreement.hpp"
#include "train/kernel_rules.hpp"
#include "train/memory.hpp"
#include "train/network_facts.hpp"
#include "train/open_run.hpp"
#include "train/runtime_call.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"
#include "train/warm_start.hpp"

namespace millrace::training {

namespace {

/// Errors: Checkpoint, as the images of its next update would be others.
void require_same_batches(const io::CheckpointReader& from, const run::Run& run) {
  const Patch recorded = recorded_in(from);
  const std::int64_t batch = recorded.integer("batch-size").value_or(run.batch_size);
  const std::int64_t total =
      batch * run::micro_batches_of(recorded) * recorded.integer("replicas").value_or(1);
  if (from.header().iteration == 0 || (batch == run.batch_size && total == run.total_batch()))
    return;
  fail(ErrorKind::Checkpoint,
       "{}: its updates are of {} images in micro-batches of {}, but those of this Training of {} "
       "in micro-batches of {}: set Run::batch_size and Run::micro_batches as they were, or begin "
       "with its weights alone, by Run::init_path",
       from.path().string(), total, batch, run.total_batch(), run.batch_size);
}

Score score_of(const pipeline::MicroBatchMetrics& metrics) {
  const auto images = static_cast<double>(std::max<std::int64_t>(metrics.samples, 1));
  return {.loss = metrics.loss / images,
          .accuracy = static_cast<double>(metrics.top1) / images,
          .images = metrics.samples};
}

}  // namespace

struct Training::Parts {
  Parts(const comm::World& of, OpenedRun opened)
      : world(of),
        config(std::move(opened.config)),
        images(std::move(opened.data.train)),
        validation(std::move(opened.data.validation)) {
    begin(network_of(config));
    if (!config.initial_weights().empty())
      warm_start(config, built_guests().files, world, *session, nullptr);
  }
  void begin(models::Graph network);
  void begin_feeds() { feeds = session->feeder().training(images, steps * config.total_batch()); }
  /// Errors: Config after a call that failed, whose messages and images are in between.
  void require_sound() const {
    if (failed)
      fail(ErrorKind::Config,
           "an update or a validation failed: load() a checkpoint, or make another Training");
  }
  [[nodiscard]] io::CheckpointHeader header() const;
  [[nodiscard]] models::ParameterId find(std::string_view name) const;
  [[nodiscard]] std::int64_t elements(std::string_view name) const {
    return session->graph().parameter(find(name)).elements();
  }

  const comm::World& world;
  run::Run config;
  std::shared_ptr<const io::Dataset> images;
  std::shared_ptr<const io::Dataset> validation;
  std::optional<Session> session;
  Feeds feeds;
  std::int64_t steps = 0;
  LossFunction loss;
  bool has_gradients = false;  ///< of an update of this session
  bool failed = false;         ///< step() or evaluate() has not come to its end
};

/// Replaces the session by a new one, with initial weights.
void Training::Parts::begin(models::Graph network) {
  feeds = {};
  session.reset();
  session.emplace(config, std::move(network), Session::Use::Training, world);
  const TrainInputs inputs{
      .train = images, .validation = validation, .command_line = {}, .notices = {}};
  require_device_memory(forecast_memory(*session, config, inputs, resident_bytes()), config, inputs,
                        world);
  session->allocate();
  session->initialise(config.seed);
  session->set_loss(loss);
  has_gradients = false;
  failed = false;
  begin_feeds();
}

models::ParameterId Training::Parts::find(std::string_view name) const {
  const std::vector<models::Parameter>& all = session->graph().parameters;
  const auto found = std::ranges::find(all, name, &models::Parameter::name);
  if (found == all.end())
    fail(ErrorKind::Config, "{} has no parameter {}: parameters() lists all", session->graph().name,
         name);
  return {static_cast<std::int32_t>(found - all.begin())};
}

io::CheckpointHeader Training::Parts::header() const {
  io::CheckpointHeader header;
  header.iteration = steps;
  header.epoch = config.epoch_after(steps);
  header.next_position = steps * config.total_batch();
  header.model = session->graph().name;
  header.config_toml = run::to_toml(config);
  header.network = to_json(facts_of(config));
  header.environment = environment_of(config);
  header.data = io::describe(*images);
  header.scaling_state = to_json(session->scaling());
  return header;
}

Training::Training(const Runtime& runtime, models::Graph network,
                   std::shared_ptr<const io::Dataset> images, run::Run run,
                   std::shared_ptr<const io::Dataset> validation) {
  const comm::World& world = world_of(runtime);
  const RuntimeCall call(world);
  in_members([&] {
    FailTogether(world).run([&] {
      if (!images) fail(ErrorKind::Config, "a Training needs images to train on: none were given");
      require_matching(network, *images);
      if (validation) require_matching(network, *validation);
    });
    run.model.given.graph = std::make_shared<const models::Graph>(std::move(network));
    // The caller may give the rate and the length, step by step.
    const bool ends = run.length.epochs || run.length.iterations;
    if (!run.rate.absolute && !run.rate.exponent &&
        run.learning_rate.kind != run::LearningRateKind::Polynomial)
      run.rate.absolute = run.learning_rate.base_rate;
    OpenedRun opened = open_for_steps(runtime, run, {std::move(images), std::move(validation)});
    if (!ends) opened.config.iterations = 0;
    parts_ = std::make_unique<Parts>(world, std::move(opened));
  });
}

Training::Training(const Runtime& runtime, const run::Run& run) {
  const comm::World& world = world_of(runtime);
  const RuntimeCall call(world);
  in_members([&] { parts_ = std::make_unique<Parts>(world, open_for_steps(runtime, run, {})); });
}

Training::~Training() {
  const device::Turn turn;
  parts_.reset();
}

const run::Run& Training::run() const { return parts_->config; }

Score Training::step(double learning_rate) {
  const RuntimeCall call(parts_->world);
  if (!std::isfinite(learning_rate))
    fail(ErrorKind::Config, "step(): the learning rate is {}", learning_rate);
  parts_->require_sound();
  parts_->failed = true;
  const StepResult result = parts_->session->step(parts_->feeds, parts_->steps, learning_rate);
  parts_->failed = false;
  ++parts_->steps;
  parts_->has_gradients = true;
  Score score = score_of(result.metrics);
  score.skipped = result.skipped;
  return score;
}

Score Training::step() {
  const run::LearningRateConfig& rate = run().learning_rate;
  const std::int64_t length = rate.horizon > 0 ? rate.horizon : run().iterations;
  if (length < 1) return step(rate.base_rate);
  return step(run::learning_rate_at(rate, std::min(parts_->steps, length), length));
}

std::int64_t Training::steps() const { return parts_->steps; }

Score Training::evaluate() {
  const RuntimeCall call(parts_->world);
  parts_->require_sound();
  FailTogether(parts_->world).run([&] {
    if (!parts_->validation)
      fail(ErrorKind::Config, "evaluate() needs validation images: give them to the Training");
  });
  const Feeds feeds = parts_->session->feeder().validation(parts_->validation);
  parts_->failed = true;
  const Score score = score_of(parts_->session->evaluate(feeds, parts_->validation->size(),
                                                         [](std::int64_t) { return false; }));
  parts_->failed = false;
  return score;
}

void Training::set_loss(LossFunction loss) {
  const run::DataConfig& data = run().data;
  if (loss && (run().label_smoothing > 0.0 || data.mixing.on() || data.weighted))
    fail(ErrorKind::Config,
         "a loss of the program's own sees plain labels only: leave out Run::label_smoothing, "
         "Run::data.mixing and weights of labels");
  parts_->loss = std::move(loss);
  parts_->session->set_loss(parts_->loss);
}

std::vector<ParameterInfo> Training::parameters() const {
  std::vector<ParameterInfo> all;
  for (const models::Parameter& parameter : parts_->session->graph().parameters)
    all.push_back({parameter.name, parameter.shape, parameter.learns(), !parameter.trainable()});
  return all;
}

std::vector<float> Training::values(std::string_view name) const {
  const std::int64_t elements = parts_->elements(name);
  const RuntimeCall call(parts_->world);
  return parts_->session->tensors().values(name, elements, parts_->world);
}

void Training::set_values(std::string_view name, std::span<const float> values) {
  const std::int64_t elements = parts_->elements(name);
  if (std::ssize(values) != elements)
    fail(ErrorKind::Config, "{} has {} values, but {} were given", name, elements, values.size());
  const RuntimeCall call(parts_->world);
  parts_->session->tensors().set({{std::string(name), {values.begin(), values.end()}}});
}

std::vector<float> Training::gradient(std::string_view name) const {
  const models::ParameterId id = parts_->find(name);
  if (!parts_->session->graph().parameter(id).learns())
    fail(ErrorKind::Config, "{} has no gradient, as it is not trained", name);
  if (!parts_->has_gradients)
    fail(ErrorKind::Config, "{} has no gradient before an update: call step() first", name);
  const RuntimeCall call(parts_->world);
  return parts_->session->gradient(id);
}

void Training::train_only(const std::vector<std::string>& filters) {
  const models::Graph before = parts_->session->graph();
  models::Graph network = before;
  models::train_only(network, filters);
  const RuntimeCall call(parts_->world);
  std::map<std::string, std::vector<float>> values;
  for (const io::TensorInfo& tensor : parts_->session->tensors().checkpoint_tensors())
    values[tensor.name] =
        parts_->session->tensors().values(tensor.name, tensor.elements(), parts_->world);
  const ScalingState scaling = parts_->session->scaling();
  const auto begin = [&](const models::Graph& graph) {
    parts_->begin(graph);
    parts_->session->tensors().set(values);
    parts_->session->set_scaling(scaling);
  };
  try {
    begin(network);
  } catch (const Error&) {
    begin(before);
    throw;
  }
  parts_->config.trained_filters = filters;
}

std::filesystem::path Training::save(const std::filesystem::path& directory) const {
  const comm::World& world = parts_->world;
  const RuntimeCall call(world);
  const FailTogether together(world);
  const Snapshot snapshot = parts_->session->tensors().snapshot();
  std::optional<io::CheckpointStaging> staging;
  together.lead([&] { staging.emplace(directory, parts_->header()); });
  const std::string place = world.broadcast(staging ? staging->path().string() : "");
  std::string part;
  together.run([&] {
    part = io::write_checkpoint_part(place, world.rank(), parts_->header(), snapshot.tensors());
  });
  const std::vector<std::string> all = world.gather(part);
  std::string path;
  together.lead([&] {
    path = staging->commit(all, parts_->session->tensors().checkpoint_tensors()).string();
  });
  return world.broadcast(path);
}

void Training::load(const std::filesystem::path& checkpoint) {
  const RuntimeCall call(parts_->world);
  FailTogether(parts_->world).run([&] {
    const io::CheckpointReader reader(checkpoint);
    require_same_batches(reader, parts_->config);
    if (parts_->failed) parts_->begin(models::Graph(parts_->session->graph()));
    parts_->session->load(reader);
    parts_->steps = reader.header().iteration;
  });
  parts_->begin_feeds();
}

std::string Training::digest() const {
  if (parts_->world.size() > 1)
    fail(ErrorKind::Config, "digest() of {} processes: save a checkpoint and inspect it instead",
         parts_->world.size());
  const RuntimeCall call(parts_->world);
  return io::digest(parts_->session->tensors().snapshot().tensors());
}

}  // namespace millrace::training
