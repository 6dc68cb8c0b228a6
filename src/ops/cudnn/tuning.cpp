// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/tuning.hpp"

namespace millrace::ops::cudnn {

std::optional<Plan> choose_plan(const Descriptor& device, const PassShape& pass,
                                const PlanRules& rules, const KernelTable* table) {
  if (table != nullptr)
    if (const MeasuredKernel* const best =
            table->find({describe(pass.shape), pass.type, pass.pass}))
      if (std::optional<Plan> plan = plan_of_choice(device, pass, rules, best->choice)) return plan;
  return find_plan(device, pass, rules);
}

std::optional<TableRow> tune_pass(const Descriptor& device, const PassShape& pass,
                                  const PlanRules& rules, const Stopwatch& stopwatch) {
  std::optional<TableRow> row;
  for (const Plan& plan : all_plans(device, pass, rules)) {
    const std::optional<double> microseconds = stopwatch(plan);
    if (!microseconds) continue;
    const MeasuredKernel measured{.choice = plan.choice,
                                  .scratch = plan.scratch,
                                  .deterministic = plan.deterministic,
                                  .microseconds = *microseconds};
    if (!row) {
      row = {.best = measured, .usual = measured};
    } else if (measured.microseconds < row->best.microseconds) {
      row->best = measured;
    }
  }
  return row;
}

}  // namespace millrace::ops::cudnn
