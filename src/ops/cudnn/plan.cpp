// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/plan.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::ops::cudnn {
namespace {

/// What the library suggests for a graph, best first; empty, if nothing computes it.
std::vector<Descriptor> suggestions(const Descriptor& device, const Descriptor& graph,
                                    cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, mode)
      .set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  if (!heuristics.try_finish()) return {};
  return heuristics.parts(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
}

struct Engine {
  std::int64_t number = 0;
  bool deterministic = true;
  bool rounds_operands = false;
  bool tensor_cores = false;
};

Engine engine_of(const Descriptor& suggestion) {
  const std::vector<Descriptor> engines =
      suggestion.parts(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  const Descriptor& engine = engines.at(0);
  const auto notes = engine.values<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                                CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  const auto has = [&](cudnnBackendNumericalNote_t note) {
    return std::ranges::count(notes, note) > 0;
  };
  return {.number = engine.values<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1).at(0),
          .deterministic = !has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC),
          .rounds_operands = has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) ||
                             has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) ||
                             has(CUDNN_NUMERICAL_NOTE_FFT) || has(CUDNN_NUMERICAL_NOTE_WINOGRAD),
          .tensor_cores = has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)};
}

bool is_allowed(const Engine& engine, DType type, const PlanRules& rules) {
  if (!engine.deterministic && !rules.allow_nondeterministic) return false;
  return !engine.rounds_operands && (type != DType::F32 || !engine.tensor_cores);
}

/// A configuration of an engine as a plan; empty, if the library cannot carry it out on the device.
std::optional<Plan> plan_of(const Descriptor& device, const Descriptor& configuration,
                            const Engine& engine) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration)
      .set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
  if (!plan.try_finish()) return {};
  const std::int64_t scratch =
      plan.values<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 1).at(0);
  return Plan{std::move(plan), engine.number, scratch, engine.deterministic, engine.tensor_cores};
}

}  // namespace

std::int64_t image_channels(const ConvShape& first, DType type) {
  constexpr std::int64_t kFew = 3;  // fewer would be zeros for the most part
  constexpr std::int64_t kWhole = 8;
  constexpr std::int64_t kLarge = 64 * 64;
  const std::int64_t own = first.window.in.c;
  const bool padded =
      type != DType::F32 && own >= kFew && own < kWhole && first.window.in.pixels() >= kLarge;
  return padded && first.groups == 1 && !first.bias ? kWhole : own;
}

std::optional<Plan> find_plan(const Descriptor& device, const PassShape& pass,
                              const PlanRules& rules) {
  const PassGraph pass_graph = make_pass_graph(pass);
  std::optional<Plan> least;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Descriptor& suggestion : suggestions(device, pass_graph.graph, mode)) {
      const Engine engine = engine_of(suggestion);
      if (!is_allowed(engine, pass.type, rules)) continue;
      std::optional<Plan> plan = plan_of(device, suggestion, engine);
      if (!plan) continue;
      if (plan->scratch <= rules.cap) return plan;
      if (!least || plan->scratch < least->scratch) least = std::move(plan);
    }
  }
  return least;
}

}  // namespace millrace::ops::cudnn
