// SPDX-License-Identifier: Apache-2.0
//
// Finds the first kernel whose result has a number that is not finite. Only elements of tensors
// that a call wrote are checked; scratch, packed kernels and gaps between tensors may have any
// content.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "pipeline/bound_program.hpp"

namespace millrace::pipeline {

/// The first result of a phase with an infinity or NaN.
struct Finding {
  std::string op;
  std::string kernel;
  std::string result;  ///< a role of the call's buffers, or the sum of a parameter
};

/// "forward", "backward input" or "backward weight".
[[nodiscard]] std::string_view name_of(Phase phase);

/// Runs a part of a phase as BoundProgram::run_part does and checks the results after every call.
/// Returns the first result that is not finite.
[[nodiscard]] std::optional<Finding> run_checked(BoundProgram& program,
                                                 const device::ExecutionSpace& space, Phase phase,
                                                 std::size_t part, const RunContext& context);

/// The first parameter with a sum that is not finite among elements [first, first + elements) of
/// parameters.accumulated(), if there is one.
[[nodiscard]] std::optional<models::ParameterId> first_not_finite_sum(
    const Graph& graph, const Parameters& parameters, const device::ExecutionSpace& space,
    std::int64_t first, std::int64_t elements);

}  // namespace millrace::pipeline
