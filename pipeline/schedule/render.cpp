// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.hpp"

namespace millrace::pipeline {
namespace {

constexpr std::size_t kWaiting = static_cast<std::size_t>(-1);

/// By cell: the interval that takes up most of it.
std::vector<std::size_t> cells_of(const std::vector<Interval>& device, std::size_t cells,
                                  double cells_per_second) {
  // Ignores rounding errors at the edges of cells.
  constexpr double kLeast = 1e-6;
  std::vector<std::size_t> shown(cells, kWaiting);
  std::vector<double> share(cells, kLeast);
  std::vector<double> waiting(cells, 1.0);
  for (std::size_t k = 0; k < device.size(); ++k) {
    if (!is_shown(device[k])) continue;
    const double begin = std::max(0.0, device[k].begin * cells_per_second);
    const double end = device[k].end * cells_per_second;
    for (auto c = static_cast<std::size_t>(begin); c < cells && static_cast<double>(c) < end; ++c) {
      const auto left = static_cast<double>(c);
      const double part = std::min(end, left + 1.0) - std::max(begin, left);
      waiting[c] -= part;
      if (part <= share[c]) continue;
      share[c] = part;
      shown[c] = k;
    }
  }
  for (std::size_t c = 0; c < cells; ++c)
    if (waiting[c] > share[c]) shown[c] = kWaiting;
  return shown;
}

/// The text of an action in `cells` characters: "F12", "B3----- ", or only the letter if the number
/// does not fit.
std::string box(const std::string& label, char letter, std::size_t cells) {
  const bool named = label.size() <= cells;
  std::string text = named ? label : std::string(1, letter);
  text.resize(cells, '-');
  if (cells > (named ? label.size() : 1)) text.back() = ' ';
  return text;
}

std::string row(const std::vector<Interval>& device, const Labels& labels,
                const std::vector<std::size_t>& shown) {
  std::string text;
  for (std::size_t c = 0; c < shown.size();) {
    std::size_t end = c + 1;
    while (end < shown.size() && shown[end] == shown[c]) ++end;
    if (shown[c] == kWaiting) {
      text.append(end - c, ' ');
    } else {
      const Action& a = device[shown[c]].action;
      text += box(labels.of(a), look_of(a.kind).letter, end - c);
    }
    c = end;
  }
  return text;
}

std::string chart(const TimeLine& line, std::size_t cells, double cells_per_second) {
  const Labels labels(line);
  const std::size_t width = name_width(line.devices.size());
  std::string text;
  for (std::size_t d = 0; d < line.devices.size(); ++d) {
    std::string chart_row = fmt::format("{:<{}}", fmt::format("device {}", d), width);
    chart_row += row(line.devices[d], labels, cells_of(line.devices[d], cells, cells_per_second));
    chart_row.erase(chart_row.find_last_not_of(' ') + 1);
    text += chart_row + '\n';
  }
  return text;
}

}  // namespace

Look look_of(ActionKind kind) {
  if (kind == ActionKind::Forward) return {'F', "#56B4E9", "forward"};
  if (kind == ActionKind::Backward) return {'B', "#E2702B", "backward"};
  if (kind == ActionKind::BackwardInput) return {'I', "#E69F00", "backward input"};
  if (kind == ActionKind::BackwardWeight) return {'W', "#1FB286", "backward weight"};
  if (kind == ActionKind::Reduce) return {'R', "#B8B8B8", "reduction"};
  return {'U', "#CC79A7", "update"};
}

bool is_shown(const Interval& i) {
  return is_compute(i.action.kind) ||
         (i.end > i.begin && !is_send(i.action.kind) && !is_receive(i.action.kind));
}

double end_of(const TimeLine& line) {
  double end = line.makespan;
  for (const std::vector<Interval>& device : line.devices)
    for (const Interval& i : device) end = std::max(end, i.end);
  return end;
}

Labels::Labels(const TimeLine& line) {
  for (const std::vector<Interval>& device : line.devices) {
    std::set<std::int32_t> stages;
    for (const Interval& i : device)
      if (is_shown(i)) stages.insert(i.action.stage);
    with_stage_ = with_stage_ || stages.size() > 1;
  }
}

std::string Labels::of(const Action& a) const {
  std::string text = with_stage_ ? fmt::format("{}", a.stage) : "";
  text += look_of(a.kind).letter;
  if (a.micro_batch >= 0) text += fmt::format("{}", a.micro_batch);
  return text;
}

std::size_t name_width(std::size_t devices) {
  return fmt::formatted_size("device {}  ", devices == 0 ? 0 : devices - 1);
}

std::string staircase(const TimeLine& line, std::int32_t columns) {
  const std::size_t names = name_width(line.devices.size());
  if (columns <= static_cast<std::int32_t>(names))
    fail(ErrorKind::Config, "a chart of {} columns is too narrow; at least {} are required",
         columns, names + 1);
  const std::size_t cells = static_cast<std::size_t>(columns) - names;
  const double end = end_of(line);
  return chart(line, cells, end > 0.0 ? static_cast<double>(cells) / end : 0.0);
}

}  // namespace millrace::pipeline
