// SPDX-License-Identifier: Apache-2.0
//
// Batch statistics that span replicas. The programs run side by side in this process, and the test
// does the exchanges that the executor would do.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "models/registry.hpp"
#include "pipeline/stage.hpp"
#include "support/slope.hpp"

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

/// kSamples samples in one micro-batch of one replica, or divided among `replicas`.
class Replicas {
 public:
  Replicas(const Graph& graph, std::int32_t replicas, StageOptions options, ops::Backend& backend)
      : graph_(graph), replicas_(replicas), batch_(kSamples / replicas) {
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
      stage(r).training().begin_step(space_, 1.0f);
      load(r);
    }
    run(Phase::Forward);
    double loss = 0.0;
    for (std::int32_t r = 0; r < replicas_; ++r)
      loss += stage(r).metrics(stage(r).training(), context(r)).loss;
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
      const float* data = parameters(replica).gradient(id);
      std::vector<float>& sums = result[p.name];
      sums.assign(data, data + p.elements());
      for (float& x : sums) x *= static_cast<float>(batch_);
    }
    return result;
  }
  [[nodiscard]] Tensors running_sums(std::int32_t replica) {
    Tensors result;
    for (const models::ParameterId id : parameters(replica).ids()) {
      const models::Parameter& p = graph_.parameter(id);
      if (p.trainable()) continue;
      const float* data = parameters(replica).running_sum(id);
      result[p.name].assign(data, data + p.elements());
    }
    return result;
  }

 private:
  [[nodiscard]] Stage& stage(std::int32_t r) { return *stages_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] RunContext context(std::int32_t r) const {
    return {.member = r, .seed = 11, .iteration = 3, .first_sample = r * batch_};
  }

  void load(std::int32_t r) {
    const DType type = stage(r).training().program().options.type;
    const std::int64_t pixels = graph_.input_shape.elements();
    std::vector<std::byte> images(static_cast<std::size_t>(batch_ * pixels * size_of(type)));
    std::vector<std::int32_t> labels;
    for (std::int64_t n = 0; n < batch_; ++n) {
      const std::int64_t sample = r * batch_ + n;
      labels.push_back(static_cast<std::int32_t>(3 * sample % graph_.classes));
      const RandomStream stream(1, RandomPurpose::SyntheticData,
                                static_cast<std::uint64_t>(sample));
      for (std::int64_t i = 0; i < pixels; ++i) {
        const float x = 4.0f * uniform01(stream.block(0, static_cast<std::uint64_t>(i))[0]) - 2.0f;
        const bfloat16 rounded = to_bfloat16(x);
        const void* from = type == DType::F32 ? static_cast<const void*>(&x) : &rounded;
        const auto size = static_cast<std::size_t>(size_of(type));
        std::memcpy(&images[static_cast<std::size_t>(n * pixels + i) * size], from, size);
      }
    }
    Stage::load(stage(r).training(), context(r), images, labels);
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

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference = a;
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] -= b[i];
  return length_of(difference);
}

class SpanTest : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<ops::Backend> backend_ = ops::make_default_backend();
};

TEST_P(SpanTest, ReplicasMatchOneReplicaWithAllSamples) {
  const Graph alone = network(GetParam(), 1);
  for (const DType type : {DType::F32, DType::BF16}) {
    const double tolerance = type == DType::F32 ? 2e-4 : 0.15;
    StageOptions options;
    options.type = type;
    Replicas one(alone, 1, options, *backend_);
    const double loss = one.forward();
    one.backward();
    const Tensors expected = one.gradients(0);
    for (const std::int32_t span : {2, 3}) {
      const Graph graph = network(GetParam(), span);
      Replicas several(graph, span, options, *backend_);
      EXPECT_NEAR(several.forward(), loss, 0.02 * tolerance * loss) << span;
      several.backward();
      for (const auto& [name, whole] : expected) {
        std::vector<float> sum(whole.size());
        for (std::int32_t r = 0; r < span; ++r) {
          const std::vector<float> own = several.gradients(r).at(name);
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
        }
        EXPECT_LE(distance(sum, whole), tolerance * (length_of(whole) + 1e-3))
            << name << ", " << span;
      }
      // All replicas have the same running sums.
      const Tensors running = several.running_sums(0);
      for (std::int32_t r = 1; r < span; ++r) EXPECT_EQ(several.running_sums(r), running);
      for (const auto& [name, whole] : one.running_sums(0))
        EXPECT_LE(distance(running.at(name), whole), 0.2 * tolerance * (length_of(whole) + 1e-3))
            << name;
    }
  }
}

TEST_P(SpanTest, RecomputationAndSplitBackwardGiveTheSameBits) {
  const Graph graph = network(GetParam(), 2);
  for (const DType type : {DType::F32, DType::BF16}) {
    StageOptions options;
    options.type = type;
    Replicas plain(graph, 2, options, *backend_);
    const double loss = plain.forward();
    plain.backward();
    for (const Recompute recompute : {Recompute::None, Recompute::Stage, Recompute::Layers}) {
      options.recompute = recompute;
      for (std::size_t i = 0; i < graph.layers.size(); i += 2)
        options.recompute_layers.push_back(graph.layers[i].name);
      for (const Backward backward : {Backward::Joined, Backward::Split}) {
        options.backward = backward;
        options.slots = {2, backward == Backward::Split ? 2 : 1};
        Replicas other(graph, 2, options, *backend_);
        EXPECT_EQ(other.forward(), loss);
        other.backward();
        for (std::int32_t r = 0; r < 2; ++r) {
          EXPECT_TRUE(other.gradients(r) == plain.gradients(r)) << static_cast<int>(recompute);
          EXPECT_TRUE(other.running_sums(r) == plain.running_sums(r));
        }
      }
    }
  }
}

// If the weights of one replica change, the sum of all losses must change by that replica's
// gradient, because the shared statistics change the losses of the other replicas.
TEST_P(SpanTest, GradientOfAReplicaIsTheSlopeOfAllLosses) {
  const Graph graph = network(GetParam(), 2);
  Replicas both(graph, 2, {}, *backend_);
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
