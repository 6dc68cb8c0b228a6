// SPDX-License-Identifier: Apache-2.0
//
// What the page says of a single run besides its curves.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/counted.hpp"
#include "core/svg.hpp"
#include "core/text.hpp"
#include "partition/cuts.hpp"
#include "pipeline/schedule/render.hpp"
#include "tools/report/chart.hpp"
#include "tools/report/page.hpp"

namespace millrace::report {
namespace {

constexpr double kRibbonWidth = 1000.0;
constexpr double kRibbonTop = 24.0;
constexpr double kRibbonHeight = 40.0;

struct LayerCost {
  std::string name;
  std::size_t stage = 0;
  double seconds = 0.0;
};

/// The layers in order; one that is cut counts once for each of its stages.
std::vector<LayerCost> layer_costs(const PlannedRun& planned) {
  std::vector<LayerCost> layers;
  const auto stages = partition::stages_of(planned.graph, planned.plan.splits);
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (auto op = stages[s].first; op < stages[s].last; ++op) {
      const models::Op& at = planned.graph.op(models::OpId{op});
      const std::string& name = planned.graph.layers.at(at.layer.at()).name;
      if (layers.empty() || layers.back().name != name || layers.back().stage != s)
        layers.push_back({.name = name, .stage = s});
      layers.back().seconds += planned.costs.at(static_cast<std::size_t>(op)).seconds();
    }
  return layers;
}

/// A box a layer, as wide as its share of the time, in the color of its stage.
std::string ribbon(const PlannedRun& planned) {
  const std::vector<LayerCost> layers = layer_costs(planned);
  constexpr std::size_t kMostNamed = 8;
  double all = 0.0;
  for (const LayerCost& layer : layers) all += layer.seconds;
  svg::Drawing drawing{
      .width = kRibbonWidth, .height = kRibbonTop + kRibbonHeight + 22.0, .body = {}};
  const bool named = planned.plan.stages() <= kMostNamed;
  double x = 0.0;
  std::size_t before = planned.plan.stages();
  for (const LayerCost& layer : layers) {
    const double share = all > 0.0 ? layer.seconds / all : 0.0;
    if (layer.stage != before && named) {
      drawing.body += svg::text_at(x, kRibbonTop - 8.0, fmt::format("stage {}", layer.stage));
      if (layer.stage > 0)
        drawing.body += svg::text_at(x, kRibbonTop + kRibbonHeight + 16.0,
                                     "cut at " + planned.plan.splits.at(layer.stage - 1));
    }
    before = layer.stage;
    drawing.body += fmt::format(
        "<rect class=\"layer c{}\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"><title>{}: "
        "{:.1f} % of the planned time</title></rect>\n",
        layer.stage % kColours, x, kRibbonTop, share * kRibbonWidth, kRibbonHeight,
        svg::escaped(layer.name), 100.0 * share);
    if (share * kRibbonWidth > svg::kLetter * static_cast<double>(layer.name.size() + 2))
      drawing.body += svg::text_at(x + 7.0, kRibbonTop + 25.0, layer.name, " class=\"layer\"");
    x += share * kRibbonWidth;
  }
  return svg::document(drawing, svg::Place::Page);
}

std::string paragraph(std::string_view text) {
  return fmt::format("<p class=\"muted\">{}</p>\n", svg::escaped(text));
}

std::string panel(std::string_view title, const pipeline::TimeLine& line) {
  const std::array<pipeline::SvgPanel, 1> panels = {pipeline::SvgPanel{"", &line}};
  return fmt::format("<figure class=\"card scroll\"><figcaption>{}</figcaption>\n{}</figure>\n",
                     svg::escaped(title), svg::document(pipeline::draw(panels), svg::Place::Page));
}

std::string devices_table(const TracedStep& step) {
  std::vector<Cells> rows = {
      {"device", "forward", "backward", "update", "reduce", "messages", "waiting", "other"}};
  for (const DeviceShares& device : step.devices) {
    Cells row = {device.name};
    for (const double share : {device.forward, device.backward, device.update, device.reduce,
                               device.messages, device.wait, device.other()})
      row.push_back(fmt::format("{:.1f} %", 100.0 * share));
    rows.push_back(std::move(row));
  }
  return "<div class=\"card scroll\">" + table(rows, 1) + "</div>\n";
}

/// Rows between which updates were skipped.
void add_skips(const RunRecord& run, std::vector<std::pair<std::int64_t, std::string>>& events) {
  std::int64_t before = 0;
  std::int64_t skipped = 0;
  for (const TrainPoint& row : run.training) {
    if (row.skipped > skipped)
      events.emplace_back(
          row.iteration, fmt::format("{} skipped since update {} (not finite); loss scale now {:g}",
                                     row.skipped - skipped, before, row.loss_scale));
    skipped = row.skipped;
    before = row.iteration;
  }
}

std::string checkpoints_text(const RunRecord& run) {
  std::vector<std::string> kept;
  constexpr std::size_t kMostNamed = 12;
  for (const SavedCheckpoint& saved : run.checkpoints)
    if (kept.size() < kMostNamed)
      kept.push_back(fmt::format("ckpt-{} ({})", saved.iteration,
                                 human_bytes(static_cast<std::int64_t>(saved.bytes))));
  if (run.checkpoints.size() > kMostNamed)
    kept.push_back(fmt::format("{} more", run.checkpoints.size() - kMostNamed));
  return fmt::format("{} written; {}", counted(run.checkpoints_written, "checkpoint"),
                     kept.empty() ? "none there" : "there now: " + join(kept, ", "));
}

std::string details(std::string_view summary, const std::string& content) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", svg::escaped(summary),
                     content);
}

std::string validations_table(const RunRecord& run) {
  // Early versions wrote neither top-5 nor loss.
  const auto percent = [](double value) {
    return std::isfinite(value) ? fmt::format("{:.2f} %", value) : "–";
  };
  std::vector<Cells> rows = {{"weights", "update", "epoch", "images", "top-1", "top-5", "loss"}};
  for (const ValidationPoint& v : run.validations)
    rows.push_back({v.name.empty() ? "of the run" : v.name, with_commas(v.iteration),
                    fmt::format("{:.4g}", v.epoch), v.images == 0 ? "all" : with_commas(v.images),
                    percent(v.top1), percent(v.top5),
                    std::isfinite(v.loss) ? fmt::format("{:.4f}", v.loss) : "–"});
  return "<div class=\"card scroll\">" + table(rows, 1) + "</div>\n";
}

}  // namespace

std::string network_section(const ReportedRun& run) {
  std::string text = "<section><h2>Network</h2>\n";
  if (!run.planned) return text + paragraph("unknown: see the notes") + "</section>\n";
  const PlannedRun& planned = *run.planned;
  text +=
      "<figure class=\"card scroll ribbon\"><figcaption>Layers by time and stage "
      "<small>planned</small></figcaption>\n" +
      ribbon(planned) + "</figure>\n<div class=\"card scroll\">" +
      table(stage_table(planned.plan, planned.graph), 3) + "</div>\n";
  return text +
         paragraph(fmt::format(
             "Costs: {}, of a micro-batch of {} in {}. Memory: planned bytes of a stage's device; "
             "what the run took is below, under machine.",
             planned.plan.cost_model, planned.plan.batch, name_of(planned.plan.type))) +
         "</section>\n";
}

std::string schedule_section(const ReportedRun& run) {
  std::string text = "<section><h2>Schedule of a step</h2>\n";
  const bool staged = run.planned && run.planned->plan.stages() > 1;
  if (staged) {
    const pipeline::TimeLine& step = run.planned->step;
    text += panel(fmt::format("Planned: {:.2f} ms, bubble {:.1f} %", 1e3 * step.makespan,
                              100.0 * step.bubble()),
                  step);
    text += paragraph(
        run.planned->plan.cost_model == "analytic"
            ? "Simulated with analytic costs. Compare the shape, not the milliseconds: they are "
              "those of a fixed processor."
            : "Simulated with the times of the ops on the machine that wrote this page, each "
              "measured alone.");
  } else if (run.planned) {
    text += paragraph("A single stage: there is nothing to schedule.");
  }
  if (!run.traced)
    return text +
           paragraph(
               "Measured: the run has no trace of its actions. Train or restore with --trace "
               "trace.json, which writes it when the process ends.") +
           "</section>\n";
  const TracedStep& traced = *run.traced;
  text +=
      panel(fmt::format("Measured: {:.2f} ms, bubble {:.1f} %, update {}",
                        1e3 * traced.line.makespan, 100.0 * traced.line.bubble(), traced.number),
            traced.line);
  if (run.planned && !has_layout_of(run.planned->step, traced))
    text += paragraph(
        "The trace is of another layout than the plan: an earlier process wrote it, before the run "
        "was restored with other stages, devices or micro-batches.");
  text += paragraph(
      "The last update in the trace, of replica 0. Gaps are waits. The bubble at the top of the "
      "page is that of all updates of the last process. Messages: to start sends and receives. "
      "Other: before the device's first action of the update, after its last one, and between "
      "them what takes less than a microsecond.");
  return text + devices_table(traced) + "</section>\n";
}

std::string events_section(const ReportedRun& run) {
  const RunRecord& record = run.record;
  std::vector<std::pair<std::int64_t, std::string>> events;
  for (const Event& event : record.events)
    events.emplace_back(event.iteration, event.seconds ? fmt::format("{} after {}", event.what,
                                                                     human_seconds(*event.seconds))
                                                       : event.what);
  add_skips(record, events);
  std::ranges::stable_sort(events, {}, [](const auto& row) { return row.first; });
  std::vector<Cells> rows = {{"update", "event"}};
  for (const auto& [iteration, what] : events) rows.push_back({with_commas(iteration), what});
  std::string text = "<section><h2>Restarts, checkpoints, skipped updates</h2>\n";
  text += rows.size() > 1 ? "<div class=\"card scroll\">" + table(rows, 2) + "</div>\n"
                          : paragraph("No restarts, no skipped updates, no end so far.");
  const std::int64_t skipped = record.training.empty() ? 0 : record.training.back().skipped;
  text += paragraph(fmt::format("Skipped updates: {}. {}.", skipped, checkpoints_text(record)));
  if (!record.validations.empty())
    text +=
        details(counted(std::ssize(record.validations), "validation"), validations_table(record));
  return text + "</section>\n";
}

std::string hosts_section(const ReportedRun& run) {
  const std::vector<SupervisorEvent>& events = run.record.supervised;
  if (events.empty()) return "";
  std::vector<Cells> rows = {{"after", "event", "newest checkpoint", "ranks"}};
  for (const SupervisorEvent& event : events)
    rows.push_back({human_seconds(event.time - events.front().time), event.what, event.checkpoint,
                    event.ranks > 0 ? with_commas(event.ranks) : ""});
  return "<section><h2>Hosts</h2>\n<div class=\"card scroll\">" +
         svg::document(draw_hosts(events), svg::Place::Page) +
         "</div>\n<div class=\"card scroll\">" + table(rows, 3) + "</div>\n</section>\n";
}

std::string configuration_section(const ReportedRun& run) {
  std::string text = "<section><h2>Configuration</h2>\n";
  const auto rows_of = [](const std::vector<OptionValue>& options, bool with_usual) {
    std::vector<Cells> rows = {{"option", "value"}};
    if (with_usual) rows[0].emplace_back("default");
    for (const OptionValue& option : options) {
      rows.push_back({option.name, option.value});
      if (with_usual) rows.back().push_back(option.usual.empty() ? "–" : option.usual);
    }
    return "<div class=\"card scroll wrap\">" + table(rows, 3) + "</div>\n";
  };
  if (!run.chosen.empty()) text += rows_of(run.chosen, true);
  if (!run.others.empty())
    text += details(fmt::format("{} more options, at the defaults of this network and data set",
                                run.others.size()),
                    rows_of(run.others, false));
  if (run.chosen.empty() && run.others.empty()) text += paragraph("unknown: see the notes");
  text += "<h2>Machine</h2>\n";
  std::string lines;
  for (const std::string& line : run.record.machine) lines += svg::escaped(line) + "\n";
  text += lines.empty() ? paragraph("log.txt says nothing about it.")
                        : "<div class=\"card\"><p class=\"log\">" + lines + "</p></div>\n";
  return text + "</section>\n";
}

}  // namespace millrace::report
