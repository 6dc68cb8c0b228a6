// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::test {

/// What is wrong with an SVG drawing by the rules of XML that matter for it: tags are nested
/// correctly below one root, attributes are quoted, and ampersands begin an entity. Empty: nothing.
inline std::string problem_of_xml(std::string_view xml) {
  std::vector<std::string_view> open;
  bool any = false;
  for (std::size_t at = xml.find_first_of("&<>"); at != std::string_view::npos;
       at = xml.find_first_of("&<>", at + 1)) {
    const std::string_view rest = xml.substr(at);
    if (rest[0] == '&') {
      if (!rest.starts_with("&amp;") && !rest.starts_with("&lt;") && !rest.starts_with("&gt;") &&
          !rest.starts_with("&quot;"))
        return "a bare ampersand";
      continue;
    }
    const std::size_t end = rest.find('>');
    if (rest[0] == '>' || end == std::string_view::npos) return "a tag without a beginning or end";
    const std::string_view tag = rest.substr(1, end - 1);
    const std::string text(tag);
    if (tag.find('<') != std::string_view::npos) return "a tag in a tag: " + text;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "odd quotes: " + text;
    at += end;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "closes what is not open: " + text;
      open.pop_back();
    } else if (tag.back() != '/') {
      if (any && open.empty()) return "a second root: " + text;
      open.push_back(tag.substr(0, tag.find(' ')));
      any = true;
    }
  }
  if (!any) return "no tags";
  return open.empty() ? "" : "not closed: " + std::string(open.back());
}

}  // namespace millrace::test
