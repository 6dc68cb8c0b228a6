// SPDX-License-Identifier: Apache-2.0
#include "partition/balance.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/cuts.hpp"
#include "pipeline/memory_plan.hpp"

namespace millrace::partition {
namespace {

/// Where stages may begin and end: op 0, the cuts, and the end of the network. Boundaries are
/// numbered from 0; stage (i, j) lies between boundaries i and j.
class Boundaries {
 public:
  Boundaries(const std::vector<OpId>& cuts, std::size_t ops) {
    at_.push_back(0);
    for (const OpId cut : cuts) {
      MILLRACE_ASSERT(cut.value > at_.back() && cut.at() < ops);
      at_.push_back(cut.value);
    }
    at_.push_back(static_cast<std::int32_t>(ops));
  }
  [[nodiscard]] std::size_t last() const { return at_.size() - 1; }
  [[nodiscard]] std::size_t op(std::size_t i) const { return static_cast<std::size_t>(at_[i]); }
  [[nodiscard]] OpRange range(std::size_t i, std::size_t j) const { return {at_[i], at_[j]}; }
  /// Bytes of stage (i, j) if it is stage number `stage`.
  [[nodiscard]] std::int64_t bytes(const StageMemory& memory, std::size_t i, std::size_t j,
                                   std::size_t stage) const {
    return memory(range(i, j), static_cast<std::int32_t>(stage));
  }

 private:
  std::vector<std::int32_t> at_;
};

/// Calls `visit(stage, i, j)` for every stage that can be part of a plan, in ascending order of
/// stage, then of end.
template <class Visit>
void for_each_stage(std::size_t stages, std::size_t last, Visit&& visit) {
  for (std::size_t s = 0; s < stages; ++s) {
    const std::size_t behind = stages - 1 - s;
    const std::size_t begin = behind == 0 ? last : s + 1;
    for (std::size_t j = begin; j + behind <= last; ++j)
      for (std::size_t i = s; i < j; ++i)
        if (s > 0 || i == 0) visit(s, i, j);
  }
}

/// The smallest possible memory of the largest stage.
std::int64_t least_memory(const Boundaries& boundaries, std::size_t stages,
                          const StageMemory& memory) {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  const std::size_t last = boundaries.last();
  std::vector<std::vector<std::int64_t>> least(stages + 1,
                                               std::vector<std::int64_t>(last + 1, kNever));
  least[0][0] = 0;
  for_each_stage(stages, last, [&](std::size_t s, std::size_t i, std::size_t j) {
    if (least[s][i] >= least[s + 1][j]) return;
    const std::int64_t most = std::max(least[s][i], boundaries.bytes(memory, i, j, s));
    least[s + 1][j] = std::min(least[s + 1][j], most);
  });
  return least[stages][last];
}

// ---- the K best by time

/// One way to cover the ops up to a boundary: way number `rank` of boundary `from`, and one stage.
struct Way {
  double bound = 0.0;
  double unevenness = 0.0;  ///< sum of squares
  std::size_t from = 0;
  std::size_t rank = 0;
  friend auto operator<=>(const Way&, const Way&) = default;  // NOLINT(modernize-use-nullptr)
};

class Balancer {
 public:
  Balancer(const BalanceRequest& request, const Boundaries& boundaries)
      : request_(request),
        boundaries_(boundaries),
        stages_(static_cast<std::size_t>(request.stages)),
        ways_(stages_ + 1, std::vector<std::vector<Way>>(boundaries_.last() + 1)) {
    seconds_.push_back(0.0);
    lead_.push_back(0.0);
    for (const OpCost& cost : request.costs) {
      const double again = request.recompute == Recompute::Stage ? cost.forward : 0.0;
      const double work = cost.seconds() + again;
      seconds_.push_back(seconds_.back() + work);
      lead_.push_back(lead_.back() + (request.backward == Backward::Split ? cost.forward : work));
    }
    ways_[0][0].push_back({});
  }

  std::vector<Balance> run() {
    for_each_stage(stages_, boundaries_.last(),
                   [&](std::size_t s, std::size_t i, std::size_t j) { extend(s, i, j); });
    std::vector<Balance> plans;
    const std::vector<Way>& complete = ways_[stages_][boundaries_.last()];
    for (std::size_t rank = 0; rank < complete.size(); ++rank) plans.push_back(trace(rank));
    return plans;
  }

 private:
  [[nodiscard]] bool fits(std::size_t s, std::size_t i, std::size_t j) const {
    return !request_.memory || boundaries_.bytes(request_.memory, i, j, s) <= request_.memory_limit;
  }

  /// Appends stage s to every way that ends where it begins.
  void extend(std::size_t s, std::size_t i, std::size_t j) {
    const double work = seconds_[boundaries_.op(j)] - seconds_[boundaries_.op(i)];
    const double bound = lead_[boundaries_.op(i)] + request_.micro_batches * work;
    std::vector<Way>& best = ways_[s + 1][j];
    bool fitting = false;
    for (std::size_t rank = 0; rank < ways_[s][i].size(); ++rank) {
      const Way& old = ways_[s][i][rank];
      const Way way{std::max(old.bound, bound), old.unevenness + work * work, i, rank};
      const bool full = best.size() == request_.plans;
      if (full && way.bound > best.back().bound) return;  // later ways have larger bounds
      if (full && !(way < best.back())) continue;
      if (!fitting && !fits(s, i, j)) return;
      fitting = true;
      best.insert(std::upper_bound(best.begin(), best.end(), way), way);
      if (best.size() > request_.plans) best.pop_back();
    }
  }

  [[nodiscard]] Balance trace(std::size_t rank) const {
    Balance plan;
    plan.bound = ways_[stages_][boundaries_.last()][rank].bound;
    plan.stages.resize(stages_);
    std::size_t end = boundaries_.last();
    for (std::size_t s = stages_; s-- > 0;) {
      const Way& way = ways_[s + 1][end][rank];
      plan.stages[s] = boundaries_.range(way.from, end);
      end = way.from;
      rank = way.rank;
    }
    return plan;
  }

  const BalanceRequest& request_;
  const Boundaries& boundaries_;
  std::size_t stages_;
  std::vector<double> seconds_;  ///< of all ops before an op
  std::vector<double> lead_;     ///< the part of it that a stage which begins at the op waits for
  std::vector<std::vector<std::vector<Way>>> ways_;  ///< by stages, then boundary; sorted
};

// ---- shards

/// The most even way to cut with no stage above `limit`: the smallest sum of squares.
std::vector<OpRange> evenest(const Boundaries& boundaries, std::size_t shards,
                             const StageMemory& memory, std::int64_t limit) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Cheapest {
    double squares = kNever;
    std::size_t from = 0;
  };
  std::vector<std::vector<Cheapest>> best(shards + 1, std::vector<Cheapest>(boundaries.last() + 1));
  best[0][0].squares = 0.0;
  for_each_stage(shards, boundaries.last(), [&](std::size_t s, std::size_t i, std::size_t j) {
    const auto bytes = static_cast<double>(boundaries.bytes(memory, i, j, s));
    if (bytes > static_cast<double>(limit)) return;
    const double squares = best[s][i].squares + bytes * bytes;
    if (squares < best[s + 1][j].squares) best[s + 1][j] = {squares, i};
  });
  std::vector<OpRange> stages(shards);
  std::size_t end = boundaries.last();
  for (std::size_t s = shards; s-- > 0;) {
    const std::size_t from = best[s + 1][end].from;
    stages[s] = boundaries.range(from, end);
    end = from;
  }
  return stages;
}

[[noreturn]] void fail_memory(const BalanceRequest& request, std::int64_t least) {
  fail(ErrorKind::Config,
       "no choice of cuts fits {} stages into {} ({} bytes) each; the smallest limit that works is "
       "{} ({} bytes)",
       request.stages, human_bytes(request.memory_limit), request.memory_limit, human_bytes(least),
       least);
}

}  // namespace

const StageBytes::Figures& StageBytes::of(OpRange range, pipeline::Slots slots) {
  Known& known = known_[{range.first, range.last}];
  for (const auto& [with, figures] : known)
    if (with == slots) return figures;
  Figures figures;
  const auto chosen = chosen_.find({range.first, range.last});
  figures.options = chosen != chosen_.end()
                        ? with_chosen(options_, chosen->second)
                        : pipeline::with_segments(*graph_, range, options_, slots);
  figures.bytes = sizer_ ? sizer_(range, figures.options, slots)
                         : stage_bytes(*graph_, range, figures.options, slots, update_);
  return known.emplace_back(slots, std::move(figures)).second;
}

StageMemory exact_memory(std::shared_ptr<StageBytes> bytes, std::vector<pipeline::Slots> slots) {
  return [bytes = std::move(bytes), slots = std::move(slots)](OpRange range, std::int32_t stage) {
    return (*bytes)(range, slots.at(static_cast<std::size_t>(stage)));
  };
}

std::vector<Balance> balance(const BalanceRequest& request) {
  MILLRACE_ASSERT(request.stages >= 1 && request.plans >= 1);
  if (request.stages - 1 > std::ssize(request.cuts))
    fail(ErrorKind::Config, "{} stages need {} cuts, but the network has only {} possible cuts",
         request.stages, request.stages - 1, request.cuts.size());
  const Boundaries boundaries(request.cuts, request.costs.size());
  std::vector<Balance> plans = Balancer(request, boundaries).run();
  if (plans.empty())
    fail_memory(request,
                least_memory(boundaries, static_cast<std::size_t>(request.stages), request.memory));
  return plans;
}

std::vector<OpId> filtered_cuts(const Graph& graph, const LayerFilter& filter) {
  std::vector<OpId> cuts;
  for (std::size_t i = 1; i < graph.layers.size(); ++i) {
    const std::string& before = graph.layers[i - 1].name;
    const std::string& behind = graph.layers[i].name;
    const bool included = filter.include.empty() || contains_any(before, filter.include) ||
                          contains_any(behind, filter.include);
    const bool excluded =
        contains_any(before, filter.exclude) || contains_any(behind, filter.exclude);
    if (included && !excluded) cuts.push_back(graph.layers[i].first_op);
  }
  return cuts;
}

std::vector<OpRange> shard_by_memory(const Graph& graph, std::int32_t shards,
                                     const LayerFilter& filter, const StageMemory& memory) {
  MILLRACE_ASSERT(shards >= 1);
  const std::vector<OpId> cuts = filtered_cuts(graph, filter);
  if (shards - 1 > std::ssize(cuts)) {
    std::vector<std::string> names;
    names.reserve(cuts.size());
    for (const OpId cut : cuts) names.push_back(cut_name(graph, cut));
    const bool filtered = !filter.include.empty() || !filter.exclude.empty();
    fail(ErrorKind::Config, "`shards` {} needs {} cuts between layers, but {} {} in {}{}{}", shards,
         shards - 1,
         filtered ? "`sharding-include-filter` and `sharding-exclude-filter` leave"
                  : "there are only",
         cuts.size(), graph.name, names.empty() ? "" : ": ", join(names, ", "));
  }
  const Boundaries boundaries(cuts, graph.ops.size());
  const auto stages = static_cast<std::size_t>(shards);
  return evenest(boundaries, stages, memory, least_memory(boundaries, stages, memory));
}

}  // namespace millrace::partition
