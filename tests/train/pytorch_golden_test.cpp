// SPDX-License-Identifier: Apache-2.0
//
// Compares the networks with PyTorch. tests/golden/record_pytorch.py computed in float64 the
// results of one first step and of ten steps, with weights and images given by formulas of names
// and indices. Errors are relative to the norm of the tensor.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "device/compat.hpp"
#include "models/registry.hpp"
#include "tests/support/named_uniform.hpp"
#include "tests/support/stage_chain.hpp"
#include "tests/support/test.hpp"

namespace millrace {
namespace {

using models::Graph;
using models::Parameter;
using models::ParameterRole;
using nlohmann::json;
using pipeline::Phase;

constexpr double kTolerance = 1e-4;
/// Rounding error of a weight of one stored in float32; tolerance for changes of weights.
constexpr double kFloatStep = 1.2e-7;

// ---- numbers that both sides compute

/// Small logits make the loss fall slowly, so that its gradient does not depend on their last
/// digits.
bool is_of_last_layer(const std::string& name) {
  return name == "fc1/kernel" || name == "conv10/conv/kernel" || name == "Top/logits/kernel";
}

std::vector<float> initial(const Parameter& parameter, int salt) {
  const test::NamedUniform u(fmt::format("{}@{}", parameter.name, salt));
  const std::int64_t fan_in = parameter.elements() / parameter.shape.front();
  const double scale =
      std::sqrt((is_of_last_layer(parameter.name) ? 0.06 : 6.0) / static_cast<double>(fan_in));
  std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (parameter.role) {
      case ParameterRole::Kernel:
        values[i] = static_cast<float>(scale * u(i));
        break;
      case ParameterRole::Gamma:
        values[i] = static_cast<float>(1.0 + 0.2 * u(i));
        break;
      case ParameterRole::Beta:
      case ParameterRole::Bias:
        values[i] = static_cast<float>(0.1 * u(i));
        break;
      case ParameterRole::MovingMean:
        break;
      case ParameterRole::MovingVariance:
        values[i] = 1.0f;
        break;
    }
  }
  return values;
}

double norm_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

/// Compares a tensor's norm, its products with two vectors, and its first elements.
void expect_alike(const std::vector<double>& actual, const std::vector<double>& expected,
                  const std::string& name, double slack = 0.0) {
  const double allowed = kTolerance * expected.at(0) + slack;
  EXPECT_NEAR(norm_of(actual), expected.at(0), allowed) << name << ": norm";
  for (std::size_t k = 0; k < 2; ++k) {
    const test::NamedUniform u(fmt::format("{}#{}", name, k));
    double product = 0.0;
    for (std::size_t i = 0; i < actual.size(); ++i) product += actual[i] * u(i);
    EXPECT_NEAR(product, expected.at(1 + k), allowed) << name << ": product " << k;
  }
  for (std::size_t i = 3; i < expected.size(); ++i)
    EXPECT_NEAR(actual.at(i - 3), expected[i], allowed) << name << ": element " << i - 3;
}

// ---- the networks

Graph build(const json& network) {
  const std::string model = network.at("model");
  models::ModelOptions options = models::default_options(model, models::Task::ImageNet);
  options.size = network.at("size");
  options.image = {64, 64, 3};
  if (network.at("norm") == "batch") options.norm = models::NormKind::Batch;
  if (network.at("norm") == "group") options.norm = models::NormKind::Group;
  options.efficientnet.dropout_rate = 0.0;
  options.efficientnet.block_survival = 1.0;
  Graph graph = models::build_model(options);
  for (models::Op& op : graph.ops)
    if (auto* dropout = std::get_if<models::Dropout>(&op.kind)) dropout->rate = 0.0;
  return graph;
}

using Tensors = std::map<std::string, std::vector<float>>;

std::vector<double> wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// A network in one stage, with the initial values of both sides.
class Net {
 public:
  Net(const json& golden, UpdateRule rule)
      : batch_(golden.at("batch")),
        graph_(build(golden.at("network"))),
        chain_(graph_, {}, options(rule), *backend_) {
    for (const models::ParameterId id : parameters().ids()) {
      const std::vector<float> values = initial(graph_.parameter(id), golden.at("salt"));
      device::copy_to_device(reinterpret_cast<std::byte*>(parameters().value(id)),
                             reinterpret_cast<const std::byte*>(values.data()),
                             std::ssize(values) * static_cast<std::int64_t>(sizeof(float)));
    }
    const test::NamedUniform u(fmt::format("images@{}", golden.at("salt").get<int>()));
    images_.resize(static_cast<std::size_t>(batch_ * graph_.input_shape.elements()));
    for (std::size_t i = 0; i < images_.size(); ++i) images_[i] = static_cast<float>(u(i));
    for (std::int64_t n = 0; n < batch_; ++n)
      labels_.push_back(static_cast<std::int32_t>((3 + 7 * n) % graph_.classes));
    io::Batch batch;
    batch.images = std::as_bytes(std::span(images_));
    batch.labels = labels_;
    chain_.use(batch);
  }

  /// Mean loss of the images. Their logits remain valid until the backward pass.
  double forward() {
    chain_.begin_step();
    return chain_.forward(0, chain_.context(0)) / static_cast<double>(batch_);
  }
  void backward() {
    chain_.backward_input(chain_.context(0));
    chain_.backward_weight(chain_.context(0));
  }
  void update(const ops::Update& update) {
    parameters().begin_step(space_, {.update = update});
    parameters().update(space_, 1);
    device::fence(space_);
  }

  [[nodiscard]] std::vector<double> logits() {
    pipeline::BoundProgram& program = chain_.stage(0).training();
    const pipeline::Call& loss = program.program().phase(Phase::Forward).back();
    EXPECT_EQ(loss.kind, pipeline::KernelKind::LossForward);
    std::vector<float> host(static_cast<std::size_t>(batch_ * graph_.classes));
    device::copy_to_host(reinterpret_cast<std::byte*>(host.data()),
                         program.address(loss.at(pipeline::Role::X), chain_.context(0)),
                         std::ssize(host) * static_cast<std::int64_t>(sizeof(float)));
    return wide(host);
  }
  [[nodiscard]] Tensors gradients() { return chain_.gradients(); }
  [[nodiscard]] Tensors values() { return chain_.values(); }

 private:
  [[nodiscard]] pipeline::Parameters& parameters() { return chain_.stage(0).parameters(); }
  [[nodiscard]] pipeline::StageOptions options(UpdateRule rule) const {
    pipeline::StageOptions options;
    options.batch = batch_;
    options.parameters.rule = rule;
    options.parameters.lars_skips = {"gamma", "beta", "bias"};
    return options;
  }

  std::int64_t batch_;
  Graph graph_;
  std::unique_ptr<ops::Backend> backend_ = ops::make_default_backend();
  test::StageChain chain_;
  device::ExecutionSpace space_;
  std::vector<float> images_;
  std::vector<std::int32_t> labels_;
};

json load(const std::string& name) {
  const std::string path =
      fmt::format("{}/tests/golden/pytorch/{}.json", MILLRACE_SOURCE_DIR, name);
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return json::parse(file);
}

// ---- comparisons

ops::Update update_of(UpdateRule rule, double rate) {
  ops::Update update;
  update.rate = static_cast<float>(rule == UpdateRule::RmsProp ? 0.01
                                   : rule == UpdateRule::Lars  ? 5.0
                                                               : rate);
  update.momentum = 0.9f;
  update.weight_decay = 1e-4f;
  update.mean_square_decay = 0.9f;
  update.epsilon = rule == UpdateRule::Lars ? 1e-9f : 1e-3f;
  update.trust = 1e-3f;
  return update;
}

void first_step(const json& golden) {
  Net net(golden, UpdateRule::Momentum);
  const double loss = golden.at("loss");
  EXPECT_NEAR(net.forward(), loss, kTolerance * loss);
  const std::vector<double> expected = golden.at("logits");
  const std::vector<double> logits = net.logits();
  ASSERT_EQ(logits.size(), expected.size());
  double error = 0.0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    error = std::max(error, std::abs(logits[i] - expected[i]));
  const auto largest = std::max_element(expected.begin(), expected.end(), [](double a, double b) {
    return std::abs(a) < std::abs(b);
  });
  EXPECT_LT(error, kTolerance * std::abs(*largest));
  net.backward();
  const Tensors gradients = net.gradients();
  ASSERT_EQ(gradients.size(), golden.at("gradients").size());
  for (const auto& [name, gradient] : gradients)
    expect_alike(wide(gradient), golden.at("gradients").at(name), name);
  net.update(update_of(UpdateRule::Momentum, golden.at("rate")));
  const Tensors values = net.values();
  for (const auto& [name, state] : golden.at("state").items())
    expect_alike(wide(values.at(name)), state, name);
}

void ten_steps(const json& golden) {
  Net net(golden, UpdateRule::Momentum);
  for (const double expected : golden.at("losses")) {
    EXPECT_NEAR(net.forward(), expected, kTolerance * expected);
    net.backward();
    net.update(update_of(UpdateRule::Momentum, golden.at("rate")));
  }
}

void two_updates(const json& golden, UpdateRule rule, const char* name) {
  SCOPED_TRACE(name);
  Net net(golden, rule);
  const Tensors before = net.values();
  net.forward();
  net.backward();
  for (int i = 0; i < 2; ++i) net.update(update_of(rule, golden.at("rate")));
  for (const auto& [parameter, values] : net.values()) {
    const auto expected = golden.at("changes").at(name).find(parameter);
    if (expected == golden.at("changes").at(name).end()) continue;  // running statistics
    std::vector<double> change = wide(values);
    for (std::size_t i = 0; i < change.size(); ++i)
      change[i] -= static_cast<double>(before.at(parameter)[i]);
    // Differences below the precision of float32 weights do not count.
    expect_alike(change, *expected, parameter, kFloatStep * norm_of(wide(values)));
  }
}

class PytorchTest : public testing::TestWithParam<const char*> {};

TEST_P(PytorchTest, StepsAreThoseOfPytorch) {
  const json golden = load(GetParam());
  first_step(golden);
  ten_steps(golden);
  two_updates(golden, UpdateRule::Momentum, "momentum");
  two_updates(golden, UpdateRule::RmsProp, "rmsprop");
  two_updates(golden, UpdateRule::Lars, "lars");
}

INSTANTIATE_TEST_SUITE_P(Networks, PytorchTest,
                         testing::Values("resnet-18-batch", "resnet-18-group", "resnext-50-group",
                                         "squeezenet", "efficientnet-b0-group"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace millrace
