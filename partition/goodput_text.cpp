// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "core/counted.hpp"
#include "core/svg.hpp"
#include "partition/goodput.hpp"
#include "partition/plan.hpp"

namespace millrace::partition {
namespace {

std::string time_text(double seconds) {
  if (seconds < 120.0) return fmt::format("{:.3g} s", seconds);
  if (seconds < 7200.0) return fmt::format("{:.3g} min", seconds / 60.0);
  if (seconds < 172800.0) return fmt::format("{:.3g} h", seconds / 3600.0);
  return fmt::format("{:.3g} days", seconds / 86400.0);
}

std::string share_text(double share) { return fmt::format("{:.2f} %", 100.0 * share); }

std::string title_of(const FailureModel& model) {
  return fmt::format("{}, a failure every {}", counted(model.hosts, "host"),
                     time_text(seconds_between_failures(model)));
}

/// Where the time of a run goes.
constexpr std::array<std::pair<const char*, double Goodput::*>, 5> kShares = {
    {{"goodput", &Goodput::goodput},
     {"lost", &Goodput::lost},
     {"restarting", &Goodput::restarting},
     {"saving", &Goodput::saving},
     {"missing", &Goodput::missing}}};

double young_of(const FailureModel& model) {
  return young_interval(model.checkpoint_stall, seconds_between_losses(model));
}

/// Of the best interval, for `checkpoint-every`.
std::string typed(const GoodputCurve& curve) {
  const double interval = curve.simulated_best.interval;
  return interval < 60.0 ? fmt::format("{}updates", updates_between(curve.model, interval))
                         : minutes_text(interval);
}

}  // namespace

std::string minutes_text(double seconds) {
  const double minutes = std::max(1.0, seconds / 60.0);
  return minutes < 10.0 ? fmt::format("{:.2g}minutes", minutes)
                        : fmt::format("{:.0f}minutes", minutes);
}

std::string to_text(const GoodputCurve& curve) {
  const FailureModel& model = curve.model;
  std::string text = fmt::format(
      "With failures: {}. A loss stops the run for {}: {} to notice it, {} to find the other "
      "hosts, {} to restart. The host is back after {}. A checkpoint stalls the run for {}.\n",
      title_of(model), time_text(model.notice + model.probe + model.restart),
      time_text(model.notice), time_text(model.probe), time_text(model.restart),
      time_text(model.away), time_text(model.checkpoint_stall));
  if (model.partner_interval > 0.0)
    text += fmt::format("Every {} hosts keep a snapshot in the memory of a partner, in {}.\n",
                        time_text(model.partner_interval), time_text(model.partner_stall));
  std::vector<std::vector<std::string>> rows = {{"checkpoint every", "updates", "by formula"}};
  for (const auto& [name, share] : kShares) rows.front().emplace_back(name);
  for (std::size_t i = 0; i < curve.points.size(); i += 2) {
    const auto& [interval, run, formula] = curve.points[i];
    rows.push_back({time_text(interval), fmt::format("{}", updates_between(model, interval)),
                    share_text(formula)});
    for (const auto& [name, share] : kShares) rows.back().push_back(share_text(run.*share));
  }
  const auto& [best, run, formula] = curve.simulated_best;
  return text + text_table(rows, 0) +
         fmt::format(
             "The best interval: {} simulated, with a goodput of {} and {:.1f} hosts on average; "
             "{} "
             "by Daly's formula, with {}; {} by Young's.\nTo type: `checkpoint-every` {}\n",
             time_text(best), share_text(run.goodput), run.hosts,
             time_text(curve.formula_best.interval), share_text(curve.formula_best.formula),
             time_text(young_of(model)), typed(curve));
}

Json to_json(const GoodputCurve& curve) {
  const FailureModel& model = curve.model;
  const auto json_of = [&](const GoodputCurve::Point& point) {
    Json row = Json::object({{"interval_seconds", point.interval},
                             {"updates", updates_between(model, point.interval)},
                             {"goodput_by_formula", point.formula},
                             {"hosts", point.simulated.hosts}});
    for (const auto& [name, share] : kShares) row.set(name, point.simulated.*share);
    return row;
  };
  Json points = Json::list();
  for (const GoodputCurve::Point& point : curve.points) points.push_back(json_of(point));
  return Json::object({{"hosts", model.hosts},
                       {"seconds_between_failures", seconds_between_failures(model)},
                       {"checkpoint_stall_seconds", model.checkpoint_stall},
                       {"recovery_seconds", model.notice + model.probe + model.restart},
                       {"away_seconds", model.away},
                       {"partner_interval_seconds", model.partner_interval},
                       {"partner_stall_seconds", model.partner_stall},
                       {"young_interval_seconds", young_of(model)},
                       {"best", json_of(curve.simulated_best)},
                       {"best_by_formula", json_of(curve.formula_best)},
                       {"checkpoint_every", typed(curve)},
                       {"intervals", std::move(points)}});
}

std::string to_svg(const GoodputCurve& curve) {
  constexpr double kLeft = 60.0, kRight = 620.0, kTop = 80.0, kBottom = 260.0;  // pixels
  constexpr std::string_view kSimulated = "#3b82c4";
  constexpr std::string_view kFormula = "#d9822b";
  double low = 1.0;
  double high = 0.0;
  for (const GoodputCurve::Point& point : curve.points) {
    low = std::min({low, point.simulated.goodput, point.formula});
    high = std::max({high, point.simulated.goodput, point.formula});
  }
  const double tick = svg::tick_of(std::max(high - low, 1e-3), 6.0);
  low = tick * std::floor(low / tick);
  high = std::max(tick * std::ceil(high / tick), low + tick);
  const double first = curve.points.front().interval;
  const double last = std::max(curve.points.back().interval, 1.01 * first);
  const auto x = [&](double interval) {
    return kLeft + (kRight - kLeft) * std::log(interval / first) / std::log(last / first);
  };
  const auto y = [&](double goodput) {
    return kBottom - (kBottom - kTop) * (goodput - low) / (high - low);
  };
  const auto text = [](double at_x, double at_y, std::string_view words, std::string_view anchor,
                       std::string_view colour = svg::kInk) {
    return svg::text_at(at_x, at_y, words,
                        fmt::format(" fill=\"{}\" text-anchor=\"{}\"", colour, anchor));
  };
  const auto line = [](const std::string& path, std::string_view colour, std::string_view more) {
    return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\"{}/>\n", path, colour, more);
  };
  std::string body = text(kLeft, 20.0, "Goodput of " + title_of(curve.model), "start") +
                     text(kRight, kBottom + 38.0, "work between checkpoints", "end");
  for (double value = low; value < high + 0.5 * tick; value += tick)
    body += text(kLeft - 6.0, y(value) + 4.0, fmt::format("{:.4g} %", 100.0 * value), "end") +
            line(fmt::format("M{} {:.1f}H{}", kLeft, y(value), kRight), svg::kInk,
                 " stroke-width=\"0.3\"");
  for (const double value : {1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 360000.0})
    if (value >= first && value <= last)
      body += text(x(value), kBottom + 18.0, time_text(value), "middle");
  const auto mark = [&](double interval, double at, std::string_view colour, const char* name) {
    body += line(fmt::format("M{:.1f} {}V{}", x(interval), kTop - 12.0, kBottom), colour,
                 " stroke-dasharray=\"4 3\"") +
            text(x(interval), at, name + time_text(interval), "middle", colour);
  };
  mark(curve.formula_best.interval, 44.0, kFormula, "dots: Daly's formula, best at ");
  mark(curve.simulated_best.interval, 62.0, kSimulated, "line: simulated, best at ");
  std::string path;
  for (const auto& [interval, run, formula] : curve.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(interval), y(run.goodput));
    body += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x(interval),
                        y(formula), kFormula);
  }
  return svg::document({.width = kRight + 20.0,
                        .height = kBottom + 50.0,
                        .body = body + line(path, kSimulated, " stroke-width=\"2\"")});
}

}  // namespace millrace::partition
