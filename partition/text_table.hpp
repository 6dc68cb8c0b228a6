// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace millrace::partition {

/// Prints rows of equal length. Columns are as wide as their widest entry; the first `left_columns`
/// are aligned left, the others, which are numbers, right.
[[nodiscard]] std::string text_table(const std::vector<std::vector<std::string>>& rows,
                                     std::size_t left_columns);

}  // namespace millrace::partition
