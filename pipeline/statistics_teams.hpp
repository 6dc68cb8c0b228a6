// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "pipeline/all_reduce.hpp"
#include "pipeline/recording.hpp"
#include "pipeline/stage_run.hpp"
#include "pipeline/weight_update.hpp"

namespace millrace::pipeline {

/// Batch normalization over several replicas. `span` consecutive replicas form a group; the same
/// entry of all replicas of a group is one event. The replicas of a group in this process are a
/// team: they run the event together, part by part, and between two parts the whole group exchanges
/// its sums.
///
/// The merged lists keep the entries of a team adjacent and have the events in the same order on
/// all processes. So all replicas of the first unfinished event work on it, and the group's
/// messages always complete, even if sends wait for their receives.
class StatisticsTeams {
 public:
  /// `runs` and `plan` must outlive this.
  StatisticsTeams(const PipelinePlan& plan, std::span<const StageRun> runs);
  /// Prepares the exchanges, with message tags from `first_tag` on.
  void bind(comm::Transport& transport, int first_tag);

  /// Number of entries from `first` on that run together; 1 if the action exchanges nothing.
  [[nodiscard]] std::size_t size_at(std::span<const LocalEntry> entries, std::size_t first) const;
  /// Whether an exchange follows a part of an entry.
  [[nodiscard]] bool exchanges(const LocalEntry& entry, std::size_t part) const;
  /// Begins it.
  void start(const LocalEntry& entry, std::size_t part);
  /// Waits until the entry's replica has the sums of its group, and the group has its sums.
  /// Meanwhile `sums` advance.
  void await(const LocalEntry& entry, std::size_t part, Recording& recording, WeightUpdate& sums);

 private:
  /// That of the entry after one of its parts.
  [[nodiscard]] AllGather& exchange(const LocalEntry& entry, std::size_t part);

  const PipelinePlan* plan_;
  std::span<const StageRun> runs_;
  comm::Transport* transport_ = nullptr;
  /// By unit and phase, and the part that comes before; none where it exchanges nothing.
  std::vector<std::array<std::vector<std::optional<AllGather>>, kPhases>> exchanges_;
};

}  // namespace millrace::pipeline
