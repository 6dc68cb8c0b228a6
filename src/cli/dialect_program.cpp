// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <regex>

#include "cli/dialect.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

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

std::string take_nvidia_script(std::vector<std::string>& words) {
  if (words.empty()) return {};
  const std::string name = std::filesystem::path(words[0]).filename().string();
  static const std::regex script("RN50_(FP16|FP32)_(?:([148])GPU|(EVAL))\\.sh");
  std::smatch match;
  if (!std::regex_match(name, match, script)) return {};
  constexpr std::size_t kArguments = 3;
  if (words.size() <= kArguments || std::any_of(words.begin() + 1, words.begin() + 1 + kArguments,
                                                [](const auto& w) { return w.starts_with('-'); }))
    fail(ErrorKind::Usage, "{} needs the paths of the model, of the data set and of the results",
         name);
  const bool evaluates = match[3].matched;
  const std::vector<std::string> meant = {
      "--config",
      fmt::format("nvidia-resnet50-{}-{}", to_lower(match[1].str()),
                  evaluates ? "eval" : match[2].str() + "gpu"),
      "--data-dir",
      words[2],
      evaluates ? "--restore-path" : "--log-dir",
      words[3]};
  words.erase(words.begin(), words.begin() + 1 + kArguments);
  words.insert(words.begin(), meant.begin(), meant.end());
  return evaluates ? "validation.py" : "train.py";
}

void refuse_device_list(std::span<const std::string> words) {
  if (words.empty() || std::filesystem::path(words[0]).filename() != "gc-info") return;
  fail(ErrorKind::Usage, "gc-info lists devices and trains nothing: use millrace doctor");
}

void take_profiler(std::vector<std::string>& words) {
  if (words.empty() || std::filesystem::path(words[0]).filename() != "gc-profile") return;
  const auto end = std::find(words.begin(), words.end(), "--");
  if (end == words.end())
    fail(ErrorKind::Usage, "gc-profile needs -- before the program that it runs");
  const auto option = std::find(words.begin(), end, "-d");
  const std::string folder = option < end && option + 1 < end ? option[1] : "";
  words.erase(words.begin(), end + 1);
  if (folder.empty()) return;
  words.insert(words.end(), {"--trace", (std::filesystem::path(folder) / "trace.json").string()});
}

}  // namespace millrace::cli
