// SPDX-License-Identifier: Apache-2.0
//
// Looks for the kernel that first makes a number that is not finite. Only what a call wrote is
// looked at, and only elements that belong to a tensor: scratch, packed kernels and gaps between
// tensors hold what they may.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "pipeline/bound_program.hpp"

namespace millrace::pipeline {

/// The first result of a phase that holds an infinity or a NaN.
struct Finding {
  std::string op;
  std::string kernel;
  std::string result;  ///< a role of the call's buffers, or the parameter whose sum it is
};

/// "forward", "backward input" or "backward weight".
[[nodiscard]] std::string_view name_of(Phase phase);

/// Runs a part of a phase as BoundProgram::run_part does, looking through the results behind every
/// call, and ends with the first that is not finite.
[[nodiscard]] std::optional<Finding> run_checked(BoundProgram& program,
                                                 const device::ExecutionSpace& space, Phase phase,
                                                 std::size_t part, const RunContext& context);

/// Name of the first parameter of which the step's sums hold a number that is not finite within
/// elements [first, first + elements) of parameters.accumulated(); "" when none does.
[[nodiscard]] std::string first_not_finite_sum(const Graph& graph, const Parameters& parameters,
                                               const device::ExecutionSpace& space,
                                               std::int64_t first, std::int64_t elements);

}  // namespace millrace::pipeline
