// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/text.hpp"
#include "partition/plan.hpp"

namespace millrace::report {
namespace {

constexpr std::string_view kFull = "32.32";
constexpr const char* kMissing = "N/A";

using Number = std::optional<double>;
using Cells = std::vector<std::string>;

template <class Same>
const BenchRow* find_row(const BenchTable& table, Same&& same) {
  const auto found = std::ranges::find_if(table.rows, same);
  return found == table.rows.end() ? nullptr : &*found;
}

Number rate_of(const BenchRow* row) {
  if (row == nullptr || !row->run) return {};
  return row->run->images_per_second();
}

Number ratio(const Number& above, const Number& below) {
  if (!above || !below) return {};
  return *above / *below;
}

BenchFigures figures_of(const BenchTable& table, const BenchRow& row) {
  const BenchRow* const full = find_row(table, [&](const BenchRow& other) {
    return other.batch_size == row.batch_size && other.ranks == row.ranks &&
           other.precision == kFull;
  });
  const BenchRow* const first = find_row(table, [&](const BenchRow& other) {
    return other.batch_size == row.batch_size && other.precision == row.precision;
  });
  BenchFigures figures{.images_per_second = rate_of(&row)};
  if (row.precision != kFull) figures.speed_up = ratio(figures.images_per_second, rate_of(full));
  figures.weak_scaling = ratio(figures.images_per_second, rate_of(first));
  if (figures.weak_scaling)
    figures.efficiency =
        *figures.weak_scaling * static_cast<double>(first->ranks) / static_cast<double>(row.ranks);
  return figures;
}

/// In the order of their first row.
template <class Value>
std::vector<Value> distinct(const BenchTable& table, Value BenchRow::*member) {
  std::vector<Value> values;
  for (const BenchRow& row : table.rows)
    if (std::ranges::find(values, row.*member) == values.end()) values.push_back(row.*member);
  return values;
}

std::string cell(const Number& number, int decimals) {
  return number ? fmt::format("{:.{}f}", *number, decimals) : kMissing;
}

/// A column of the first table: one figure, in one precision.
struct Column {
  std::string head;
  std::string precision;
  Number BenchFigures::*figure;
  int decimals;
};

std::vector<Column> columns_of(const BenchTable& table) {
  const Cells precisions = distinct(table, &BenchRow::precision);
  const bool compares = std::ranges::find(precisions, kFull) != precisions.end();
  std::vector<Column> columns;
  for (const std::string& p : precisions)
    columns.push_back({p + " img/s", p, &BenchFigures::images_per_second, 1});
  for (const std::string& p : precisions)
    if (compares && p != kFull) columns.push_back({p + " speed-up", p, &BenchFigures::speed_up, 2});
  if (distinct(table, &BenchRow::ranks).size() > 1)
    for (const std::string& p : precisions)
      columns.push_back({p + " weak scaling", p, &BenchFigures::weak_scaling, 2});
  return columns;
}

std::string rates_text(const BenchTable& table) {
  const std::vector<BenchFigures> figures = figures_of(table);
  const std::vector<Column> columns = columns_of(table);
  std::vector<Cells> rows(1, Cells{"batch", "ranks"});
  for (const Column& column : columns) rows.front().push_back(column.head);
  for (const std::int64_t batch : distinct(table, &BenchRow::batch_size))
    for (const std::int64_t ranks : distinct(table, &BenchRow::ranks)) {
      Cells line = {fmt::format("{}", batch), fmt::format("{}", ranks)};
      for (const Column& column : columns) {
        const BenchRow* const row = find_row(table, [&](const BenchRow& other) {
          return other.batch_size == batch && other.ranks == ranks &&
                 other.precision == column.precision;
        });
        const std::ptrdiff_t at = row == nullptr ? -1 : row - table.rows.data();
        const Number number =
            at < 0 ? Number() : figures[static_cast<std::size_t>(at)].*column.figure;
        line.push_back(cell(number, column.decimals));
      }
      rows.push_back(std::move(line));
    }
  return partition::text_table(rows, 0);
}

/// The times of a step that tables show, with their names.
struct Percentile {
  const char* head;
  const char* key;
  double Latency::*value;
};
constexpr std::array kPercentiles = {Percentile{"average", "average", &Latency::average},
                                     Percentile{"50 %", "p50", &Latency::p50},
                                     Percentile{"90 %", "p90", &Latency::p90},
                                     Percentile{"95 %", "p95", &Latency::p95},
                                     Percentile{"99 %", "p99", &Latency::p99},
                                     Percentile{"100 %", "p100", &Latency::p100}};

std::string latencies_text(const BenchTable& table) {
  std::vector<Cells> rows(1, Cells{"batch", "ranks", "precision"});
  for (const Percentile& percentile : kPercentiles) rows.front().emplace_back(percentile.head);
  for (const BenchRow& row : table.rows) {
    Cells line = {fmt::format("{}", row.batch_size), fmt::format("{}", row.ranks), row.precision};
    const std::optional<Latency> latency =
        row.run ? std::optional(latency_of(row.run->step_seconds)) : std::nullopt;
    for (const Percentile& percentile : kPercentiles)
      line.push_back(latency ? cell(1e3 * (*latency).*percentile.value, 2) : kMissing);
    rows.push_back(std::move(line));
  }
  return partition::text_table(rows, 0);
}

/// What all rows have in common, in words.
std::string head_of(const BenchTable& table) {
  const BenchRow* const row = find_row(table, [](const BenchRow& r) { return r.run.has_value(); });
  if (row == nullptr) return table.machine + '\n';
  const BenchRun& run = *row->run;
  return fmt::format(
      "{} of {}; {}\n{}\n{} warm-up and {} measured steps a run; img/s: images of a step over the "
      "median of its times\n",
      run.use == "training" ? "Training" : "Inference", run.network, run.images, table.machine,
      run.warmup_steps, run.step_seconds.size());
}

}  // namespace

std::vector<BenchFigures> figures_of(const BenchTable& table) {
  std::vector<BenchFigures> figures;
  figures.reserve(table.rows.size());
  for (const BenchRow& row : table.rows) figures.push_back(figures_of(table, row));
  return figures;
}

std::string to_text(const BenchTable& table) {
  return fmt::format("{}\n{}\nTime of a step in ms\n{}", head_of(table), rates_text(table),
                     latencies_text(table));
}

std::string to_csv(const BenchTable& table) {
  const std::vector<BenchFigures> figures = figures_of(table);
  Cells head = {"mode",     "batch_size",   "ranks",     "precision",
                "threads",  "warmup_steps", "steps",     "images_per_second",
                "speed_up", "weak_scaling", "efficiency"};
  for (const Percentile& percentile : kPercentiles)
    head.push_back(fmt::format("latency_{}_ms", percentile.key));
  std::string text = join(head, ",") + '\n';
  const auto number = [](const Number& value) {
    return value ? fmt::format("{:.6g}", *value) : "";
  };
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const BenchRow& row = table.rows[i];
    const BenchFigures& f = figures[i];
    const auto of_run = [&](auto&& member) {
      return row.run ? fmt::format("{}", member(*row.run)) : std::string();
    };
    Cells cells = {of_run([](const BenchRun& run) { return run.use; }),
                   fmt::format("{}", row.batch_size),
                   fmt::format("{}", row.ranks),
                   row.precision,
                   of_run([](const BenchRun& run) { return run.threads; }),
                   of_run([](const BenchRun& run) { return run.warmup_steps; }),
                   of_run([](const BenchRun& run) { return run.step_seconds.size(); }),
                   number(f.images_per_second),
                   number(f.speed_up),
                   number(f.weak_scaling),
                   number(f.efficiency)};
    for (const Percentile& percentile : kPercentiles)
      cells.push_back(row.run ? number(1e3 * latency_of(row.run->step_seconds).*percentile.value)
                              : std::string());
    text += join(cells, ",") + '\n';
  }
  return text;
}

Json to_json(const BenchTable& table) {
  const std::vector<BenchFigures> figures = figures_of(table);
  const auto number = [](const Number& value) { return value ? Json(*value) : Json(); };
  Json rows = Json::list();
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const BenchRow& row = table.rows[i];
    Json item = Json::object({{"batch_size", row.batch_size},
                              {"ranks", row.ranks},
                              {"precision", row.precision},
                              {"images_per_second", number(figures[i].images_per_second)},
                              {"speed_up", number(figures[i].speed_up)},
                              {"weak_scaling", number(figures[i].weak_scaling)},
                              {"efficiency", number(figures[i].efficiency)}});
    if (row.run)
      item.set("run", to_json(*row.run));
    else
      item.set("failure", row.failure);
    rows.push_back(std::move(item));
  }
  return Json::object({{"machine", table.machine}, {"rows", std::move(rows)}});
}

}  // namespace millrace::report
