// SPDX-License-Identifier: Apache-2.0
#include "cli/help_text.hpp"

#include "core/text.hpp"

namespace millrace::cli {
namespace {

/// Breaks `text` between words into lines of kHelpWidth; later lines begin at kHelpColumn.
std::string wrapped(std::string_view text) {
  std::string out;
  std::size_t column = kHelpColumn;
  for (const std::string& word : split_list(text, ' ')) {
    const bool breaks = column + 1 + word.size() > kHelpWidth;
    if (breaks) {
      out += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (!out.empty()) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

}  // namespace

std::string help_entry(const std::string& left, std::string_view text) {
  const std::string gap = left.size() + 2 <= kHelpColumn
                              ? std::string(kHelpColumn - left.size(), ' ')
                              : "\n" + std::string(kHelpColumn, ' ');
  return left + gap + wrapped(text) + "\n";
}

}  // namespace millrace::cli
