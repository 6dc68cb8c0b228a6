// SPDX-License-Identifier: Apache-2.0
//
// What every test begins with: GoogleTest, the headers of the standard library that most tests
// need, and what is expected of texts. Fixtures include it, and so do tests without a fixture in a
// header; neither lists these headers again.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace millrace {
namespace fs = std::filesystem;
}  // namespace millrace

namespace millrace::test {

/// Expects that the text contains all parts.
inline void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in\n" << text;
}

/// Expects that the text contains none of the parts.
inline void expect_not_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_EQ(text.find(part), std::string::npos) << "'" << part << "' is in\n" << text;
}

}  // namespace millrace::test
