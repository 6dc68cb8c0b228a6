// SPDX-License-Identifier: Apache-2.0
//
// The tables of lines in this folder.
#pragma once

#include "tests/support/test.hpp"

namespace millrace::test {

/// Lines that mean the same, and what is said of them below, each behind a mark.
struct Row {
  std::vector<std::string> lines;
  std::vector<std::string> marks;
};
inline std::vector<Row> rows_of(const char* table) {
  std::ifstream file(std::filesystem::path(MILLRACE_SOURCE_DIR) / "tests/tools/dialects" / table);
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const bool marked = line.starts_with("  ");
    if (!marked && (rows.empty() || !rows.back().marks.empty())) rows.emplace_back();
    if (marked)
      rows.back().marks.push_back(line.substr(2));
    else
      rows.back().lines.push_back(line);
  }
  EXPECT_FALSE(rows.empty()) << table;
  return rows;
}

}  // namespace millrace::test
