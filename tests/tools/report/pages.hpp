// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <regex>

#include "tests/support/test.hpp"
#include "tests/support/xml.hpp"

namespace millrace::test {

inline std::size_t count(std::string_view text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size()))
    ++n;
  return n;
}

/// The SVG elements of a page.
inline std::vector<std::string_view> pictures(std::string_view page) {
  std::vector<std::string_view> found;
  for (std::size_t at = page.find("<svg"); at != std::string_view::npos;
       at = page.find("<svg", at + 1)) {
    const std::size_t end = page.find("</svg>", at);
    EXPECT_NE(end, std::string_view::npos);
    found.push_back(page.substr(at, end + 6 - at));
  }
  return found;
}

/// Expects that a page needs nothing else and that its elements are nested correctly.
inline void expect_sound(const std::string& page) {
  for (const char* outside :
       {"http", "<script", "<link", "<img", "url(", "@import", "src=", "href="})
    EXPECT_EQ(count(page, outside), 0u) << outside;
  EXPECT_FALSE(pictures(page).empty());
  for (const std::string_view picture : pictures(page)) EXPECT_EQ(problem_of_xml(picture), "");
  // The page is XML but for the declaration, its two meta elements and its style.
  std::string body = page.substr(page.find("<body>"));
  body.resize(body.find("</body>") + 7);
  EXPECT_EQ(problem_of_xml(body), "");
  EXPECT_NE(page.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(page.find("name=\"viewport\""), std::string::npos);
}

/// What is in front of a meaning in the tiles of the first run.
inline std::string tile(const std::string& page, const std::string& meaning) {
  const std::regex pattern("<b>([^<]*)</b><span>" + meaning);
  std::smatch match;
  EXPECT_TRUE(std::regex_search(page, match, pattern)) << meaning;
  return match.empty() ? "" : match[1].str();
}

}  // namespace millrace::test
