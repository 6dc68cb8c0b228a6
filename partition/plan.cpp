// SPDX-License-Identifier: Apache-2.0
#include "partition/plan.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/balance.hpp"
#include "partition/cuts.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::partition {
namespace {

using pipeline::Schedule;

pipeline::ProgramOptions program_options(const PlanRequest& request, const Schedule& compute) {
  pipeline::ProgramOptions options = request.program;
  options.backward = splits_backward(compute) ? Backward::Split : Backward::Joined;
  return options;
}

/// Bytes of the larger direction, by link.
std::vector<double> bytes_of_links(const Graph& graph, std::span<const OpRange> stages,
                                   const std::vector<Link>& links, const PlanRequest& request) {
  std::vector<double> bytes;
  for (const Link& link : links) {
    const auto of = [&](Direction direction) {
      return message_bytes(graph, stages, link, request.program.batch, request.program.type,
                           direction);
    };
    bytes.push_back(
        static_cast<double>(std::max(of(Direction::Activations), of(Direction::Gradients))));
  }
  return bytes;
}

std::vector<pipeline::Slots> slots_of(const Graph& graph, std::span<const OpRange> stages,
                                      const Schedule& schedule) {
  pipeline::PipelinePlan plan;
  plan.ranges.assign(stages.begin(), stages.end());
  plan.schedule = schedule;
  return pipeline::slots_of(graph, plan);
}

std::vector<std::int64_t> by_device(std::span<const std::int64_t> memory,
                                    std::span<const std::int32_t> device_of) {
  std::vector<std::int64_t> bytes;
  for (std::size_t s = 0; s < memory.size(); ++s) {
    const auto device = static_cast<std::size_t>(device_of[s]);
    bytes.resize(std::max(bytes.size(), device + 1), 0);
    bytes[device] += memory[s];
  }
  return bytes;
}

/// As BoundProgram::buckets(): gradients of neighbors, from the last op on. The pass takes as long
/// as its products, of which a weight has one at each place of the output.
std::vector<pipeline::GradientSum> gradient_sums(const Graph& graph, OpRange stage,
                                                 const pipeline::ReduceOptions& reduce) {
  struct Learning {
    std::int64_t elements;
    double products;
  };
  std::vector<Learning> learning;
  Learning all{};
  for (const models::Parameter& p : graph.parameters) {
    if (!stage.contains(p.op) || !p.learns()) continue;
    const auto& shape = graph.value(graph.op(p.op).output).shape;
    learning.push_back({p.elements(), static_cast<double>(p.elements() * shape.h * shape.w)});
    all.elements += learning.back().elements;
    all.products += learning.back().products;
  }
  const std::int64_t most = reduce.most(all.elements);
  std::vector<pipeline::GradientSum> sums;
  Learning sum{};
  double left = 1.0;
  for (std::size_t i = learning.size(); i-- > 0;) {
    sum.elements += learning[i].elements;
    sum.products += learning[i].products;
    if (i > 0 && sum.elements + learning[i - 1].elements <= most) continue;
    left = i > 0 ? left - sum.products / all.products : 0.0;
    sums.push_back({static_cast<double>(sum.elements * size_of(reduce.type)), left});
    sum = {};
  }
  return sums;
}

/// Stages that share a device may fit one by one but not together.
void remove_too_large(std::vector<Plan>& plans, std::int64_t limit) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Plan& plan : plans) least = std::min(least, largest_device(plan));
  std::erase_if(plans, [&](const Plan& plan) { return largest_device(plan) > limit; });
  if (!plans.empty()) return;
  fail(ErrorKind::Config,
       "none of the plans tried fits into devices of {} ({} bytes); the smallest limit that works "
       "is {} ({} bytes)",
       human_bytes(limit), limit, human_bytes(least), least);
}

/// A schedule with its messages, which hardly differ between the cuts that a search tries.
class WithMessages {
 public:
  explicit WithMessages(const Schedule& compute) : compute_(compute) {}
  const Schedule& over(const std::vector<Link>& links) {
    if (!schedule_ || links != links_) {
      schedule_ = pipeline::with_communication(compute_, links);
      links_ = links;
    }
    return *schedule_;
  }
  [[nodiscard]] const Schedule& compute() const { return compute_; }

 private:
  const Schedule& compute_;
  std::vector<Link> links_;
  std::optional<Schedule> schedule_;
};

/// Sets what a simulated step shows.
void set_step(Plan& plan, const Schedule& schedule, const std::vector<Link>& links,
              pipeline::Costs costs) {
  const pipeline::TimeLine line = pipeline::simulate(schedule, links, costs);
  plan.seconds = line.makespan;
  plan.bound = pipeline::lower_bound_seconds(schedule, costs.stages);
  plan.bubble = std::max(line.bubble(), 0.0);  // rounding may make it negative
  plan.costs = std::move(costs.stages);
}

/// Without the memory. `bytes` knows which ops are repeated; without it, all count.
Plan timed_plan(const Graph& graph, std::span<const OpCost> costs, std::span<const OpRange> stages,
                const PlanRequest& request, WithMessages& messages, StageBytes* bytes) {
  const Schedule& compute = messages.compute();
  MILLRACE_ASSERT(std::ssize(stages) == compute.stages);
  const std::vector<Link> links = pipeline::links(graph, stages);
  const Schedule& schedule = messages.over(links);
  std::vector<pipeline::StageCost> by_stage;
  if (bytes == nullptr) {
    for (const OpRange range : stages)
      by_stage.push_back(stage_cost(costs, range, request.program.recompute));
  } else {
    const std::vector<pipeline::Slots> slots = slots_of(graph, stages, schedule);
    for (std::size_t s = 0; s < stages.size(); ++s)
      by_stage.push_back(stage_cost(costs, stages[s], bytes->options(stages[s], slots[s])));
  }

  Plan plan;
  plan.model = graph.name;
  plan.batch = request.program.batch;
  plan.type = request.program.type;
  plan.micro_batches = schedule.micro_batches;
  plan.schedule = schedule.name;
  plan.splits = splits_of(graph, stages);
  plan.device_of = schedule.device_of;
  set_step(plan, schedule, links, step_costs(graph, stages, std::move(by_stage), request));
  plan.cost_model = request.cost_model;
  return plan;
}

void add_memory(Plan& plan, const Graph& graph, std::span<const OpRange> stages,
                WithMessages& messages, StageBytes& bytes) {
  const std::vector<pipeline::Slots> slots =
      slots_of(graph, stages, messages.over(pipeline::links(graph, stages)));
  for (std::size_t s = 0; s < stages.size(); ++s) plan.memory.push_back(bytes(stages[s], slots[s]));
}

Plan plan_with(const Graph& graph, std::span<const OpCost> costs, std::span<const OpRange> stages,
               const PlanRequest& request, WithMessages& messages, StageBytes& bytes) {
  Plan plan = timed_plan(graph, costs, stages, request, messages, &bytes);
  add_memory(plan, graph, stages, messages, bytes);
  return plan;
}

BalanceRequest balance_request(const Graph& graph, std::span<const OpCost> costs,
                               const PlanRequest& request, const Search& search,
                               const Schedule& compute) {
  BalanceRequest balances;
  balances.costs = costs;
  balances.cuts = search.cuts.empty() ? filtered_cuts(graph, {}) : search.cuts;
  balances.stages = compute.stages;
  balances.micro_batches = compute.micro_batches;
  balances.recompute = request.program.recompute;
  balances.backward = splits_backward(compute) ? Backward::Split : Backward::Joined;
  balances.plans = search.candidates;
  return balances;
}

/// The best balances by bound, then the most even ones. The most even ones are the best for a very
/// long step, where the time to fill the pipeline does not count. Schedules with few micro-batches
/// in flight get closer to the bounds of even stages.
std::vector<Balance> choices(const BalanceRequest& request) {
  std::vector<Balance> all = balance(request);
  BalanceRequest endless = request;
  endless.micro_batches = 1'000'000;
  for (Balance& even : balance(endless)) {
    const bool known = std::any_of(
        all.begin(), all.end(), [&](const Balance& other) { return other.stages == even.stages; });
    if (!known) all.push_back(std::move(even));
  }
  return all;
}

}  // namespace

std::int64_t largest_device(const Plan& plan) {
  return std::ranges::max(by_device(plan.memory, plan.device_of));
}

pipeline::Costs step_costs(const Graph& graph, std::span<const OpRange> stages,
                           std::vector<pipeline::StageCost> costs, const PlanRequest& request) {
  pipeline::Costs all;
  all.stages = std::move(costs);
  all.message_bytes = bytes_of_links(graph, stages, pipeline::links(graph, stages), request);
  all.link = request.link;
  // On the finite gradients, on the sums of the losses, and on signals (train/trainer.cpp). Within
  // a machine they take microseconds.
  all.agreements = request.link.receiver_copies ? 0 : 3;
  all.replicas = request.replicas;
  all.processors = request.processors;
  all.devices_per_process = request.devices_per_process;
  all.sum_bytes_per_second = request.device.bytes_per_second;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    // An update reads and writes all that belongs to the parameters once.
    const auto state = static_cast<double>(parameter_state_bytes(graph, stages[s], request.update));
    if (all.stages[s].update == 0.0)
      all.stages[s].update = 2.0 * state / request.device.bytes_per_second;
    all.gradient_sums.push_back(gradient_sums(graph, stages[s], request.reduce));
    double gradients = 0.0;
    for (const pipeline::GradientSum& sum : all.gradient_sums.back()) gradients += sum.bytes;
    all.gradient_bytes.push_back(gradients);
  }
  return all;
}

Plan make_plan(const Graph& graph, std::span<const OpCost> costs, std::span<const OpRange> stages,
               const PlanRequest& request) {
  return make_plan(graph, costs, stages, request, pipeline::generate(request.schedule));
}

Plan make_plan(const Graph& graph, std::span<const OpCost> costs, std::span<const OpRange> stages,
               const PlanRequest& request, const Schedule& compute) {
  StageBytes bytes(graph, program_options(request, compute), request.update, request.sizer);
  for (std::size_t s = 0; s < request.segments.size(); ++s)
    bytes.choose(stages[s], request.segments[s]);
  WithMessages messages(compute);
  return plan_with(graph, costs, stages, request, messages, bytes);
}

void set_seconds(Plan& plan, const Graph& graph, const PlanRequest& request,
                 const Schedule& compute, std::span<const pipeline::StageCost> seconds) {
  const std::vector<OpRange> stages = stages_of(graph, plan.splits);
  const std::vector<Link> links = pipeline::links(graph, stages);
  std::vector<pipeline::StageCost> costs(seconds.begin(), seconds.end());
  for (std::size_t s = 0; s < costs.size(); ++s) {
    const pipeline::StageCost& before = plan.costs.at(s);
    costs[s].stash_bytes = before.stash_bytes;
    if (costs[s].backward_weight > 0.0) continue;
    const double both = before.backward_input + before.backward_weight;
    costs[s].backward_weight =
        both > 0.0 ? costs[s].backward_input * before.backward_weight / both : 0.0;
    costs[s].backward_input -= costs[s].backward_weight;
  }
  set_step(plan, with_communication(compute, links), links,
           step_costs(graph, stages, std::move(costs), request));
}

void set_step(Plan& plan, const Graph& graph, const PlanRequest& request,
              const pipeline::PipelinePlan& joint) {
  const std::vector<Link> links = pipeline::links(graph, joint.ranges);
  const pipeline::Costs costs = step_costs(graph, joint.ranges, plan.costs, request);
  const pipeline::TimeLine line = simulate(joint, links, costs);
  plan.seconds = line.makespan;
  plan.bound = lower_bound_seconds(joint, costs);
  plan.bubble = std::max(line.bubble(), 0.0);
}

std::vector<Plan> best_plans(const Graph& graph, std::span<const OpCost> costs,
                             const PlanRequest& request, const Search& search) {
  const Schedule compute = pipeline::generate(request.schedule);
  const auto bytes = std::make_shared<StageBytes>(graph, program_options(request, compute),
                                                  request.update, request.sizer);
  BalanceRequest balances = balance_request(graph, costs, request, search, compute);
  if (search.memory_limit > 0) {
    // Slots depend on the schedule and hardly on the cuts, so any choice of cuts serves here.
    const std::vector<OpRange> any = balance(balances).front().stages;
    const Schedule schedule = pipeline::with_communication(compute, pipeline::links(graph, any));
    balances.memory = exact_memory(bytes, slots_of(graph, any, schedule));
    balances.memory_limit = search.memory_limit;
  }
  std::vector<Plan> plans;
  WithMessages messages(compute);
  for (const Balance& choice : choices(balances))
    plans.push_back(plan_with(graph, costs, choice.stages, request, messages, *bytes));
  if (search.memory_limit > 0) remove_too_large(plans, search.memory_limit);
  std::ranges::stable_sort(plans, {}, &Plan::seconds);
  return plans;
}

std::vector<Plan> quick_plans(const Graph& graph, std::span<const OpCost> costs,
                              const PlanRequest& request, const Search& search) {
  const Schedule compute = pipeline::generate(request.schedule);
  WithMessages messages(compute);
  std::vector<Plan> plans;
  for (const Balance& choice : choices(balance_request(graph, costs, request, search, compute)))
    plans.push_back(timed_plan(graph, costs, choice.stages, request, messages, nullptr));
  std::ranges::stable_sort(plans, {}, &Plan::seconds);
  return plans;
}

void set_memory(Plan& plan, const Graph& graph, const PlanRequest& request) {
  const Schedule compute = pipeline::generate(request.schedule);
  StageBytes bytes(graph, program_options(request, compute), request.update, request.sizer);
  WithMessages messages(compute);
  plan.memory.clear();
  add_memory(plan, graph, stages_of(graph, plan.splits), messages, bytes);
}

}  // namespace millrace::partition
