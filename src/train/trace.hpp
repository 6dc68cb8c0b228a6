// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/world.hpp"
#include "pipeline/executor.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "run/run.hpp"
#include "train/statistics.hpp"

namespace millrace::training {

class TraceWriter;

/// About so many bytes of a trace are in memory as text while it is written.
inline constexpr std::size_t kTracePiece = std::size_t{64} << 10;

/// First and last update that the trace of a process covers, from 1: as configured, or the first
/// ten of a process that begins with iteration `first`.
[[nodiscard]] std::pair<std::int64_t, std::int64_t> trace_window(const run::Run& config,
                                                                 std::int64_t first);

/// Keeps what the process did in the steps [first, last] of a run (from 1, inclusive) in memory
/// allocated beforehand, and writes it as one trace of all ranks in Chrome's JSON format. Perfetto
/// and chrome://tracing display it with one row per device and arrows from sends to their readers.
/// Work and waiting are slices of their own, with the categories forward, backward, update, send,
/// receive, reduce and wait. Kernels lie on a track of their own below the passes that run them.
class Trace {
 public:
  /// `executor` must outlive this. It must be prepared for timing if kernels are to be traced.
  Trace(const pipeline::Executor& executor, run::TraceDetail detail, std::int64_t first,
        std::int64_t last);
  /// Whether the kernels of this step are traced.
  [[nodiscard]] bool times_kernels(std::int64_t step) const {
    return detail_ == run::TraceDetail::Kernels && step >= first_ && step <= last_;
  }
  /// Adds the executor's last step, if it is one of them.
  void add(std::int64_t step);
  [[nodiscard]] std::int64_t steps() const { return std::ssize(steps_); }
  /// Writes the file on rank 0, which replaces an old one once it is complete. Collective. Errors:
  /// Io.
  void write(const comm::World& world, const std::filesystem::path& file) const;
  /// Draws the last step above a simulation of the same schedule with the costs in `report`.
  /// Collective; rank 0 writes the file.
  void draw(const comm::World& world, const PipelineReport& report,
            const std::filesystem::path& file) const;

 private:
  [[nodiscard]] pipeline::TimeLine last_step(const comm::World& world) const;
  void write_events(TraceWriter& writer) const;

  const pipeline::Executor* executor_;
  run::TraceDetail detail_;
  std::int64_t first_;
  std::int64_t last_;
  struct Step {
    std::int64_t number = 0;
    std::size_t first = 0;  ///< of its pieces
    std::size_t end = 0;
    std::size_t first_kernel = 0;
    std::size_t end_kernel = 0;
  };
  [[nodiscard]] std::span<const pipeline::Piece> pieces_of(const Step& step) const {
    return std::span(pieces_).subspan(step.first, step.end - step.first);
  }

  [[nodiscard]] std::span<const pipeline::KernelPiece> kernels_of(const Step& step) const {
    return std::span(kernels_).subspan(step.first_kernel, step.end_kernel - step.first_kernel);
  }
  void write_updates(TraceWriter& writer, const Step& step) const;
  void write_actions(TraceWriter& writer, const Step& step) const;
  void write_kernels(TraceWriter& writer, const Step& step) const;

  std::vector<pipeline::Piece> pieces_;
  std::vector<pipeline::KernelPiece> kernels_;
  std::vector<Step> steps_;
};

}  // namespace millrace::training
