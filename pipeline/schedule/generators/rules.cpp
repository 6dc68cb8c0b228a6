// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/generators/rules.hpp"

#include <array>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::pipeline {
namespace {

// Interleaved is the IPU's name for 1F1B.
constexpr std::array kRules = {
    ScheduleRule{.name = "Sequential", .lists = sequential},
    ScheduleRule{.name = "Grouped", .lists = grouped},
    ScheduleRule{.name = "Interleaved", .takes_warmup = true, .lists = one_f_one_b},
    ScheduleRule{.name = "GPipe", .torch_name = "ScheduleGPipe", .lists = gpipe},
    ScheduleRule{
        .name = "1F1B", .torch_name = "Schedule1F1B", .takes_warmup = true, .lists = one_f_one_b},
    ScheduleRule{.name = "Looped",
                 .torch_name = "ScheduleInterleaved1F1B",
                 .placement = StagePlacement::Loop,
                 .lists = looped},
    ScheduleRule{.name = "Looped-ZB",
                 .torch_name = "ScheduleInterleavedZeroBubble",
                 .placement = StagePlacement::Loop,
                 .splits_backward = true,
                 .lists = looped_zb},
    ScheduleRule{.name = "ZB-H1", .splits_backward = true, .lists = zb_h1},
    ScheduleRule{.name = "ZB-V",
                 .torch_name = "ScheduleZBVZeroBubble",
                 .placement = StagePlacement::V,
                 .splits_backward = true,
                 .lists = zb_v},
    ScheduleRule{
        .name = "V-Min", .placement = StagePlacement::V, .splits_backward = true, .lists = v_min},
    ScheduleRule{
        .name = "V-Half", .placement = StagePlacement::V, .splits_backward = true, .lists = v_half},
    ScheduleRule{
        .name = "V-ZB", .placement = StagePlacement::V, .splits_backward = true, .lists = v_zb},
    ScheduleRule{.name = "DualPipeV",
                 .torch_name = "ScheduleDualPipeV",
                 .placement = StagePlacement::V,
                 .splits_backward = true,
                 .lists = dual_pipe_v},
};

}  // namespace

std::span<const ScheduleRule> schedule_rules() { return kRules; }

const ScheduleRule& schedule_rule(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ScheduleRule& rule : kRules) {
    const std::string wanted = to_lower(name);
    if (to_lower(rule.name) == wanted || to_lower(rule.torch_name) == wanted) return rule;
    names.push_back(rule.name);
  }
  fail(ErrorKind::Config, "unknown schedule '{}'; schedules: {}", name, join(names, ", "));
}

const ScheduleRule& placing_rule(std::string_view name) {
  return schedule_rule(to_lower(name) == "auto" ? "1F1B" : name);
}

}  // namespace millrace::pipeline
