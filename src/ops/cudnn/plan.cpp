// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/plan.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace millrace::ops::cudnn {
namespace {

constexpr std::int64_t kAlignment = 16;  // of addresses, in bytes; the arena's is larger

using Four = std::array<std::int64_t, 4>;

cudnnDataType_t data_type(DType type) {
  if (type == DType::BF16) return CUDNN_DATA_BFLOAT16;
  return type == DType::F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

/// A tensor of `count` images, or kernels of outputs, with channels last in memory. The library
/// lists dimensions as N, C, H, W in every case.
Descriptor tensor(std::int64_t number, cudnnDataType_t type, std::int64_t count, const Shape& image,
                  bool is_virtual = false) {
  const Four sizes = {count, image.c, image.h, image.w};
  const Four strides = {image.elements(), 1, image.w * image.c, image.c};
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment)
      .set_all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)
      .set_all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES, strides);
  if (is_virtual) tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  tensor.finish();
  return tensor;
}

Descriptor window(const ConvShape& s) {
  const WindowShape& w = s.window;
  const std::array<std::int64_t, 2> strides = {w.stride_h, w.stride_w};
  const std::array<std::int64_t, 2> dilations = {s.dilation_h, s.dilation_w};
  const std::array<std::int64_t, 2> before = {w.pad_top, w.pad_left};
  const std::array<std::int64_t, 2> after = {s.pad_bottom, s.pad_right};
  Descriptor window(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  window.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilations)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, before)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, after)
      .finish();
  return window;
}

/// Names of the attributes of an operation, which differ between passes though they mean the same.
struct Attributes {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t window, input, kernel, output, alpha, beta;
};

Attributes attributes_of(Pass pass) {
  switch (pass) {
    case Pass::Forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case Pass::BackwardInput:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
  }
}

Descriptor convolution(Pass pass, const Descriptor& window, const Descriptor& input,
                       const Descriptor& kernel, const Descriptor& output) {
  const Attributes names = attributes_of(pass);
  Descriptor operation(names.operation);
  operation.set(names.window, window)
      .set(names.input, input)
      .set(names.kernel, kernel)
      .set(names.output, output)
      .set(names.alpha, 1.0f)
      .set(names.beta, 0.0f)
      .finish();
  return operation;
}

Descriptor addition_rule() {
  Descriptor rule(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  rule.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
      .finish();
  return rule;
}

Descriptor addition(const Descriptor& rule, const Descriptor& sums, const Descriptor& bias,
                    const Descriptor& output) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, rule)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sums)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, output)
      .finish();
  return operation;
}

Descriptor sums_of(const Descriptor& output, const Descriptor& sums, const Descriptor& squares) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, output)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sums)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares)
      .finish();
  return operation;
}

/// A graph and all objects that it consists of.
struct PassGraph {
  std::deque<Descriptor> parts;
  Descriptor graph;
};

/// One pass of a convolution over NHWC images with a kernel in canonical order, which is the
/// library's own (KRSC). Storage in `type`, products and sums in float32. Forward adds the bias in
/// float32 before the result is rounded. Backward weight gives the kernel's gradient rounded to
/// `type`: the library has no float32 result for 16-bit inputs.
PassGraph make_pass_graph(const PassShape& of) {
  constexpr std::int64_t kUnrounded = kSquares + 1;
  const ConvShape& s = of.shape;
  const Pass pass = of.pass;
  const WindowShape& w = s.window;
  const cudnnDataType_t stored = data_type(of.type);
  PassGraph made{{}, Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)};
  const auto keep = [&](Descriptor part) -> const Descriptor& {
    return made.parts.emplace_back(std::move(part));
  };
  const Descriptor& conv = keep(window(s));
  const Descriptor& input = keep(tensor(kInput, stored, w.batch, w.in));
  const Descriptor& kernel =
      keep(tensor(kKernel, stored, w.out.c, {w.kernel_h, w.kernel_w, w.in.c / s.groups}));
  const Descriptor& output = keep(tensor(kOutput, stored, w.batch, w.out));

  const auto per_channel = [&](std::int64_t number) -> const Descriptor& {
    return keep(tensor(number, CUDNN_DATA_FLOAT, 1, {1, 1, w.out.c}));
  };

  std::vector<Descriptor> operations;
  if (pass == Pass::Forward && s.bias) {
    const Descriptor& sums = keep(tensor(kUnrounded, CUDNN_DATA_FLOAT, w.batch, w.out, true));
    operations.push_back(convolution(pass, conv, input, kernel, sums));
    operations.push_back(addition(keep(addition_rule()), sums, per_channel(kBias), output));
  } else {
    operations.push_back(convolution(pass, conv, input, kernel, output));
  }
  if (of.sums) operations.push_back(sums_of(output, per_channel(kSums), per_channel(kSquares)));
  made.graph.set_all(CUDNN_ATTR_OPERATIONGRAPH_OPS, std::span<const Descriptor>(operations))
      .finish();
  for (Descriptor& operation : operations) keep(std::move(operation));
  return made;
}

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

std::int32_t buffer(const OfferedCall& call, Role role) {
  return call.buffers[static_cast<std::size_t>(role)];
}

}  // namespace

std::optional<PassShape> fused_pass(std::span<const OfferedCall> calls, DType type) {
  if (type != DType::F16 || calls.size() < 2) return {};
  const OfferedCall& conv = calls[0];
  const OfferedCall& norm = calls[1];
  if (conv.kind != KernelKind::LinearForward || norm.kind != KernelKind::NormStatistics) return {};
  const auto* const shape = std::get_if<ConvShape>(&conv.shape);
  if (shape == nullptr || shape->bias || shape->stored) return {};
  if (!std::get<NormShape>(norm.shape).by_channel()) return {};
  if (buffer(norm, Role::X) != buffer(conv, Role::Y)) return {};
  return PassShape{*shape, type, Pass::Forward, true};
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

std::shared_ptr<const Plan> kept_plan(const Descriptor& device, const PassShape& pass,
                                      const PlanRules& rules) {
  struct Kept {
    std::string device;
    PassShape pass;
    PlanRules rules;
    std::shared_ptr<const Plan> plan;
  };
  // Never freed: when a process ends, the library may be gone before its plans.
  static auto& all = *new std::vector<Kept>;
  const std::string name = device_name(device);
  for (const Kept& kept : all)
    if (kept.device == name && kept.pass == pass && kept.rules == rules) return kept.plan;
  std::optional<Plan> found = find_plan(device, pass, rules);
  all.push_back({name, pass, rules, found ? std::make_shared<Plan>(std::move(*found)) : nullptr});
  return all.back().plan;
}

}  // namespace millrace::ops::cudnn
