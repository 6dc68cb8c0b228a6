// SPDX-License-Identifier: Apache-2.0
//
// Covering arrays: a small selection of cases that still contains every pair of choices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace millrace::test {

/// A case as the value of each of its factors.
using Choices = std::vector<int>;

using Choice = std::pair<std::size_t, int>;  ///< factor, value

inline std::set<std::pair<Choice, Choice>> pairs_of(const Choices& values) {
  std::set<std::pair<Choice, Choice>> pairs;
  for (std::size_t a = 0; a < values.size(); ++a)
    for (std::size_t b = a + 1; b < values.size(); ++b)
      pairs.insert({Choice{a, values[a]}, Choice{b, values[b]}});
  return pairs;
}

/// Indices of cases that together contain every pair of choices that any case contains. Greedy:
/// always adds the case with the most new pairs.
inline std::vector<std::size_t> covering_array(const std::vector<Choices>& all) {
  std::vector<std::set<std::pair<Choice, Choice>>> pairs;
  std::set<std::pair<Choice, Choice>> missing;
  for (const Choices& values : all) {
    pairs.push_back(pairs_of(values));
    missing.insert(pairs.back().begin(), pairs.back().end());
  }
  std::vector<std::size_t> chosen;
  while (!missing.empty()) {
    const auto news = [&](const auto& of) {
      return std::count_if(of.begin(), of.end(),
                           [&](const auto& p) { return missing.contains(p); });
    };
    const auto best =
        std::max_element(pairs.begin(), pairs.end(),
                         [&](const auto& a, const auto& b) { return news(a) < news(b); });
    chosen.push_back(static_cast<std::size_t>(best - pairs.begin()));
    for (const auto& pair : *best) missing.erase(pair);
  }
  return chosen;
}

}  // namespace millrace::test
