// SPDX-License-Identifier: Apache-2.0
#include "partition/layout_search.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/balance.hpp"
#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::partition {
namespace {

/// A layout without its schedule and cuts.
struct Shape {
  std::int32_t stages;  ///< devices of a pipeline
  std::int32_t replicas;
  std::int64_t batch;
  std::int32_t micro_batches;
  double bound;  ///< seconds that no schedule can beat
};

/// What processes need besides their stages, learned from the layouts that were measured.
class MeasuredRests {
 public:
  MeasuredRests(std::int64_t assumed, std::int64_t varies) : assumed_(assumed), varies_(varies) {}

  /// Of a layout that was not measured: what is assumed for a smaller micro-batch, which needs
  /// less, is rather too little, so that it is tried and measured.
  [[nodiscard]] std::int64_t of(std::int32_t devices, std::int64_t batch) const {
    constexpr double kLess = 0.9;
    const auto found = rests_.find({devices, batch});
    if (found != rests_.end()) return found->second;
    std::optional<std::int64_t> least;
    for (const auto& [layout, rest] : rests_)
      if (layout.first == devices) least = std::min(least.value_or(rest), rest);
    return least ? static_cast<std::int64_t>(kLess * static_cast<double>(*least)) : assumed_;
  }

  /// The sizes of a search are approximate, so that the rest is what was measured without them.
  void learn(const FoundLayout& layout) {
    const std::int64_t rest = layout.with_process + varies_ - largest_device(layout.plan);
    const auto [at, added] =
        rests_.try_emplace({layout.request.schedule.devices, layout.plan.batch}, rest);
    if (!added) at->second = std::max(at->second, rest);
  }

 private:
  std::int64_t assumed_;
  std::int64_t varies_;
  std::map<std::pair<std::int32_t, std::int64_t>, std::int64_t> rests_;
};

class LayoutSearcher {
 public:
  LayoutSearcher(const Graph& graph, const PlanRequest& base, const LayoutSearch& search,
                 const MeasuredRests& rests)
      : graph_(graph), base_(base), search_(search), rests_(rests), cuts_(op_cuts(graph)) {}

  std::vector<FoundLayout> run() && {
    for (const Shape& shape : shapes()) {
      const FoundLayout* known = known_for(shape.stages);
      if (known != nullptr && shape.bound >= known->plan.seconds) continue;
      if (beaten(shape)) continue;
      try_schedules(shape);
    }
    if (best_.empty()) refuse();
    std::vector<FoundLayout> found;
    for (auto& [stages, layout] : best_) found.push_back(finished(std::move(layout)));
    std::ranges::stable_sort(found, {}, [](const auto& each) { return each.plan.seconds; });
    found.resize(std::min(found.size(), search_.results));
    return found;
  }

 private:
  [[nodiscard]] std::ptrdiff_t most_stages() const { return std::ssize(cuts_) + 1; }

  [[nodiscard]] const std::vector<OpCost>& costs(std::int64_t batch) {
    const auto [found, added] = costs_.try_emplace(batch);
    if (added) {
      pipeline::ProgramOptions program = base_.program;
      program.batch = batch;
      found->second = estimated_costs(graph_, program, base_.device);
    }
    return found->second;
  }

  /// All shapes, the most promising first.
  std::vector<Shape> shapes() {
    constexpr std::int64_t kLargestMicroBatch = 512;
    constexpr std::int64_t kMostActions = 65'536;  // more take long to simulate
    std::vector<Shape> all;
    for (std::int32_t stages = 1; stages <= search_.devices; ++stages) {
      if (search_.devices % stages != 0 || stages > most_stages()) continue;
      const std::int32_t replicas = search_.devices / stages;
      if (search_.total_batch % replicas != 0) continue;
      const std::int64_t share = search_.total_batch / replicas;
      const std::int64_t deepest = std::max<std::int64_t>(
          64, std::min<std::int64_t>(16 * std::int64_t{stages}, kMostActions / stages));
      bool any = false;
      for (std::int64_t batch = std::min(share, kLargestMicroBatch); batch >= 1; --batch) {
        if (share % batch != 0 || (any && share / batch > deepest)) continue;
        if (share / batch > kMostActions) break;
        any = true;
        const auto depth = static_cast<std::int32_t>(share / batch);
        all.push_back({stages, replicas, batch, depth, bound(stages, replicas, batch, depth)});
      }
    }
    if (all.empty())
      fail(ErrorKind::Config,
           "{} images an update have no layout on {} devices: `total-batch` must be a multiple of "
           "the replicas, and a replica's share of micro-batches of 1 to {} images, at most {} of "
           "them",
           search_.total_batch, search_.devices, kLargestMicroBatch, kMostActions);
    std::ranges::stable_sort(all, {}, &Shape::bound);
    return all;
  }

  /// The work shared out evenly, and the gradients of an average device.
  double bound(std::int32_t stages, std::int32_t replicas, std::int64_t batch, std::int32_t depth) {
    double gradients = 0.0;
    for (const models::Parameter& p : graph_.parameters)
      if (p.learns()) gradients += static_cast<double>(p.elements() * size_of(DType::F32));
    double work = 0.0;
    for (const OpCost& cost : costs(batch)) work += cost.seconds();
    const double compute = depth * work / stages;
    const double reduce =
        all_reduce_seconds(base_.link, replicas, gradients / stages, base_.device.bytes_per_second);
    // A network card reduces gradients while the processor computes others.
    return base_.link.receiver_copies ? compute + reduce : std::max(compute, reduce);
  }

  [[nodiscard]] const FoundLayout* known_for(std::int32_t stages) const {
    const auto found = best_.find(stages);
    return found == best_.end() ? nullptr : &found->second;
  }
  /// Whether there are enough layouts of other numbers of stages that are faster.
  [[nodiscard]] bool beaten(const Shape& shape) const {
    const auto faster = std::count_if(best_.begin(), best_.end(), [&](const auto& each) {
      return each.first != shape.stages && each.second.plan.seconds <= shape.bound;
    });
    return faster >= std::ssize(best_) - 1 &&
           faster >= static_cast<std::ptrdiff_t>(search_.results);
  }

  [[nodiscard]] PlanRequest request_of(const Shape& shape) const {
    PlanRequest request = base_;
    request.program.batch = shape.batch;
    request.replicas = shape.replicas;
    if (search_.shards_optimizer) request.update.shares = shape.replicas;
    request.schedule.devices = shape.stages;
    request.schedule.micro_batches = shape.micro_batches;
    return request;
  }

  /// With 1F1B first: the others are passed over if it takes much longer than the best layout.
  void try_schedules(const Shape& shape) {
    constexpr double kFar = 2.0;
    constexpr std::string_view kFirst = "1F1B";
    PlanRequest request = request_of(shape);
    std::vector<ScheduleCandidate> schedules = schedules_for(graph_, request.schedule);
    if (shape.stages > 1)  // a pipeline whose stages wait for each other
      std::erase_if(schedules, [](const auto& each) { return each.schedule.name == "Sequential"; });
    std::stable_partition(schedules.begin(), schedules.end(),
                          [&](const auto& each) { return each.schedule.name == kFirst; });
    for (ScheduleCandidate& candidate : schedules) {
      request.schedule = std::move(candidate.schedule);
      const double seconds = offer(request);
      if (request.schedule.name == kFirst && seconds > kFar * fastest()) return;
    }
  }

  [[nodiscard]] double fastest() const {
    double seconds = std::numeric_limits<double>::infinity();
    for (const auto& [stages, layout] : best_) seconds = std::min(seconds, layout.plan.seconds);
    return seconds;
  }

  /// Recomputation is tried if it does not fit without. Returns the seconds without.
  double offer(PlanRequest request) {
    constexpr std::size_t kCandidates = 4;
    std::optional<double> seconds;
    for (const Recompute recompute : {base_.program.recompute, Recompute::Stage}) {
      request.program.recompute = recompute;
      for (Plan& plan : plans_of(request, kCandidates)) {
        const FoundLayout* known = known_for(request.schedule.devices);
        seconds = seconds.value_or(plan.seconds);
        if (known != nullptr && plan.seconds >= known->plan.seconds) return *seconds;
        set_memory(plan, graph_, request);
        if (!fits(plan, request)) continue;
        const std::int32_t stages = request.schedule.devices;
        best_.insert_or_assign(stages, FoundLayout{std::move(request), std::move(plan), {}});
        return *seconds;
      }
    }
    return *seconds;
  }

  std::vector<Plan> plans_of(const PlanRequest& request, std::size_t candidates) {
    return quick_plans(graph_, costs(request.program.batch), request,
                       {.cuts = cuts_, .candidates = candidates});
  }

  bool fits(const Plan& plan, const PlanRequest& request) {
    const std::int64_t rest = search_.measure ? rests_.of(request.schedule.devices, plan.batch) : 0;
    const std::int64_t needed = largest_device(plan) + rest;
    least_ = std::min(least_, needed);
    return search_.memory_limit == 0 || needed <= search_.memory_limit;
  }

  /// Errors: Config, naming `memory`.
  [[noreturn]] void refuse() const {
    fail(ErrorKind::Config,
         "no layout of {} devices fits into {} a device; the smallest found needs {}: raise "
         "`memory`, or use more devices",
         search_.devices, human_bytes(search_.memory_limit), human_bytes(least_));
  }

  /// The layout with the best cuts, and where its time goes.
  FoundLayout finished(FoundLayout layout) {
    const PlanRequest& request = layout.request;
    if (request.schedule.devices > 1)
      for (Plan& plan : plans_of(request, Search{}.candidates)) {
        if (plan.seconds >= layout.plan.seconds) break;
        set_memory(plan, graph_, request);
        if (!fits(plan, request)) continue;
        layout.plan = std::move(plan);
        break;
      }
    if (request.program.recompute == Recompute::Stage)  // what is not repeated costs nothing
      layout.plan = make_plan(graph_, costs(request.program.batch),
                              stages_of(graph_, layout.plan.splits), request);
    const Plan& plan = layout.plan;
    const std::vector<OpRange> ranges = stages_of(graph_, plan.splits);
    const auto links = pipeline::links(graph_, ranges);
    const auto schedule = with_communication(pipeline::generate(request.schedule), links);
    pipeline::Costs step = step_costs(graph_, ranges, plan.costs, request);
    pipeline::Costs apart = step;
    for (pipeline::StageCost& cost : apart.stages) cost.update = 0.0;
    const auto seconds = [&](const pipeline::Costs& c) {
      return simulate(schedule, links, c).makespan;
    };
    const double reduced = seconds(apart);
    apart.replicas = 1;
    const double sent = seconds(apart);
    apart.link = {};
    const double alone = seconds(apart);
    double compute = 0.0;
    for (const pipeline::StageCost& cost : plan.costs)
      compute += cost.forward + cost.backward_input + cost.backward_weight;
    compute *= static_cast<double>(plan.micro_batches) / request.schedule.devices;
    layout.parts = {.compute = compute,
                    .bubble = alone - compute,
                    .messages = sent - alone,
                    .reduce = reduced - sent,
                    .update = plan.seconds - reduced};
    return layout;
  }

  const Graph& graph_;
  const PlanRequest& base_;
  const LayoutSearch& search_;
  const MeasuredRests& rests_;
  std::vector<models::OpId> cuts_;                     ///< between ops
  std::map<std::int64_t, std::vector<OpCost>> costs_;  ///< by micro-batch
  std::map<std::int32_t, FoundLayout> best_;           ///< by stages
  std::int64_t least_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace

std::vector<FoundLayout> search_layouts(const Graph& graph, const PlanRequest& base,
                                        const LayoutSearch& search) {
  constexpr int kRounds = 16;
  MeasuredRests rests(search.assumed_rest, search.varies);
  const auto fits = [&](const FoundLayout& layout) {
    return layout.with_process + search.varies <= search.memory_limit;
  };
  for (int round = 1;; ++round) {
    std::vector<FoundLayout> found = LayoutSearcher(graph, base, search, rests).run();
    if (!search.measure || search.memory_limit == 0) return found;
    for (FoundLayout& layout : found) {
      layout.with_process = search.measure(layout);
      rests.learn(layout);
    }
    if (std::ranges::all_of(found, fits)) return found;
    if (round < kRounds) continue;
    std::erase_if(found, [&](const auto& layout) { return !fits(layout); });
    if (!found.empty()) return found;
  }
}

}  // namespace millrace::partition
