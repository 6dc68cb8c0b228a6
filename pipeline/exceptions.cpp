// SPDX-License-Identifier: Apache-2.0
#include "pipeline/exceptions.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "device/arena.hpp"

namespace millrace::pipeline {
namespace {

/// Roles of float32 results. If a call only reads such a buffer, it was checked after an earlier
/// call.
constexpr std::array kFloats = {Role::Statistics, Role::Coefficients, Role::Sums, Role::Loss};

class Search {
 public:
  Search(const BoundProgram& program, const device::ExecutionSpace& space,
         const RunContext& context)
      : program_(program), space_(space), context_(context) {}

  /// The first result of `call` that is not finite.
  [[nodiscard]] std::optional<Finding> look(const Call& call) const {
    if (half_written(call)) return {};
    for (const Role role : kResultRoles)
      if (call.has(role) && !finite(call.at(role), program_.program().options.type))
        return finding(call, std::string(name_of(role)));
    for (const Role role : kFloats)
      if (call.has(role) && !finite(call.at(role), DType::F32))
        return finding(call, std::string(name_of(role)));
    // A variance above the range of float32 gives finite statistics (one over its root is 0), so
    // the running sums are checked too.
    const StepSums sums = row_of(call.kind).adds_to;
    return sums != StepSums::None ? look_at_sums(call, sums == StepSums::Gradients) : std::nullopt;
  }

 private:
  /// A joined output before its last operand: the rest is not written yet.
  [[nodiscard]] bool half_written(const Call& call) const {
    const auto parts = static_cast<std::int32_t>(program_.graph().op(call.op).inputs.size());
    return row_of(call.kind).work == Work::Slice && call.has(Role::X) && call.part + 1 < parts;
  }
  [[nodiscard]] bool finite(BufferId buffer, DType type) const {
    const std::int64_t elements = program_.program().buffer(buffer).bytes / size_of(type);
    return program_.parameters().finite(space_, {program_.address(buffer, context_), type},
                                        elements);
  }
  /// Checks the sums of the call's op over an iteration: gradients of parameters that learn, or
  /// running sums of statistics.
  [[nodiscard]] std::optional<Finding> look_at_sums(const Call& call, bool gradients) const {
    const Parameters& parameters = program_.parameters();
    for (const models::ParameterId id : parameters.ids()) {
      const models::Parameter& parameter = program_.graph().parameter(id);
      if (parameter.op != call.op || (gradients ? !parameter.learns() : parameter.trainable()))
        continue;
      float* const sum = gradients ? parameters.gradient(id) : parameters.running_sum(id);
      if (!parameters.finite(space_, {reinterpret_cast<std::byte*>(sum), DType::F32},
                             parameter.elements()))
        return finding(call,
                       (gradients ? "the gradient of " : "the running sum of ") + parameter.name);
    }
    return {};
  }
  [[nodiscard]] Finding finding(const Call& call, std::string result) const {
    return {program_.graph().op(call.op).name, std::string(name_of(call.kind)), std::move(result)};
  }

  const BoundProgram& program_;
  const device::ExecutionSpace& space_;
  const RunContext& context_;
};

}  // namespace

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kNames = {"forward", "backward input",
                                                            "backward weight"};
  return kNames.at(static_cast<std::size_t>(phase));
}

std::optional<Finding> run_checked(BoundProgram& program, const device::ExecutionSpace& space,
                                   Phase phase, std::size_t part, const RunContext& context) {
  const Search search(program, space, context);
  std::optional<Finding> first;
  program.run_part(space, phase, part, context, [&](const Call& call) {
    if (!first) first = search.look(call);
  });
  return first;
}

std::optional<models::ParameterId> first_not_finite_sum(const Graph& graph,
                                                        const Parameters& parameters,
                                                        const device::ExecutionSpace& space,
                                                        std::int64_t first, std::int64_t elements) {
  const float* const all = parameters.accumulated().data();
  for (const models::ParameterId id : parameters.ids()) {
    const models::Parameter& parameter = graph.parameter(id);
    if (parameter.trainable() && !parameter.learns()) continue;
    const float* const sum =
        parameter.learns() ? parameters.gradient(id) : parameters.running_sum(id);
    // A share may begin and end inside a parameter.
    const std::int64_t begin = std::max(first, sum - all);
    const std::int64_t end = std::min(first + elements, sum - all + parameter.elements());
    if (begin >= end) continue;
    auto* part = reinterpret_cast<std::byte*>(parameters.accumulated().data() + begin);
    if (!parameters.finite(space, {part, DType::F32}, end - begin)) return id;
  }
  return std::nullopt;
}

}  // namespace millrace::pipeline
