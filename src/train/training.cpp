// SPDX-License-Identifier: Apache-2.0
#include "train/training.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "device/environment.hpp"
#include "io/checkpoint.hpp"
#include "partition/cuts.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "train/agreement.hpp"
#include "train/kernel_rules.hpp"
#include "train/session.hpp"

namespace millrace::train {

struct Runtime::Parts {
  explicit Parts(int wanted) : threads(wanted), environment(wanted) {}
  int threads;
  comm::World world;
  device::Environment environment;
};

Runtime::Runtime(int threads) {
  if (threads < 1) fail(ErrorKind::Config, "a Runtime of {} threads: give at least 1", threads);
  parts_ = std::make_unique<Parts>(threads);
  const comm::World& world = parts_->world;
  const std::vector<int> usable = world.gather_here(device::core_numbers());
  const std::set<int> cores(usable.begin(), usable.end());
  if (world.local_size() > whole_cores(static_cast<int>(cores.size()), read_limits().cores))
    world.share_cores();
}
Runtime::~Runtime() = default;
int Runtime::threads() const { return parts_->threads; }
int Runtime::rank() const { return parts_->world.rank(); }
int Runtime::ranks() const { return parts_->world.size(); }

namespace {

void require_matching(const models::Graph& network, const io::Dataset& images) {
  if (images.size() < 1) fail(ErrorKind::Data, "{}: the data set is empty", images.name());
  if (images.image_shape() != network.input_shape)
    fail(ErrorKind::Config, "{}: images of {}, but {} takes images of {}", images.name(),
         images.image_shape(), network.name, network.input_shape);
  if (images.classes() > network.classes)
    fail(ErrorKind::Config, "{}: {} classes, but {} tells {} apart", images.name(),
         images.classes(), network.name, network.classes);
}

run::OptimiserConfig optimiser_of(const TrainingOptions& options) {
  run::OptimiserConfig optimiser = run::usual_optimiser(options.rule);
  optimiser.momentum = options.momentum;
  optimiser.weight_decay = options.weight_decay;
  return optimiser;
}

pipeline::PipelinePlan plan_of(const models::Graph& network, const TrainingOptions& options,
                               int ranks) {
  pipeline::PipelinePlan plan;
  plan.ranges = partition::stages_of(network, options.splits);
  const auto stages = static_cast<std::int32_t>(plan.ranges.size());
  plan.ranks = {.devices = stages, .replicas = options.replicas, .ranks = ranks};
  if (options.replicas < 1 || stages * options.replicas % ranks != 0)
    fail(ErrorKind::Config,
         "{} stages in {} replicas cannot be divided among {} processes: start a number of "
         "processes that divides {}",
         stages, options.replicas, ranks, stages * options.replicas);
  const std::vector<pipeline::Link> links = pipeline::links(network, plan.ranges);
  pipeline::ScheduleRequest request;
  request.name = options.schedule;
  request.devices = stages;
  request.micro_batches = static_cast<std::int32_t>(options.micro_batches);
  plan.schedule = with_communication(generate(request), links);
  validate(plan.schedule, links);
  return plan;
}

run::Run config_of(const models::Graph& network, const Runtime& runtime,
                   const TrainingOptions& options, const io::Dataset& images,
                   const io::Dataset* validation) {
  if (options.batch_size < 1 || options.micro_batches < 1)
    fail(ErrorKind::Config, "{} micro-batches of {} images: give at least 1 of each",
         options.micro_batches, options.batch_size);
  run::Run config;
  config.batch_size = options.batch_size;
  config.micro_batches = options.micro_batches;
  config.validation_batch_size = options.batch_size;
  config.optimiser = optimiser_of(options);
  config.precision = options.precision;
  if (options.precision.activations == DType::F32) config.loss_scaling.initial = 1.0;
  config.seed = options.seed;
  config.threads = runtime.threads();
  config.data.train_size = images.size();
  config.validation = run::ValidationMode::None;
  if (validation != nullptr) {
    config.validation = run::ValidationMode::All;
    config.data.validation_size = validation->size();
  }
  config.pipeline = plan_of(network, options, runtime.ranks());
  return config;
}

Score score_of(const pipeline::MicroBatchMetrics& metrics) {
  const auto images = static_cast<double>(std::max<std::int64_t>(metrics.samples, 1));
  return {.loss = metrics.loss / images,
          .accuracy = static_cast<double>(metrics.top1) / images,
          .images = metrics.samples};
}

}  // namespace

struct Training::Parts {
  Parts(const comm::World& of, run::Run with, models::Graph network,
        std::shared_ptr<const io::Dataset> train_on, std::shared_ptr<const io::Dataset> check_on)
      : world(of),
        config(std::move(with)),
        images(std::move(train_on)),
        validation(std::move(check_on)),
        session(config, std::move(network), Session::Use::Training, world) {
    session.allocate();
    session.initialise(config.seed);
    begin_feeds();
  }
  void begin_feeds() { feeds = session.feeder().training(images, steps * config.total_batch()); }
  [[nodiscard]] io::CheckpointHeader header() const;

  const comm::World& world;
  run::Run config;
  std::shared_ptr<const io::Dataset> images;
  std::shared_ptr<const io::Dataset> validation;
  Session session;
  Feeds feeds;
  std::int64_t steps = 0;
};

io::CheckpointHeader Training::Parts::header() const {
  io::CheckpointHeader header;
  header.iteration = steps;
  header.epoch = config.epoch_after(steps);
  header.next_position = steps * config.total_batch();
  header.model = session.graph().name;
  header.environment = environment_of(config);
  header.data = io::describe(*images);
  header.scaling_state = to_json(session.scaling());
  return header;
}

Training::Training(const Runtime& runtime, models::Graph network,
                   std::shared_ptr<const io::Dataset> images, const TrainingOptions& options,
                   std::shared_ptr<const io::Dataset> validation) {
  require_matching(network, *images);
  if (validation) require_matching(network, *validation);
  run::Run config = config_of(network, runtime, options, *images, validation.get());
  parts_ = std::make_unique<Parts>(runtime.parts_->world, std::move(config), std::move(network),
                                   std::move(images), std::move(validation));
}
Training::~Training() = default;

Score Training::step(double learning_rate) {
  const StepResult result = parts_->session.step(parts_->feeds, parts_->steps, learning_rate);
  ++parts_->steps;
  Score score = score_of(result.metrics);
  score.skipped = result.skipped;
  return score;
}

std::int64_t Training::steps() const { return parts_->steps; }

Score Training::evaluate() {
  if (!parts_->validation)
    fail(ErrorKind::Config, "evaluate() needs validation images: give them to the Training");
  const Feeds feeds = parts_->session.feeder().validation(parts_->validation);
  return score_of(parts_->session.evaluate(feeds, parts_->validation->size(),
                                           [](std::int64_t) { return false; }));
}

std::filesystem::path Training::save(const std::filesystem::path& directory) const {
  const comm::World& world = parts_->world;
  const FailTogether together(world);
  const Snapshot snapshot = parts_->session.tensors().snapshot();
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
    path = staging->commit(all, parts_->session.tensors().checkpoint_tensors()).string();
  });
  return world.broadcast(path);
}

void Training::load(const std::filesystem::path& checkpoint) {
  FailTogether(parts_->world).run([&] {
    const io::CheckpointReader reader(checkpoint);
    parts_->session.load(reader);
    parts_->steps = reader.header().iteration;
  });
  parts_->begin_feeds();
}

std::string Training::digest() const {
  if (parts_->world.size() > 1)
    fail(ErrorKind::Config, "digest() of {} processes: save a checkpoint and inspect it instead",
         parts_->world.size());
  return io::digest(parts_->session.tensors().snapshot().tensors());
}

}  // namespace millrace::train
