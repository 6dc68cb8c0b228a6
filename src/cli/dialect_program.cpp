// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <filesystem>

#include "cli/dialect.hpp"

namespace millrace::cli {
namespace {

/// "python", "python3", "/usr/bin/python3.11".
bool is_interpreter(const std::string& word) {
  constexpr std::string_view kName = "python";
  const std::string name = std::filesystem::path(word).filename().string();
  return name.starts_with(kName) &&
         name.find_first_not_of("0123456789.", kName.size()) == std::string::npos;
}

}  // namespace

std::string take_program(std::vector<std::string>& words) {
  std::size_t next = 0;
  std::string script;
  if (!words.empty() && is_interpreter(words[0])) {
    next = 1;
    while (next < words.size() && words[next].starts_with('-') && words[next] != "-m") ++next;
    if (next + 1 < words.size() && words[next] == "-m") {
      const std::string& module = words[next + 1];  // "package.main"
      script = module.substr(module.rfind('.') + 1) + ".py";
      next += 2;
    }
  }
  if (script.empty() && next < words.size() && words[next].ends_with(".py") &&
      !words[next].starts_with('-'))
    script = std::filesystem::path(words[next++]).filename().string();
  if (script.empty()) return script;
  words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(next));
  return script;
}

}  // namespace millrace::cli
