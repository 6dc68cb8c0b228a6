// SPDX-License-Identifier: Apache-2.0
//
// Batch statistics that span replicas. The programs run side by side in this process, and the test
// does the exchanges that the executor would do.
#include "core/random.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "models/registry.hpp"
#include "pipeline/stage.hpp"
#include "support/slope.hpp"
#include "tests/support/stage_calls.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

using models::Graph;
using test::length_of;

constexpr std::int64_t kSamples = 6;

/// Residual blocks, or grouped convolutions with squeeze-and-excite.
Graph network(const char* family, std::int64_t span) {
  models::ModelOptions options = models::default_options(family, models::Task::Cifar);
  options.size = family == std::string("resnet") ? "8" : "11";
  options.norm = models::NormKind::Batch;
  options.batch_norm_span = span;
  options.image = {8, 8, 3};
  options.resnext.groups = 8;
  options.resnext.squeeze_excitation = models::SqueezeExcitation::On;
  // If the last gamma of a block were zero, its branch would get no gradient.
  options.residual.initialisers = models::InitialiserSet::Nvidia;
  return models::build_model(options);
}

using Tensors = std::map<std::string, std::vector<float>>;

/// kSamples samples divided among `replicas`.
class Replicas {
 public:
  Replicas(const Graph& graph, std::int32_t replicas, ops::Backend& backend)
      : graph_(graph), replicas_(replicas), batch_(kSamples / replicas) {
    StageOptions options;
    options.batch = batch_;
    for (std::int32_t r = 0; r < replicas; ++r) {
      stages_.push_back(std::make_unique<Stage>(graph, whole(graph), options, backend));
      arenas_.emplace_back(stages_.back()->bytes());
      stages_.back()->bind(arenas_.back().at(0));
      stages_.back()->parameters().initialise(7);
    }
  }

  /// Loss over all samples.
  double forward() {
    for (std::int32_t r = 0; r < replicas_; ++r) {
      stage(r).parameters().begin_step(space_, {.update = {.step = 3}});
      stage(r).training().begin_step(space_);
      load(r);
    }
    run(Phase::Forward);
    double loss = 0.0;
    for (std::int32_t r = 0; r < replicas_; ++r)
      loss += metrics(stage(r), stage(r).training(), context(r)).loss;
    return loss;
  }
  void backward() {
    run(Phase::BackwardInput);
    run(Phase::BackwardWeight);
  }

  [[nodiscard]] Parameters& parameters(std::int32_t replica) { return stage(replica).parameters(); }
  /// Gradients of one replica, as sums over its samples (a micro-batch's gradient is the mean).
  [[nodiscard]] Tensors gradients(std::int32_t replica) {
    Tensors result;
    for (const models::ParameterId id : parameters(replica).ids()) {
      const models::Parameter& p = graph_.parameter(id);
      if (!p.trainable()) continue;
      std::vector<float>& sums = result[p.name];
      sums = test::read_floats(parameters(replica).gradient(id), p.elements());
      for (float& x : sums) x *= static_cast<float>(batch_);
    }
    return result;
  }

 private:
  [[nodiscard]] Stage& stage(std::int32_t r) { return *stages_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] RunContext context(std::int32_t r) const {
    return {.member = r, .seed = 11, .first_sample = r * batch_};
  }

  void load(std::int32_t r) {
    const std::int64_t pixels = graph_.input_shape.elements();
    std::vector<float> images;
    std::vector<std::int32_t> labels;
    for (std::int64_t sample = r * batch_; sample < (r + 1) * batch_; ++sample) {
      labels.push_back(static_cast<std::int32_t>(3 * sample % graph_.classes));
      const RandomStream stream(1, RandomPurpose::SyntheticData,
                                static_cast<std::uint64_t>(sample));
      for (std::int64_t i = 0; i < pixels; ++i)
        images.push_back(4.0f * uniform01(stream.block(0, static_cast<std::uint64_t>(i))[0]) -
                         2.0f);
    }
    pipeline::load(stage(r).training(), context(r), std::as_bytes(std::span(images)), labels);
  }

  void run(Phase phase) {
    for (std::size_t part = 0; part < stage(0).training().parts(phase); ++part) {
      if (part > 0) exchange(stage(0).training().exchanged(phase, part));
      for (std::int32_t r = 0; r < replicas_; ++r)
        stage(r).training().run_part(space_, phase, part, context(r));
    }
  }

  /// Copies each replica's part to all others.
  void exchange(BufferId buffer) {
    for (std::int32_t from = 0; from < replicas_; ++from) {
      for (std::int32_t to = 0; to < replicas_; ++to) {
        if (to == from) continue;
        const std::int64_t bytes =
            stage(from).training().program().buffer(buffer).bytes / replicas_;
        device::copy_within(stage(to).training().address(buffer, {}) + from * bytes,
                            stage(from).training().address(buffer, {}) + from * bytes, bytes);
      }
    }
  }

  const Graph& graph_;
  std::int32_t replicas_;
  std::int64_t batch_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<device::Arena> arenas_;
  device::ExecutionSpace space_;
};

class SpanTest : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<ops::Backend> backend_ = ops::make_default_backend();
};

// If the weights of one replica change, the sum of all losses must change by that replica's
// gradient, because the shared statistics change the losses of the other replicas.
TEST_P(SpanTest, GradientOfAReplicaIsTheSlopeOfAllLosses) {
  const Graph graph = network(GetParam(), 2);
  Replicas both(graph, 2, *backend_);
  (void)both.forward();
  both.backward();
  for (const std::int32_t replica : {0, 1}) {
    const Tensors gradients = both.gradients(replica);
    int tried = 0;
    for (const models::ParameterId id : both.parameters(replica).ids()) {
      const models::Parameter& parameter = graph.parameter(id);
      if (!parameter.trainable()) continue;
      const std::vector<float>& g = gradients.at(parameter.name);
      const double length = length_of(g);
      if (length < 1e-2) continue;  // too small to measure in float32
      const double error = test::slope_error(both.parameters(replica).value(id), g,
                                             {2e-2, 5e-3, 1e-3}, [&] { return both.forward(); });
      EXPECT_LT(error, 0.05 * length + 1e-3) << parameter.name << " of replica " << replica;
      ++tried;
    }
    EXPECT_GT(tried, 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SpanTest, testing::Values("resnet", "resnext"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace millrace::pipeline
