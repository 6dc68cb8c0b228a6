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

Engine traits_of(const Descriptor& engine) {
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

Engine engine_of(const Descriptor& suggestion) {
  return traits_of(
      suggestion.parts(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR).at(0));
}

/// The settings of a suggestion, by type.
std::vector<EngineChoice::Knob> knobs_of(const Descriptor& suggestion) {
  std::vector<EngineChoice::Knob> knobs;
  for (const Descriptor& knob :
       suggestion.parts(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                        CUDNN_KNOB_TYPE_COUNTS))
    knobs.push_back(
        {.type = knob.values<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, 1).at(0),
         .value = knob.values<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 1).at(0)});
  std::ranges::sort(knobs);
  return knobs;
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
  return Plan{std::move(plan),
              {.engine = engine.number, .knobs = knobs_of(configuration)},
              scratch,
              engine.deterministic,
              engine.tensor_cores};
}

/// Calls `take` with the plans that keep to the rules, but for the cap, in the library's order,
/// until it returns false.
template <class Take>
void for_each_plan(const Descriptor& device, const PassShape& pass, const PlanRules& rules,
                   const Take& take) {
  const PassGraph pass_graph = make_pass_graph(pass);
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Descriptor& suggestion : suggestions(device, pass_graph.graph, mode)) {
      const Engine engine = engine_of(suggestion);
      if (!is_allowed(engine, pass.type, rules)) continue;
      std::optional<Plan> plan = plan_of(device, suggestion, engine);
      if (plan && !take(std::move(*plan))) return;
    }
  }
}

/// An engine with its settings as a configuration; empty, if this version of the library has no
/// such engine or settings for the graph.
std::optional<Descriptor> configuration_of(const Descriptor& engine, const EngineChoice& choice) {
  std::vector<Descriptor> knobs;
  for (const EngineChoice::Knob& knob : choice.knobs) {
    Descriptor& made = knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    if (!made.try_set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                      static_cast<cudnnBackendKnobType_t>(knob.type)) ||
        !made.try_set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, knob.value) || !made.try_finish())
      return {};
  }
  Descriptor configuration(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!knobs.empty())
    configuration.set_all(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, std::span<const Descriptor>(knobs));
  if (!configuration.try_finish()) return {};
  return configuration;
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
  std::optional<Plan> least;
  for_each_plan(device, pass, rules, [&](Plan plan) {
    const bool fits = plan.scratch <= rules.cap;
    if (fits || !least || plan.scratch < least->scratch) least = std::move(plan);
    return !fits;
  });
  return least;
}

std::vector<Plan> all_plans(const Descriptor& device, const PassShape& pass,
                            const PlanRules& rules) {
  std::vector<Plan> plans;
  for_each_plan(device, pass, rules, [&](Plan plan) {
    const bool known = std::ranges::find(plans, plan.choice, &Plan::choice) != plans.end();
    if (!known && plan.scratch <= rules.cap) plans.push_back(std::move(plan));
    return true;
  });
  if (!plans.empty()) return plans;
  if (std::optional<Plan> least = find_plan(device, pass, rules))
    plans.push_back(std::move(*least));
  return plans;
}

std::optional<Plan> plan_of_choice(const Descriptor& device, const PassShape& pass,
                                   const PlanRules& rules, const EngineChoice& choice) {
  const PassGraph pass_graph = make_pass_graph(pass);
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, pass_graph.graph)
      .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, choice.engine)
      .set(CUDNN_ATTR_ENGINE_DEVICEPROP, device);
  if (!engine.try_finish()) return {};
  const Engine traits = traits_of(engine);
  if (!is_allowed(traits, pass.type, rules)) return {};
  const std::optional<Descriptor> configuration = configuration_of(engine, choice);
  if (!configuration) return {};
  std::optional<Plan> plan = plan_of(device, *configuration, traits);
  if (plan && plan->scratch > rules.cap) plan.reset();
  return plan;
}

}  // namespace millrace::ops::cudnn
