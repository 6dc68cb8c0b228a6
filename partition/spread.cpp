// SPDX-License-Identifier: Apache-2.0
#include "partition/spread.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "partition/balance.hpp"
#include "partition/cuts.hpp"
#include "pipeline/schedule/list_schedule.hpp"

namespace millrace::partition {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using pipeline::Link;
using pipeline::Schedule;

/// A place in the line where it may be cut: `replica` networks, and of the next one the ops before
/// `op`.
struct Place {
  std::int32_t replica = 0;
  std::int32_t op = 0;
};

/// The work of all replicas, one after the other.
class Line {
 public:
  Line(std::span<const OpCost> costs, const PlanRequest& request, std::span<const OpId> cuts,
       std::int32_t replicas) {
    const bool repeats = request.program.recompute == Recompute::Stage;
    std::vector<double> before = {0.0};  // work of the ops before each
    for (const OpCost& cost : costs)
      before.push_back(before.back() + cost.seconds() + (repeats ? cost.forward : 0.0));
    for (std::int32_t r = 0; r < replicas; ++r) {
      add({r, 0}, r * before.back());
      for (const OpId cut : cuts) add({r, cut.value}, r * before.back() + before[cut.at()]);
    }
    add({replicas, 0}, replicas * before.back());
    network_ = before.back();
  }

  [[nodiscard]] std::size_t last() const { return places_.size() - 1; }
  [[nodiscard]] const Place& place(std::size_t at) const { return places_[at]; }
  [[nodiscard]] double work(std::size_t at) const { return work_[at]; }
  [[nodiscard]] double network() const { return network_; }  ///< work of a replica
  /// The last place up to which there is no more than this much work, and the first from which.
  [[nodiscard]] std::size_t before(double work) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(work_, slack(work)) - work_.begin()) -
           1;
  }
  [[nodiscard]] std::size_t from(double work) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(work_, -slack(-work)) - work_.begin());
  }

 private:
  void add(const Place& place, double work) {
    places_.push_back(place);
    work_.push_back(work);
  }
  [[nodiscard]] double slack(double work) const { return work + 1e-9 * work_.back(); }

  std::vector<Place> places_;
  std::vector<double> work_;
  double network_ = 0.0;
};

/// Cuts the line into parts for ranks of these speeds.
class Divider {
 public:
  Divider(const Line& line, std::span<const double> speeds) : line_(line), speeds_(speeds) {
    for (const double speed : speeds) ideal_.push_back(ideal_.back() + speed);
    for (double& share : ideal_) share *= line.work(line.last()) / ideal_.back();
    const double mean = ideal_[1] / speeds.front();
    double low = mean;
    double high = mean;
    while (!suffices(high)) high *= 2.0;
    while (high > low * (1.0 + 1e-6)) {
      const double middle = 0.5 * (low + high);
      (suffices(middle) ? high : low) = middle;
    }
    least_ = high;
  }

  /// Where each part begins, and the end. No rank takes longer than `slack` times the least that is
  /// possible, unless it is too slow for a single place. Within that, replicas are cut at the same
  /// places.
  [[nodiscard]] std::vector<std::size_t> divide(double slack) const {
    const double most = slack * least_;
    std::vector<std::size_t> lowest(speeds_.size() + 1, line_.last());
    for (std::size_t i = speeds_.size() - 1; i > 0; --i)
      lowest[i] = line_.from(line_.work(lowest[i + 1]) - most * speeds_[i]);
    std::set<std::int32_t> used = {0};
    std::vector<std::size_t> borders = {0};
    for (std::size_t i = 1; i < speeds_.size(); ++i) {
      const std::size_t first = borders.back() + 1;  // every rank has something to do
      const std::size_t highest =
          std::clamp(line_.before(line_.work(borders.back()) + most * speeds_[i - 1]), first,
                     line_.last() - (speeds_.size() - i));
      std::size_t best = highest;
      const auto key = [&](std::size_t at) {
        return std::pair{!used.contains(line_.place(at).op), std::abs(line_.work(at) - ideal_[i])};
      };
      for (std::size_t at = std::max(lowest[i], first); at < highest; ++at)
        if (key(at) < key(best)) best = at;
      borders.push_back(best);
      used.insert(line_.place(best).op);
    }
    borders.push_back(line_.last());
    return borders;
  }

 private:
  /// Whether no rank has to take longer than `most`.
  [[nodiscard]] bool suffices(double most) const {
    std::size_t at = 0;
    for (const double speed : speeds_) at = line_.before(line_.work(at) + most * speed);
    return at == line_.last();
  }

  const Line& line_;
  std::span<const double> speeds_;
  std::vector<double> ideal_ = {0.0};
  double least_ = 0.0;  ///< the least time of the slowest rank
};

/// Consecutive stages of a replica on one rank.
struct Segment {
  std::int32_t replica = 0;
  std::int32_t first = 0;  ///< stages
  std::int32_t last = 0;
  std::int32_t rank = 0;
};

/// A line that is cut.
struct Cuts {
  std::vector<OpRange> stages;
  std::vector<Segment> segments;      ///< along the line
  std::vector<std::int32_t> segment;  ///< by unit
  std::vector<std::int32_t> shares;   ///< stages of each rank
};

Cuts cut(const Graph& graph, const Line& line, std::span<const std::size_t> borders) {
  std::set<std::int32_t> ops;
  for (const std::size_t border : borders) ops.insert(line.place(border).op);
  ops.insert(pipeline::whole(graph).last);
  Cuts cuts;
  for (auto op = ops.begin(); std::next(op) != ops.end(); ++op)
    cuts.stages.push_back({*op, *std::next(op)});
  const auto stages = static_cast<std::int32_t>(cuts.stages.size());
  for (std::size_t rank = 0; rank + 1 < borders.size(); ++rank) {
    const auto unit = [&](std::size_t border) {
      const Place& at = line.place(border);
      return at.replica * stages +
             static_cast<std::int32_t>(std::distance(ops.begin(), ops.find(at.op)));
    };
    const std::int32_t end = unit(borders[rank + 1]);
    std::int32_t first = unit(borders[rank]);
    cuts.shares.push_back(end - first);
    while (first < end) {
      const std::int32_t replica = first / stages;
      const std::int32_t last = std::min(end, (replica + 1) * stages);
      cuts.segment.insert(cuts.segment.end(), static_cast<std::size_t>(last - first),
                          static_cast<std::int32_t>(cuts.segments.size()));
      cuts.segments.push_back({replica, first - replica * stages, last - replica * stages,
                               static_cast<std::int32_t>(rank)});
      first = last;
    }
  }
  return cuts;
}

/// Copies between stages take the time of their device.
void add_copies(pipeline::Costs& costs, std::span<const Link> links, const PlanRequest& request) {
  for (std::size_t l = 0; l < links.size(); ++l) {
    const double seconds = 2.0 * costs.message_bytes[l] / request.device.bytes_per_second;
    if (links[l].activations)
      costs.stages[static_cast<std::size_t>(links[l].to)].forward += seconds;
    if (links[l].gradients)
      costs.stages[static_cast<std::size_t>(links[l].from)].backward_input += seconds;
  }
}

/// What segments send to each other.
void add_links(pipeline::AutoRequest& step, const Cuts& cuts, std::span<const Link> links,
               std::span<const double> message_bytes) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<Link, double>> between;
  for (std::size_t unit = 0; unit < cuts.segment.size(); unit += cuts.stages.size())
    for (std::size_t l = 0; l < links.size(); ++l) {
      const std::int32_t from = cuts.segment[unit + static_cast<std::size_t>(links[l].from)];
      const std::int32_t to = cuts.segment[unit + static_cast<std::size_t>(links[l].to)];
      if (from == to) continue;
      auto& [link, bytes] =
          between.try_emplace({from, to}, Link{from, to, false, false}, 0.0).first->second;
      link.activations |= links[l].activations;
      link.gradients |= links[l].gradients;
      bytes += message_bytes[l];
    }
  for (const auto& [ends, link] : between) {
    step.links.push_back(link.first);
    step.costs.message_bytes.push_back(link.second);
  }
}

/// The cost on a rank of this speed.
pipeline::StageCost at_speed(const pipeline::StageCost& cost, double speed) {
  return {cost.forward / speed, cost.backward_input / speed, cost.backward_weight / speed,
          cost.update / speed, cost.stash_bytes};
}

/// A step in which each rank takes the stages of a segment together.
pipeline::AutoRequest step_of(const Cuts& cuts, std::span<const Link> links,
                              const pipeline::Costs& costs, std::span<const double> speeds) {
  pipeline::AutoRequest step;
  step.costs = pipeline::costs_of_units(costs, cuts.segments.back().replica + 1);
  step.costs.stages.clear();
  step.costs.message_bytes.clear();
  step.costs.gradient_bytes.clear();
  step.costs.gradient_sums.clear();
  for (const Segment& segment : cuts.segments) {
    pipeline::StageCost sum;
    double gradients = 0.0;
    const double speed = speeds[static_cast<std::size_t>(segment.rank)];
    for (auto s = static_cast<std::size_t>(segment.first); std::cmp_less(s, segment.last); ++s) {
      const pipeline::StageCost cost = at_speed(costs.stages[s], speed);
      sum.forward += cost.forward;
      sum.backward_input += cost.backward_input;
      sum.backward_weight += cost.backward_weight;
      sum.update += cost.update;
      sum.stash_bytes += cost.stash_bytes;
      gradients += costs.gradient_bytes[s];
    }
    step.costs.stages.push_back(sum);
    step.costs.gradient_bytes.push_back(gradients);
    step.device_of.push_back(segment.rank);
  }
  add_links(step, cuts, links, costs.message_bytes);
  return step;
}

/// By segment, what a micro-batch keeps from one part of its backward pass for the other.
std::vector<double> kept_bytes(const Cuts& cuts, std::span<const OpCost> costs) {
  std::vector<double> kept;
  for (const Segment& segment : cuts.segments) {
    const auto first = cuts.stages[static_cast<std::size_t>(segment.first)].first;
    const auto last = cuts.stages[static_cast<std::size_t>(segment.last) - 1].last;
    kept.push_back(0.0);
    for (auto op = static_cast<std::size_t>(first); std::cmp_less(op, last); ++op)
      kept.back() += static_cast<double>(costs[op].kept_bytes);
  }
  return kept;
}

/// By segment, the micro-batches that 1F1B would hold there if all devices were as long as these on
/// average; up to `more` of them more, as far as each rank keeps to `most_bytes`, or else fewer.
/// Those that wait for their weight gradients are beyond 1F1B's, and hold `kept` bytes, too.
pipeline::Caps caps_of(const Cuts& cuts, const pipeline::ScheduleProblem& problem,
                       std::span<const double> kept, std::int32_t more, double most_bytes) {
  double work = 0.0;
  for (const pipeline::StageCost& cost : problem.costs.stages) work += cost.work();
  const double mean = work / problem.devices();
  pipeline::Caps caps(cuts.segments.size());
  std::vector<double> held(problem.stages_on.size());  // bytes, by rank
  double after = 0.0;
  for (std::size_t i = caps.size(); i-- > 0;) {
    const Segment& segment = cuts.segments[i];
    if (segment.last == std::ssize(cuts.stages)) after = 0.0;
    after += problem.costs.stages[i].work();
    caps[i] = std::max(1, static_cast<std::int32_t>(std::ceil(after / mean - 1e-6)));
    held[static_cast<std::size_t>(segment.rank)] +=
        caps[i] * problem.costs.stages[i].stash_bytes + kept[i];
  }
  const auto of_rank = [&](std::size_t i) -> double& {
    return held[static_cast<std::size_t>(cuts.segments[i].rank)];
  };
  const auto bytes = [&](std::size_t i) { return problem.costs.stages[i].stash_bytes + kept[i]; };
  const auto change = [&](std::size_t i, std::int32_t by) {
    caps[i] += by;
    of_rank(i) += by * bytes(i);
  };
  const auto too_much = [&](std::size_t i, std::int32_t by) {
    return of_rank(i) + by * bytes(i) > most_bytes;
  };
  for (std::size_t i = 0; i < caps.size(); ++i)
    while (caps[i] > 1 && too_much(i, 0)) change(i, -1);
  // A micro-batch that is ahead has its place in the next stage, too.
  const auto is_ahead = [&](std::size_t i) {
    return problem.split_backward && cuts.segments[i].last < std::ssize(cuts.stages) &&
           caps[i] > caps[i + 1];
  };
  for (std::int32_t n = 0; n < more; ++n)
    for (std::size_t i = 0; i < caps.size(); ++i)
      if (!is_ahead(i) && !too_much(i, 1)) change(i, 1);
  return caps;
}

/// The same order with the stages of each segment.
std::vector<std::vector<Action>> stages_in(const Cuts& cuts, const Schedule& listed) {
  const auto stages = static_cast<std::int32_t>(cuts.stages.size());
  std::vector<std::vector<Action>> lists;
  for (const std::vector<Action>& list : listed.lists) {
    std::vector<Action>& own = lists.emplace_back();
    for (const Action& action : list) {
      const Segment& segment = cuts.segments[static_cast<std::size_t>(action.stage)];
      const bool forward = action.kind == ActionKind::Forward;
      for (std::int32_t i = 0; i < segment.last - segment.first; ++i)
        own.push_back(
            {action.kind,
             segment.replica * stages + (forward ? segment.first + i : segment.last - 1 - i),
             action.micro_batch});
    }
  }
  return lists;
}

/// Sums over replicas begin after the last backward pass of a segment.
Schedule with_sums(Schedule order) {
  for (std::vector<Action>& list : order.lists) {
    std::vector<Action> updates;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!ends_micro_batch(list[i].kind) || list[i].micro_batch + 1 < order.micro_batches)
        continue;
      const std::int32_t stage = list[i].stage;
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(++i), {ActionKind::Reduce, stage});
      updates.push_back({ActionKind::Update, stage});
    }
    list.insert(list.end(), updates.begin(), updates.end());
  }
  return order;
}

pipeline::Costs costs_of_stages(const Graph& graph, std::span<const OpCost> costs,
                                const PlanRequest& request, std::span<const OpRange> stages,
                                std::span<const Link> links) {
  std::vector<pipeline::StageCost> by_stage;
  for (const OpRange& stage : stages)
    by_stage.push_back(stage_cost(costs, stage, request.program.recompute));
  pipeline::Costs all = step_costs(graph, stages, std::move(by_stage), request);
  add_copies(all, links, request);
  return all;
}

class Spreader {
 public:
  Spreader(const Graph& graph, std::span<const OpCost> costs, const PlanRequest& request,
           const pipeline::PipelinePlan& standing, std::span<const double> speeds)
      : graph_(graph),
        costs_(costs),
        request_(request),
        standing_(standing),
        speeds_(speeds.begin(), speeds.end()),
        ranks_(static_cast<std::size_t>(standing.ranks.ranks)) {
    if (speeds_.empty()) speeds_.assign(ranks_, 1.0);
  }

  std::optional<Spread> run() && {
    measure_standing();
    const std::vector<OpId> layers = filtered_cuts(graph_, {});
    const std::vector<OpId> ops = op_cuts(graph_);
    std::optional<Candidate> best;
    const bool fewer = std::cmp_less(ranks_, standing_.ranks.all_devices());
    for (const bool split : {false, true}) {
      if (splits_backward(standing_.schedule) ? !split : split && !fewer) continue;
      for (const std::vector<OpId>* const cuts : {&layers, &ops}) {
        if (cuts == &ops && ops == layers) continue;
        std::optional<Candidate> found = best_of(*cuts, split);
        if (found && (!best || found->seconds < kWorth * best->seconds)) best = std::move(found);
      }
    }
    if (!best || best->seconds >= kWorth * seconds_) return std::nullopt;
    return result(*std::move(best));
  }

 private:
  struct Candidate {
    Cuts cuts;
    pipeline::ScheduleProblem problem;
    std::vector<double> kept;  ///< by segment, as kept_bytes()
    Schedule order = {};       ///< the best so far
    double seconds = std::numeric_limits<double>::infinity();
  };
  static constexpr double kGood = 1.01;    ///< of share_: it is hardly worth to look further
  static constexpr double kWorth = 0.97;   ///< more stages cost what nobody counts
  static constexpr double kHardly = 1e-3;  ///< of its part, for a rank that is spared
  static constexpr pipeline::Rule kFirst = {
      .order = pipeline::Rule::Order::InTurn, .ranks = {0, 0, 2}, .age = 0.0, .patience = 0.3};

  [[nodiscard]] std::int32_t replicas() const { return standing_.ranks.replicas; }

  /// Seconds and bytes of the layout as it stands.
  void measure_standing() {
    const std::vector<Link> links = pipeline::links(graph_, standing_.ranges);
    const pipeline::Costs costs =
        costs_of_stages(graph_, costs_, request_, standing_.ranges, links);
    const pipeline::TimeLine whole = pipeline::simulate(standing_.schedule, links, costs);
    constexpr double kAbout = 1.35;  // memory is not as even as time, and stages are not as long
    const double more = standing_.ranks.all_devices() / static_cast<double>(ranks_);
    most_bytes_ = kAbout * more * std::ranges::max(whole.stash_bytes);
    const double sum = std::accumulate(speeds_.begin(), speeds_.end(), 0.0);
    share_ = standing_.ranks.all_devices() / sum * whole.makespan;
    seconds_ = seconds_of(graph_, costs_, request_, standing_, speeds_);
  }

  /// The fastest with these cuts allowed; among equals, that with the fewest stages. Where it saves
  /// time, a few ranks have hardly a part: without them the others can cut all replicas alike.
  std::optional<Candidate> best_of(std::span<const OpId> cuts, bool split) const {
    std::optional<Candidate> best;
    const Line line(costs_, request_, cuts, replicas());
    if (line.last() < ranks_) return best;
    std::vector<double> parts = speeds_;
    const std::size_t most = (ranks_ + 56) / 64;  // one of 8 ranks, four of 256
    for (std::size_t spared = 0; spared <= most; ++spared) {
      if (spared > 0) parts[ranks_ - spared] *= kHardly;
      const double worth = spared > 0 ? kGood : 1.0;
      const Divider divider(line, parts);
      std::size_t before = 0;
      for (const double slack : {1.0, 1.01, 1.02, 1.04}) {
        Cuts tried = cut(graph_, line, divider.divide(slack));
        if (tried.stages.size() < 2 || tried.stages.size() == before) continue;
        before = tried.stages.size();
        Candidate candidate = candidate_of(std::move(tried), split);
        list(candidate, kFirst, held_more(candidate.problem).front());
        if (!best || worth * candidate.seconds <= best->seconds) best = std::move(candidate);
      }
    }
    if (best) improve(*best);
    return best;
  }

  [[nodiscard]] Candidate candidate_of(Cuts tried, bool split) const {
    const std::vector<Link> links = pipeline::links(graph_, tried.stages);
    const pipeline::Costs costs = costs_of_stages(graph_, costs_, request_, tried.stages, links);
    pipeline::AutoRequest step = step_of(tried, links, costs, speeds_);
    step.micro_batches = standing_.schedule.micro_batches;
    step.split_backward = split;
    std::vector<double> kept =
        split ? kept_bytes(tried, costs_) : std::vector<double>(tried.segments.size());
    return {.cuts = std::move(tried),
            .problem = pipeline::ScheduleProblem(std::move(step)),
            .kept = std::move(kept)};
  }

  /// How many micro-batches more than under 1F1B a stage may hold, first what is best most often:
  /// where weight gradients fill gaps, as many as its rank has room for.
  [[nodiscard]] static std::vector<std::int32_t> held_more(const pipeline::ScheduleProblem& step) {
    if (step.split_backward) return {step.micro_batches};
    return {1, 0, 2};
  }

  /// Tries another order.
  void list(Candidate& best, const pipeline::Rule& rule, std::int32_t more) const {
    if (!best.problem.split_backward && best.seconds <= kGood * share_) return;
    const pipeline::ScheduleProblem& problem = best.problem;
    Schedule order =
        pipeline::list_schedule(problem, pipeline::Paths(problem), rule,
                                caps_of(best.cuts, problem, best.kept, more, most_bytes_));
    const double seconds =
        pipeline::simulate(with_sums(order), problem.links, problem.costs).makespan;
    if (seconds >= best.seconds) return;
    best.order = std::move(order);
    best.seconds = seconds;
  }

  void improve(Candidate& best) const {
    using enum pipeline::Rule::Order;
    for (const std::int32_t more : held_more(best.problem)) {
      list(best, {ByKind, {1, 0, 2}, 0.0, 0.0}, more);
      for (const double patience : {0.0, 0.3, 0.7}) {
        list(best, {InTurn, {0, 0, 2}, 0.0, patience}, more);
        list(best, {ByPath, {0, 0, 0}, 0.3, patience}, more);
      }
    }
  }

  [[nodiscard]] Spread result(Candidate found) const {
    Spread spread{.splits = splits_of(graph_, found.cuts.stages),
                  .shares = std::move(found.cuts.shares),
                  .order = std::move(found.order),
                  .seconds = found.seconds,
                  .standing = seconds_};
    spread.order.name = "Spread";
    spread.order.stages = static_cast<std::int32_t>(found.cuts.segment.size());
    spread.order.lists = stages_in(found.cuts, spread.order);
    spread.order.device_of.clear();
    for (const std::int32_t segment : found.cuts.segment)
      spread.order.device_of.push_back(found.cuts.segments[static_cast<std::size_t>(segment)].rank);
    return spread;
  }

  const Graph& graph_;
  std::span<const OpCost> costs_;
  const PlanRequest& request_;
  const pipeline::PipelinePlan& standing_;
  std::vector<double> speeds_;
  std::size_t ranks_;
  double seconds_ = 0.0;     ///< of the standing layout
  double most_bytes_ = 0.0;  ///< that a rank may hold
  double share_ = 0.0;       ///< seconds with a rank for each device, for fewer ranks
};

}  // namespace

std::optional<Spread> spread(const Graph& graph, std::span<const OpCost> costs,
                             const PlanRequest& request, const pipeline::PipelinePlan& standing,
                             std::span<const double> speeds) {
  return Spreader(graph, costs, request, standing, speeds).run();
}

double seconds_of(const Graph& graph, std::span<const OpCost> costs, const PlanRequest& request,
                  const pipeline::PipelinePlan& plan, std::span<const double> speeds) {
  const std::vector<Link> links = pipeline::links(graph, plan.ranges);
  pipeline::Costs all = pipeline::costs_of_units(
      costs_of_stages(graph, costs, request, plan.ranges, links), plan.ranks.replicas);
  const Schedule joint = with_sums(joint_order(plan, links));
  for (std::size_t unit = 0; unit < all.stages.size(); ++unit)
    all.stages[unit] =
        at_speed(all.stages[unit], speeds[static_cast<std::size_t>(joint.device_of[unit])]);
  const auto joined = pipeline::links_of_units(links, plan.schedule.stages, plan.ranks.replicas);
  return pipeline::simulate(joint, joined, all).makespan;
}

pipeline::PipelinePlan plan_of(const Graph& graph, const Spread& spread, std::int32_t replicas) {
  pipeline::PipelinePlan plan;
  plan.ranges = stages_of(graph, spread.splits);
  const auto stages = static_cast<std::int32_t>(plan.ranges.size());
  plan.ranks = {.devices = stages,
                .replicas = replicas,
                .ranks = static_cast<std::int32_t>(spread.shares.size()),
                .shares = spread.shares};
  const std::vector<Link> links = pipeline::links(graph, plan.ranges);
  plan.joint = pipeline::joint_schedule(spread.order, links, replicas);
  Schedule first{.name = spread.order.name,
                 .stages = stages,
                 .micro_batches = spread.order.micro_batches,
                 .device_of = {},
                 .lists = std::vector<std::vector<Action>>(plan.ranges.size())};
  for (std::int32_t s = 0; s < stages; ++s) first.device_of.push_back(s);
  for (const std::vector<Action>& list : spread.order.lists)
    for (const Action& action : list)
      if (action.stage < stages)
        first.lists[static_cast<std::size_t>(action.stage)].push_back(action);
  plan.schedule = with_communication(first, links);
  return plan;
}

}  // namespace millrace::partition
