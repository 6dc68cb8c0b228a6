// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.hpp"
#include "partition/cost.hpp"
#include "partition/plan.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "tools/report/run_record.hpp"
#include "tools/report/traced_step.hpp"

namespace millrace::report {

/// What the planner says of a run's configuration.
struct PlannedRun {
  partition::Plan plan;
  models::Graph graph;
  std::vector<partition::OpCost> costs;
  pipeline::TimeLine step;  ///< simulated with these costs; empty for a single stage
  std::int32_t replicas = 1;
};

struct OptionValue {
  std::string name;
  std::string value;
  std::string usual;  ///< without the option; "": nothing
};

struct ReportedRun {
  RunRecord record;
  std::optional<PlannedRun> planned;
  std::optional<TracedStep> traced;
  std::vector<OptionValue> chosen;  ///< options that differ from their default
  std::vector<OptionValue> others;
};

/// A page about one or several runs that needs no other file: HTML with inline SVG, without
/// scripts, for light and dark, wide and narrow windows. All text from files is escaped.
[[nodiscard]] std::string html_page(std::span<const ReportedRun> runs, std::string_view version);

// The parts of the page about a single run, in page_run.cpp.
[[nodiscard]] std::string network_section(const ReportedRun& run);
[[nodiscard]] std::string schedule_section(const ReportedRun& run);
[[nodiscard]] std::string hosts_section(const ReportedRun& run);
[[nodiscard]] std::string events_section(const ReportedRun& run);
[[nodiscard]] std::string configuration_section(const ReportedRun& run);

using Cells = std::vector<std::string>;
/// The first row is the head. Columns from `numbers` on are aligned right. Cells are escaped.
[[nodiscard]] std::string table(const std::vector<Cells>& rows, std::size_t numbers);

}  // namespace millrace::report
