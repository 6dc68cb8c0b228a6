// SPDX-License-Identifier: Apache-2.0
//
// Reads the CSV files of a run by column, for tests that judge whole trainings.
#pragma once

#include "support/process.hpp"

namespace millrace::test {

/// The columns of a CSV file with a header.
class Table {
 public:
  using Columns = std::map<std::string, std::vector<std::string>>;
  explicit Table(const std::filesystem::path& csv) {
    std::istringstream lines(read_text(csv));
    std::vector<std::string> names;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream cells(line);
      std::vector<std::string> row;
      for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
      if (names.empty()) {
        names = row;
        continue;
      }
      for (std::size_t i = 0; i < names.size() && i < row.size(); ++i)
        columns_[names[i]].push_back(row[i]);
    }
  }

  /// The numbers of a column. A missing column fails the test and gives none.
  [[nodiscard]] std::vector<double> operator[](const std::string& name) const {
    std::vector<double> result;
    const auto found = columns_.find(name);
    EXPECT_NE(found, columns_.end()) << "no column " << name;
    if (found == columns_.end()) return result;
    for (const std::string& cell : found->second) result.push_back(std::stod(cell));
    return result;
  }
  [[nodiscard]] const Columns& columns() const { return columns_; }
  [[nodiscard]] double first(const std::string& name) const { return at(name, 0); }
  /// The `back`-th row from the end; 1 is the last one.
  [[nodiscard]] double last(const std::string& name, std::size_t back = 1) const {
    const std::vector<double> all = (*this)[name];
    return back > all.size() ? at(name, 0) : all[all.size() - back];
  }

 private:
  [[nodiscard]] double at(const std::string& name, std::size_t row) const {
    const std::vector<double> all = (*this)[name];
    EXPECT_LT(row, all.size()) << "too few rows below " << name;
    return row < all.size() ? all[row] : 0.0;
  }

  Columns columns_;
};

/// Expects that a training has losses, which are sound and change, and returns them.
inline std::vector<double> expect_sound_losses(const std::filesystem::path& run) {
  std::vector<double> losses = Table(run / "training.csv")["loss_batch"];
  EXPECT_FALSE(losses.empty());
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss) && loss >= 0.0) << loss;
  EXPECT_TRUE(losses.size() < 2 || losses.front() != losses.back());
  return losses;
}

/// The columns that do not contain times.
inline Table::Columns timeless_columns(const std::filesystem::path& csv) {
  Table::Columns columns = Table(csv).columns();
  EXPECT_FALSE(columns.empty()) << csv;
  std::erase_if(columns, [](const auto& column) {
    return column.first.find("time") != std::string::npos || column.first == "img_per_sec" ||
           column.first == "latency";
  });
  return columns;
}

}  // namespace millrace::test
