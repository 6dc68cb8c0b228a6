// SPDX-License-Identifier: Apache-2.0
#include "pipeline/statistics_teams.hpp"

#include "core/error.hpp"

namespace millrace::pipeline {
namespace {

/// Borders of equal parts, one for each member of a group.
Borders member_borders(std::int64_t elements, std::int32_t members) {
  Borders borders;
  for (std::int32_t r = 0; r <= members; ++r) borders.push_back(elements / members * r);
  return borders;
}

std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

}  // namespace

std::optional<Phase> exchanging_phase(ActionKind kind) {
  if (kind == ActionKind::Forward) return Phase::Forward;
  if (makes_input_gradient(kind)) return Phase::BackwardInput;
  return {};
}

StatisticsTeams::StatisticsTeams(const PipelinePlan& plan, std::span<const StageRun> runs)
    : plan_(&plan), runs_(runs), exchanges_(runs.size()) {}

/// All exchanges between two replicas use the same tag, because every process runs them in the same
/// order.
void StatisticsTeams::bind(comm::Transport& transport, int first_tag) {
  transport_ = &transport;
  constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));
  for (std::size_t u = 0; u < runs_.size(); ++u) {
    const std::int32_t replica = runs_[u].unit.replica;
    const std::int32_t stage = runs_[u].unit.stage;
    const std::int32_t span = runs_[u].span;
    if (span == 1) continue;
    const std::int32_t group = replica / span;
    std::vector<int> rank_of;
    rank_of.reserve(static_cast<std::size_t>(span));
    for (std::int32_t r = group * span; r < (group + 1) * span; ++r)
      rank_of.push_back(plan_->ranks.rank_of(r, plan_->schedule.device(stage)));
    const Peers peers{&transport, rank_of, first_tag + group * span * span};
    const BoundProgram& program = *runs_[u].program;
    for (const Phase phase : {Phase::Forward, Phase::BackwardInput}) {
      for (std::size_t part = 1; part < program.parts(phase); ++part) {
        const BufferId buffer = program.exchanged(phase, part);
        MILLRACE_ASSERT(program.region(buffer) == Region::Transient);
        const std::int64_t elements = program.program().buffer(buffer).bytes / kDouble;
        exchanges_[u][index(phase)]
            .emplace_back(member_borders(elements, span), 0, replica % span)
            .bind(program.address(buffer, {}), kDouble, peers);
      }
    }
  }
}

std::size_t StatisticsTeams::parts(const LocalEntry& entry) const {
  const std::optional<Phase> phase = exchanging_phase(entry.action.kind);
  return phase ? runs_[entry.unit].program->parts(*phase) : 0;
}

std::size_t StatisticsTeams::size_at(std::span<const LocalEntry> entries, std::size_t first) const {
  if (parts(entries[first]) <= 1) return 1;
  const std::int32_t span = runs_[entries[first].unit].span;
  std::size_t size = 1;
  while (first + size < entries.size() && entries[first + size].entry == entries[first].entry &&
         entries[first + size].replica / span == entries[first].replica / span)
    ++size;
  return size;
}

void StatisticsTeams::start(const LocalEntry& entry, std::size_t part) {
  exchanges_[entry.unit][index(exchanging_phase(entry.action.kind).value())][part].start();
}

void StatisticsTeams::await(const LocalEntry& entry, std::size_t part, Recording& recording,
                            WeightUpdate& sums) {
  AllGather& exchange =
      exchanges_[entry.unit][index(exchanging_phase(entry.action.kind).value())][part];
  const std::int32_t span = runs_[entry.unit].span;
  const std::int32_t first = entry.replica / span * span;
  const Recording::While waiting(recording, Doing::AwaitMessage);
  comm::Patience patience = transport_->patience();
  for (std::int32_t member = exchange.awaited(); member >= 0; member = exchange.awaited()) {
    recording.await_member(first + member);
    if (sums.adding()) {
      sums.advance();
      patience.pause();
    } else {
      exchange.wait();
    }
  }
  recording.await_member(Recording::kNobody);
}

}  // namespace millrace::pipeline
