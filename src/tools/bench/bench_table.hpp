// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "tools/bench/bench_run.hpp"

namespace millrace::report {

/// A row: what was asked for, and what it measured; nothing if it failed.
struct BenchRow {
  std::int64_t batch_size = 1;
  std::int64_t ranks = 1;
  std::string precision;
  std::optional<BenchRun> run = {};
  std::string failure = {};  ///< why there is no run
};

/// The benchmarks of one network, and where they ran.
struct BenchTable {
  std::string machine;  ///< processor, cores and load, in words
  std::vector<BenchRow> rows;
};

/// What rows say about each other. Nothing where one of the two is missing.
struct BenchFigures {
  std::optional<double> images_per_second = {};
  /// Rate over that in 32 bits, of the same batch and ranks; not for rows in 32 bits.
  std::optional<double> speed_up = {};
  /// Rate over that of the first row of the same batch and precision.
  std::optional<double> weak_scaling = {};
  /// The same over the ranks of the two: 1 if twice the ranks have twice the rate.
  std::optional<double> efficiency = {};
};
/// By row.
[[nodiscard]] std::vector<BenchFigures> figures_of(const BenchTable& table);

/// Rates with the precisions side by side, then latencies.
[[nodiscard]] std::string to_text(const BenchTable& table);
/// A line for each row, and a head. Empty fields where there is no number.
[[nodiscard]] std::string to_csv(const BenchTable& table);
/// Every row with its figures and, as "run", what it was made from.
[[nodiscard]] Json to_json(const BenchTable& table);

}  // namespace millrace::report
