// SPDX-License-Identifier: Apache-2.0
#include "tools/report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/counted.hpp"
#include "core/svg.hpp"
#include "core/text.hpp"
#include "tools/report/chart.hpp"
#include "tools/report/page_style.hpp"

namespace millrace::report {
namespace {

using svg::escaped;

constexpr std::string_view kNothing = "–";

std::string percent(std::optional<double> value) {
  return value ? fmt::format("{:.2f} %", *value) : std::string(kNothing);
}

/// " of 64 images" behind a validation of a part of the set.
std::string of_images(const ValidationPoint& point) {
  return point.images == 0 ? "" : " of " + counted(point.images, "image");
}

std::string bubble_text(const RunRecord& run) {
  return run.bubble ? fmt::format("{:.1f} %", *run.bubble) : std::string(kNothing);
}

std::string rate_text(const RunRecord& run) {
  const std::optional<double> rate = run.images_per_second();
  return rate ? fmt::format("{:.1f}", *rate) : std::string(kNothing);
}

std::string time_text(const RunRecord& run) {
  return run.seconds ? human_seconds(*run.seconds) : std::string(kNothing);
}

std::string updates_text(const RunRecord& run) {
  if (run.iterations == 0) return with_commas(run.done());
  return fmt::format("{} of {}", with_commas(run.done()), with_commas(run.iterations));
}

std::string_view state_name(RunState state) {
  constexpr std::array<std::string_view, 4> kNames = {"running", "finished", "stopped",
                                                      "unfinished"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::string state_badge(const RunRecord& run) {
  return fmt::format(" <span class=\"state {0}\">{0}</span>", state_name(run.state));
}

std::string tile(std::string_view value, std::string_view meaning) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escaped(value),
                     escaped(meaning));
}

std::string tiles(const RunRecord& run) {
  const ValidationPoint* const best = run.best();
  const ValidationPoint* const last = run.last();
  std::string text = "<div class=\"tiles\">\n";
  text += best == nullptr ? tile(kNothing, "no validation")
                          : tile(percent(best->top1), fmt::format("best top-1{}, epoch {:.4g}",
                                                                  of_images(*best), best->epoch));
  if (last != best)
    text += tile(percent(last->top1),
                 fmt::format("last top-1{}, epoch {:.4g}", of_images(*last), last->epoch));
  text += tile(rate_text(run), "img/s while training, last process that trained");
  text += tile(bubble_text(run), run.bubble ? "bubble, measured, last process that trained"
                                            : "bubble: none on one device, or not measured yet");
  text += tile(time_text(run), "time, all processes");
  return text + tile(updates_text(run), "updates") + "</div>\n";
}

std::string notes(const RunRecord& run) {
  if (run.notes.empty()) return "";
  std::string text = "<div class=\"notes\">\n";
  for (const std::string& note : run.notes) text += fmt::format("<p>{}</p>\n", escaped(note));
  return text + "</div>\n";
}

/// The line under the name of a run.
std::string lead(const ReportedRun& run) {
  std::vector<std::string> facts;
  if (run.planned) {
    const partition::Plan& plan = run.planned->plan;
    facts.push_back(plan.model);
    if (run.planned->replicas > 1)
      facts.push_back(fmt::format("{} replicas", run.planned->replicas));
    if (plan.stages() > 1)
      facts.push_back(fmt::format("{} stages, schedule {}, {} of {}", plan.stages(), plan.schedule,
                                  counted(plan.micro_batches, "micro-batch", "micro-batches"),
                                  plan.batch));
  }
  if (run.record.total_batch > 0)
    facts.push_back(fmt::format("total batch {}", with_commas(run.record.total_batch)));
  facts.push_back(run.record.directory.string());
  return fmt::format("<p class=\"lead\">{}</p>\n", escaped(join(facts, " · ")));
}

std::string comparison(std::span<const ReportedRun> runs) {
  std::vector<Cells> rows = {{"run", "state", "best top-1", "at epoch", "last top-1", "img/s",
                              "bubble", "time", "updates"}};
  for (const ReportedRun& run : runs) {
    const RunRecord& record = run.record;
    const ValidationPoint* const best = record.best();
    const auto of = [](const ValidationPoint* point) {
      return point == nullptr ? std::string(kNothing) : percent(point->top1) + of_images(*point);
    };
    rows.push_back({record.name, std::string(state_name(record.state)), of(best),
                    best == nullptr ? std::string(kNothing) : fmt::format("{:.4g}", best->epoch),
                    of(record.last()), rate_text(record), bubble_text(record), time_text(record),
                    updates_text(record)});
  }
  return "<section><h2>Comparison</h2>\n<div class=\"card scroll\">" + table(rows, 2) +
         "</div></section>\n";
}

template <class Row>
std::vector<Point> points_of(const std::vector<Row>& rows, double Row::*member) {
  std::vector<Point> points;
  points.reserve(rows.size());
  for (const Row& row : rows) points.push_back({row.epoch, row.*member});
  return points;
}

/// A line a run: a member of the training rows.
Chart chart_of(std::span<const ReportedRun> runs, Chart chart, double TrainPoint::*member) {
  for (std::size_t i = 0; i < runs.size(); ++i)
    chart.lines.push_back({.name = runs.size() == 1 ? "" : runs[i].record.name,
                           .colour = i,
                           .style = LineStyle::Solid,
                           .points = points_of(runs[i].record.training, member)});
  return chart;
}

/// The validations of the run's own weights in lines: only those of as many images are joined.
std::vector<std::vector<ValidationPoint>> validation_lines(const RunRecord& run) {
  std::vector<std::vector<ValidationPoint>> lines;
  for (const ValidationPoint& point : run.validations) {
    if (!point.name.empty()) continue;
    auto line = std::ranges::find_if(
        lines, [&](const auto& points) { return points.front().images == point.images; });
    if (line == lines.end()) line = lines.emplace(line);
    line->push_back(point);
  }
  return lines;
}

/// Lines of a run: training, and validations of each number of images. Colors tell runs apart; of a
/// single run, the lines.
Chart chart_of(std::span<const ReportedRun> runs, Chart chart, double TrainPoint::*trained,
               double ValidationPoint::*validated) {
  const bool alone = runs.size() == 1;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i].record;
    const std::vector<std::vector<ValidationPoint>> own = validation_lines(run);
    const bool validates = !own.empty();
    const std::string trained_name = alone ? "training" : "";
    chart.lines.push_back({.name = alone || validates ? trained_name : run.name,
                           .colour = alone ? 1 : i,
                           .style = validates ? LineStyle::Thin : LineStyle::Solid,
                           .points = points_of(run.training, trained)});
    for (std::size_t line = 0; line < own.size(); ++line)
      chart.lines.push_back(
          {.name = (alone ? "validation" : run.name) + of_images(own[line].front()),
           .colour = alone && line > 0 ? line + 1 : i,
           .style = LineStyle::Dotted,
           .points = points_of(own[line], validated)});
  }
  return chart;
}

/// Epochs at which the run was restored.
std::vector<double> restarts(const RunRecord& run) {
  std::vector<double> epochs;
  for (const Event& event : run.events) {
    if (event.what != "restored") continue;
    // By the last row before it, or the first one after it.
    std::optional<double> epoch;
    for (const TrainPoint& row : run.training)
      if (row.iteration > 0 && (!epoch || row.iteration <= event.iteration))
        epoch =
            row.epoch * static_cast<double>(event.iteration) / static_cast<double>(row.iteration);
    epochs.push_back(epoch.value_or(0.0));
  }
  return epochs;
}

std::string curves(std::span<const ReportedRun> runs) {
  std::vector<Chart> charts = {
      chart_of(runs, {"Loss", "logarithmic; lower is better", Scale::Logarithmic, {}, {}},
               &TrainPoint::loss, &ValidationPoint::loss),
      chart_of(runs, {"Top-1 accuracy", "%", Scale::Tight, {}, {}}, &TrainPoint::top1,
               &ValidationPoint::top1),
      chart_of(runs, {"Learning rate", "of the total batch", Scale::FromZero, {}, {}},
               &TrainPoint::rate),
      chart_of(runs, {"Throughput", "img/s while training", Scale::FromZero, {}, {}},
               &TrainPoint::images_per_second)};
  std::string text = "<section><h2>Curves</h2>\n";
  if (runs.size() > 1)
    text += "<p class=\"muted\">Lines with dots are validations, lines without are training.</p>\n";
  text += "<div class=\"charts\">\n";
  for (Chart& chart : charts) {
    if (runs.size() == 1) chart.marks = restarts(runs[0].record);
    text += figure(chart);
  }
  return text + "</div></section>\n";
}

std::string about_one(const ReportedRun& run) {
  return network_section(run) + schedule_section(run) + hosts_section(run) + events_section(run) +
         configuration_section(run);
}

constexpr std::string_view kSources =
    "Where the figures come from: curves, events and img/s from metrics.jsonl; times from "
    "metrics.jsonl and training.csv; machine, memory and bubble from log.txt; options from "
    "config.toml. Planned costs, memory and schedules come from the planner, which is given the "
    "configuration alone; measured schedules come from the trace. No planned figure is computed "
    "from one of the run.";

}  // namespace

std::string table(const std::vector<Cells>& rows, std::size_t numbers) {
  std::string text = "<table>\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    text += "<tr>";
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      text += fmt::format("<{0}{1}>{2}</{0}>", r == 0 ? "th" : "td",
                          i >= numbers ? " class=\"n\"" : "", escaped(rows[r][i]));
    text += "</tr>\n";
  }
  return text + "</table>\n";
}

std::string html_page(std::span<const ReportedRun> runs, std::string_view version) {
  std::vector<std::string> names;
  for (const ReportedRun& run : runs) names.push_back(run.record.name);
  const std::string title = escaped(join(names, ", "));
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
      title, kPageStyle);
  if (runs.size() == 1) {
    const ReportedRun& run = runs[0];
    page += fmt::format("<h1>{}{}</h1>\n", title, state_badge(run.record));
    page += lead(run) + notes(run.record) + tiles(run.record) + curves(runs) + about_one(run);
  } else {
    page += fmt::format("<h1>{} runs</h1>\n<p class=\"lead\">{}</p>\n", runs.size(), title);
    page += comparison(runs) + curves(runs);
    for (const ReportedRun& run : runs)
      page += fmt::format("<section><h2>{}{}</h2>\n", escaped(run.record.name),
                          state_badge(run.record)) +
              lead(run) + notes(run.record) + tiles(run.record) +
              "<details><summary>network, schedule, events, configuration</summary>\n" +
              about_one(run) + "</details></section>\n";
  }
  return page +
         fmt::format("<footer><p>{}</p><p>millrace {}</p></footer>\n</main>\n</body>\n</html>\n",
                     kSources, escaped(version));
}

}  // namespace millrace::report
