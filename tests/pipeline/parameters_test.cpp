// SPDX-License-Identifier: Apache-2.0
#include "pipeline/parameters.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/registry.hpp"

namespace millrace::pipeline {
namespace {

using models::Graph;
using models::ParameterId;

Graph resnet8() {
  models::ModelOptions options;
  options.size = "8";
  options.image = {8, 8, 3};
  return models::build_model(options);
}

/// The parameters of a whole network, bound and initialised.
struct Held {
  Held(const Graph& graph, const ParameterOptions& options)
      : parameters(graph, {0, static_cast<std::int32_t>(graph.ops.size())}, options),
        arena(parameters.bytes()) {
    parameters.bind(arena.at(0));
    parameters.initialise(1);
  }
  Parameters parameters;
  device::Arena arena;
};

std::vector<float> read(const float* device, std::int64_t elements) {
  std::vector<float> host(static_cast<std::size_t>(elements));
  device::copy_to_host(reinterpret_cast<std::byte*>(host.data()),
                       reinterpret_cast<const std::byte*>(device),
                       elements * static_cast<std::int64_t>(sizeof(float)));
  return host;
}

TEST(Parameters, SlotsBeginAsTheirTableSays) {
  const Graph graph = resnet8();
  for (const UpdateRule rule :
       {UpdateRule::Sgd, UpdateRule::Nesterov, UpdateRule::RmsProp, UpdateRule::Lars}) {
    Held held(graph, {.rule = rule, .decay_excludes = {}, .lars_skips = {}});
    const auto slots = held.parameters.slots();
    ASSERT_EQ(slots.size(), rule == UpdateRule::Sgd ? 0u : rule == UpdateRule::RmsProp ? 2u : 1u);
    for (const ParameterId id : held.parameters.ids()) {
      const models::Parameter& parameter = graph.parameter(id);
      if (!parameter.trainable()) continue;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const std::vector<float> values = read(held.parameters.slot(i, id), parameter.elements());
        const float initial = slots[i].name == "mean_square" ? 1.0f : 0.0f;
        EXPECT_EQ(std::count(values.begin(), values.end(), initial), std::ssize(values))
            << name_of(rule) << ": " << parameter.name << "/" << slots[i].name;
      }
    }
  }
}

TEST(Parameters, MemoryGrowsByWhatTheRuleKeeps) {
  const Graph graph = resnet8();
  const auto bytes = [&](UpdateRule rule) {
    const OpRange all{0, static_cast<std::int32_t>(graph.ops.size())};
    return Parameters(graph, all, {.rule = rule, .decay_excludes = {}, .lars_skips = {}}).bytes();
  };
  std::int64_t slot = 0;
  for (const models::Parameter& parameter : graph.parameters)
    if (parameter.trainable())
      slot += device::aligned(parameter.elements() * static_cast<std::int64_t>(sizeof(float)));
  EXPECT_EQ(bytes(UpdateRule::Momentum) - bytes(UpdateRule::Sgd), slot);
  EXPECT_EQ(bytes(UpdateRule::Nesterov), bytes(UpdateRule::Momentum));
  EXPECT_EQ(bytes(UpdateRule::RmsProp) - bytes(UpdateRule::Sgd), 2 * slot);
  // And tables for the norms, small beside the slot.
  EXPECT_GT(bytes(UpdateRule::Lars), bytes(UpdateRule::Momentum));
  EXPECT_LT(bytes(UpdateRule::Lars), bytes(UpdateRule::Momentum) + slot / 50);
}

// With a gradient of zeros only decay moves weights, and under LARS only what is not skipped.
TEST(Parameters, LarsNeitherDecaysNorAdaptsWhatIsSkipped) {
  const Graph graph = resnet8();
  Held held(
      graph,
      {.rule = UpdateRule::Lars, .decay_excludes = {}, .lars_skips = {"beta", "gamma", "bias"}});
  Parameters& parameters = held.parameters;
  const auto is_skipped = [](const std::string& name) {
    return name.find("/kernel") == std::string::npos;
  };
  std::vector<std::vector<float>> before;
  for (const ParameterId id : parameters.ids())
    before.push_back(read(parameters.value(id), graph.parameter(id).elements()));
  const std::span<float> sums = parameters.accumulated();
  device::clear(reinterpret_cast<std::byte*>(sums.data()),
                static_cast<std::int64_t>(sums.size_bytes()));
  const device::ExecutionSpace space;
  parameters.update(space, {.rate = 0.1f, .weight_decay = 0.5f, .trust = 0.001f}, 1);
  device::fence(space);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const ParameterId id = parameters.ids()[i];
    const models::Parameter& parameter = graph.parameter(id);
    if (!parameter.trainable()) continue;
    const bool stays = read(parameters.value(id), parameter.elements()) == before[i];
    EXPECT_EQ(stays, is_skipped(parameter.name)) << parameter.name;
  }
}

}  // namespace
}  // namespace millrace::pipeline
