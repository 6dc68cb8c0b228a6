// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/backend.hpp"
#include "pipeline/kernels.hpp"

namespace millrace::pipeline {

/// The runs of calls of a program that the backend's vendor computes as one kernel.
class ClaimedRuns {
 public:
  /// Offers every run of neighboring calls of linear ops and norms, longest first. A run ends at
  /// the end of a phase and where replicas exchange.
  ClaimedRuns(const Graph& graph, const StageProgram& program, const ops::Backend& backend);

  [[nodiscard]] bool contains(std::size_t phase, std::size_t call) const {
    return find(phase, call) != nullptr;
  }
  [[nodiscard]] std::int64_t packed_bytes() const { return packed_bytes_; }
  [[nodiscard]] std::int64_t scratch_bytes() const { return scratch_bytes_; }
  void bind(const Graph& graph, const StageProgram& program, const Parameters& parameters,
            std::byte* packed, std::byte* scratch);
  void pack(const device::ExecutionSpace& space);
  /// The kernel of a call in a run: the first call runs all of it, the others do nothing.
  [[nodiscard]] Kernel kernel(const StageProgram& program, std::size_t phase, std::size_t call,
                              const std::function<Place(BufferId)>& place) const;

 private:
  struct Run {
    std::size_t phase = 0;
    std::size_t first = 0;  ///< calls [first, first + claim.calls) of the phase
    ops::RunClaim claim;
  };
  [[nodiscard]] const Run* find(std::size_t phase, std::size_t call) const;

  std::vector<Run> runs_;
  std::int64_t packed_bytes_ = 0;
  std::int64_t scratch_bytes_ = 0;
};

}  // namespace millrace::pipeline
