// SPDX-License-Identifier: Apache-2.0
#include "tools/report/host_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/text.hpp"

namespace millrace::report {
namespace {

constexpr double kLabels = 130.0;
constexpr double kAcross = 900.0;
constexpr double kAbove = 30.0;
constexpr double kHostRow = 26.0;
constexpr std::string_view kBar = " fill=\"#0072b2\"";
constexpr std::string_view kLost = "#d55e00";
constexpr std::string_view kBack = "#00825f";
constexpr std::string_view kHere = "this machine";

std::vector<std::string> hosts_of(const SupervisorEvent& event) {
  return event.hosts.empty() ? std::vector<std::string>{std::string(kHere)} : event.hosts;
}

/// The hosts in the order in which they first had ranks.
std::vector<std::string> rows_of(std::span<const SupervisorEvent> events) {
  std::vector<std::string> rows;
  for (const SupervisorEvent& event : events)
    if (event.event == "start")
      for (const std::string& host : hosts_of(event))
        if (std::ranges::find(rows, host) == rows.end()) rows.push_back(host);
  return rows;
}

/// A vertical line with a word above it.
std::string mark(double x, double bottom, std::string_view word, std::string_view colour) {
  return fmt::format(
             "<path d=\"M{0:.1f} {1}V{2}\" stroke=\"{3}\" stroke-width=\"1.5\" "
             "stroke-dasharray=\"4 3\"/>\n",
             x, kAbove - 6.0, bottom, colour) +
         svg::text_at(x, kAbove - 11.0, word,
                      fmt::format(" fill=\"{}\" text-anchor=\"middle\"", colour));
}

}  // namespace

svg::Drawing draw_hosts(std::span<const SupervisorEvent> events) {
  const std::vector<std::string> rows = rows_of(events);
  const double bottom = kAbove + kHostRow * static_cast<double>(rows.size());
  svg::Drawing drawing{.width = kAcross, .height = bottom + 24.0, .body = {}};
  if (rows.empty()) return drawing;
  const double begin = events.front().time;
  const double length = std::max(1e-3, events.back().time - begin);
  const auto at = [&](double time) {
    return kLabels + (kAcross - kLabels - 40.0) * (time - begin) / length;
  };
  for (std::size_t row = 0; row < rows.size(); ++row)
    drawing.body +=
        svg::text_at(0.0, kAbove + kHostRow * (static_cast<double>(row) + 0.65), rows[row]);
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    if (events[i].event != "start") continue;
    // Ranks that are asked to save for a host that is back work until they start again.
    std::size_t last = i + 1;
    while (last + 1 < events.size() &&
           (events[last].event == "host back" || events[last].event == "snapshot"))
      ++last;
    for (const std::string& host : hosts_of(events[i])) {
      const auto row = static_cast<double>(std::ranges::find(rows, host) - rows.begin());
      const double width = std::max(1.0, at(events[last].time) - at(events[i].time) - 1.0);
      drawing.body +=
          svg::box(at(events[i].time), kAbove + kHostRow * row + 3.0, width, kHostRow - 6.0, kBar);
    }
  }
  for (const SupervisorEvent& event : events)
    if (event.event == "lost" || event.event == "host back")
      drawing.body += mark(at(event.time), bottom, event.event == "lost" ? "lost" : "back",
                           event.event == "lost" ? kLost : kBack);
  drawing.body += svg::text_at(kLabels, bottom + 17.0, "0 s");
  drawing.body += svg::text_at(at(events.back().time), bottom + 17.0, human_seconds(length),
                               " text-anchor=\"middle\"");
  return drawing;
}

}  // namespace millrace::report
