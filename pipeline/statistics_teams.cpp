// SPDX-License-Identifier: Apache-2.0
#include "pipeline/statistics_teams.hpp"

#include "core/error.hpp"

namespace millrace::pipeline {
namespace {

/// Equal parts, one for each member of a group.
Parts member_parts(std::int64_t elements, std::int32_t members) {
  const std::int64_t own = elements / members;
  Parts parts;
  for (std::int32_t r = 0; r < members; ++r) parts.push_back({own * r, own * (r + 1)});
  return parts;
}

std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

}  // namespace

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
      rank_of.push_back(plan_->rank_of(r, stage));
    const Peers peers{&transport, rank_of, first_tag + group * span * span};
    const BoundProgram& program = *runs_[u].program;
    for (const Phase phase : {Phase::Forward, Phase::BackwardInput}) {
      for (std::size_t part = 1; part < program.parts(phase); ++part) {
        const BufferId buffer = program.exchanged(phase, part);
        std::optional<AllGather>& exchange = exchanges_[u][index(phase)].emplace_back();
        if (!buffer.valid()) continue;
        MILLRACE_ASSERT(program.region(buffer) == Region::Transient);
        const std::int64_t elements = program.program().buffer(buffer).bytes / kDouble;
        exchange.emplace(member_parts(elements, span), replica % span)
            .bind(program.address(buffer, {}), kDouble, peers);
      }
    }
  }
}

std::size_t StatisticsTeams::size_at(std::span<const LocalEntry> entries, std::size_t first) const {
  const StageRun& run = runs_[entries[first].unit];
  const std::optional<Phase> phase = exchanging_phase(entries[first].action.kind);
  if (!phase || run.program->parts(*phase) <= 1) return 1;
  std::size_t size = 1;
  while (first + size < entries.size() && entries[first + size].entry == entries[first].entry &&
         entries[first + size].replica / run.span == entries[first].replica / run.span)
    ++size;
  return size;
}

AllGather& StatisticsTeams::exchange(const LocalEntry& entry, std::size_t part) {
  return *exchanges_[entry.unit][index(exchanging_phase(entry.action.kind).value())][part];
}

bool StatisticsTeams::exchanges(const LocalEntry& entry, std::size_t part) const {
  const std::optional<Phase> phase = exchanging_phase(entry.action.kind);
  if (!phase) return false;
  const auto& exchanges = exchanges_[entry.unit][index(*phase)];
  return part < exchanges.size() && exchanges[part].has_value();
}

void StatisticsTeams::start(const LocalEntry& entry, std::size_t part) {
  exchange(entry, part).start();
}

void StatisticsTeams::await(const LocalEntry& entry, std::size_t part, Recording& recording,
                            WeightUpdate& sums) {
  AllGather& sums_of_group = exchange(entry, part);
  const std::int32_t span = runs_[entry.unit].span;
  const std::int32_t first = entry.replica / span * span;
  const Recording::While waiting(recording, Doing::AwaitMessage);
  comm::Patience patience = transport_->patience();
  for (std::int32_t member = sums_of_group.awaited(); member >= 0;
       member = sums_of_group.awaited()) {
    recording.await_member(first + member);
    if (sums.adding()) {
      sums.advance();
      patience.pause();
    } else {
      sums_of_group.wait();
    }
  }
}

}  // namespace millrace::pipeline
