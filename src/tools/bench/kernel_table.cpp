// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/kernel_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "core/text.hpp"
#include "partition/plan.hpp"

namespace millrace::report {
namespace {

using Cells = std::vector<std::string>;

void add(KernelTime& sum, const KernelTime& time) {
  sum.count += time.count;
  sum.seconds += time.seconds;
  sum.flops += time.flops;
  sum.bytes += time.bytes;
  sum.least_seconds += time.least_seconds;
}

double least_seconds(const KernelTime& time, DType type, std::span<const Peak> peaks) {
  double products = 0.0;
  double memory = 0.0;
  for (const Peak& peak : peaks) {
    if (!peak.type)
      memory = std::max(memory, peak.per_second);
    else if (*peak.type == DType::F32 || *peak.type == type)
      products = std::max(products, peak.per_second);
  }
  return std::max(time.flops / products, time.bytes / memory);
}

/// A number, or nothing where it is not known.
std::string known(double number, bool exact) {
  if (!(number > 0.0)) return "";
  return exact ? fmt::format("{:.6g}", number) : fmt::format("{:.1f}", number);
}

Cells cells_of(const Peak& peak, bool exact) {
  Cells cells(9);
  cells[0] = "peak";
  cells[1] = fmt::format("{} {}", peak.type ? name_of(*peak.type) : "memory", peak.name);
  cells[peak.type ? 5 : 6] = known(1e-9 * peak.per_second, exact);
  return cells;
}

Cells cells_of(const KernelTime& time, double step, bool exact) {
  return {time.kernel,
          time.shape,
          time.pass,
          time.count > 0.0 ? fmt::format("{:.6g}", time.count) : "",
          fmt::format("{:.{}f}", 1e3 * time.seconds, exact ? 6 : 3),
          known(1e-9 * time.flops / time.seconds, exact),
          known(1e-9 * time.bytes / time.seconds, exact),
          known(100.0 * time.least_seconds / time.seconds, exact),
          fmt::format("{:.{}f}", 100.0 * time.seconds / step, exact ? 4 : 1)};
}

/// `table` with one row in place of those behind the `most` heaviest, but for the last two.
std::vector<KernelTime> shown(const KernelTable& table, std::size_t most) {
  std::vector<KernelTime> times = table.times;
  if (times.size() <= most + 3) return times;
  KernelTime others{.kernel = "others", .count = 0.0};
  const auto first = times.begin() + static_cast<std::ptrdiff_t>(most);
  std::for_each(first, times.end() - 2, [&](const KernelTime& time) { add(others, time); });
  *first = others;
  times.erase(first + 1, times.end() - 2);
  return times;
}

std::vector<Cells> rows_of(const KernelTable& table, std::size_t most, bool exact) {
  std::vector<Cells> rows = {
      {"kernel", "shape", "pass", "count", "ms", "GFLOP/s", "GB/s", "roofline %", "step %"}};
  for (const Peak& peak : table.peaks) rows.push_back(cells_of(peak, exact));
  for (const KernelTime& time : shown(table, most))
    rows.push_back(cells_of(time, table.seconds, exact));
  return rows;
}

}  // namespace

Json to_json(const KernelTime& time) {
  return Json::object({{"kernel", time.kernel},
                       {"shape", time.shape},
                       {"pass", time.pass},
                       {"count", time.count},
                       {"seconds", time.seconds},
                       {"flops", time.flops},
                       {"bytes", time.bytes},
                       {"least_seconds", time.least_seconds}});
}

KernelTime kernel_time_of(const Json& json) {
  return {.kernel = json.at("kernel").text(),
          .shape = json.at("shape").text(),
          .pass = json.at("pass").text(),
          .count = json.at("count").as_double(),
          .seconds = json.at("seconds").as_double(),
          .flops = json.at("flops").as_double(),
          .bytes = json.at("bytes").as_double()};
}

std::vector<KernelTime> added_up(std::span<const KernelTime> times) {
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> places;
  std::vector<KernelTime> sums;
  for (const KernelTime& time : times) {
    const auto [place, is_new] =
        places.try_emplace({time.kernel, time.shape, time.pass}, sums.size());
    if (is_new)
      sums.push_back(time);
    else
      add(sums[place->second], time);
  }
  return sums;
}

KernelTable kernel_table(std::vector<Peak> peaks, DType type, std::span<const KernelTime> times,
                         const StepTime& step) {
  KernelTable table{std::move(peaks), added_up(times), step.seconds};
  KernelTime spread{.kernel = "spread", .count = 0.0, .seconds = step.known};
  for (KernelTime& time : table.times) {
    time.least_seconds = least_seconds(time, type, table.peaks);
    spread.seconds -= time.seconds;
  }
  std::ranges::stable_sort(table.times, std::ranges::greater{}, &KernelTime::seconds);
  table.times.push_back(spread);
  table.times.push_back(
      {.kernel = "framework", .count = 0.0, .seconds = step.seconds - step.known});
  return table;
}

std::string to_text(const KernelTable& table, std::size_t most) {
  return partition::text_table(rows_of(table, most, false), 3);
}

std::string to_csv(const KernelTable& table) {
  std::string text;
  for (const Cells& row : rows_of(table, table.times.size(), true)) text += join(row, ",") + '\n';
  return text;
}

Json to_json(const KernelTable& table) {
  Json peaks = Json::list();
  for (const Peak& peak : table.peaks)
    peaks.push_back(Json::object({{"name", peak.name},
                                  {"type", peak.type ? Json(name_of(*peak.type)) : Json()},
                                  {"per_second", peak.per_second}}));
  Json kernels = Json::list();
  for (const KernelTime& time : table.times) kernels.push_back(to_json(time));
  return Json::object({{"step_seconds", table.seconds},
                       {"peaks", std::move(peaks)},
                       {"kernels", std::move(kernels)}});
}

}  // namespace millrace::report
