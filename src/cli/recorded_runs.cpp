// SPDX-License-Identifier: Apache-2.0
#include "cli/recorded_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/checkpoint.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfiguration = "config.toml";

bool is_run(const fs::path& directory, RunsWith with) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) return false;
  if (with == RunsWith::Anything && fs::exists(directory / kConfiguration, ignored)) return true;
  return fs::is_directory(directory / "checkpoints", ignored) &&
         !io::list_checkpoints(directory).empty();
}

/// Whether a path is what commands take: a run, its folder of checkpoints, or a checkpoint.
bool is_recorded(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kConfiguration, ignored) || !io::list_checkpoints(path).empty();
}

/// When a run last wrote a checkpoint, or else began.
fs::file_time_type last_written(const fs::path& run) {
  const std::vector<fs::path> checkpoints = io::list_checkpoints(run);
  std::error_code ignored;
  return fs::last_write_time(checkpoints.empty() ? run / kConfiguration : checkpoints.back(),
                             ignored);
}

std::string listed(const std::vector<fs::path>& runs, std::size_t first) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> names;
  for (std::size_t i = first; i < std::min(runs.size(), first + kMost); ++i)
    names.push_back(runs[i].string());
  const std::size_t left = runs.size() - first - names.size();
  return join(names, ", ") + (left > 0 ? fmt::format(" and {} older ones", left) : "");
}

/// The run that a path means, if it is a folder of runs. `where` is how it was given.
std::optional<fs::path> meant_run(const fs::path& path, std::string_view where, RunsWith with,
                                  bool takes_newest, std::vector<std::string>& notices) {
  if (is_recorded(path)) return std::nullopt;
  std::vector<fs::path> runs = runs_below(path, with);
  if (runs.empty()) return std::nullopt;
  if (runs.size() > 1 && !takes_newest)
    fail(ErrorKind::Usage,
         "{} {}: holds {} runs: give the path of one of them, the newest first: {}", where,
         path.string(), runs.size(), listed(runs, 0));
  notices.push_back(fmt::format(
      "{} {}: taking the {} run in it, {}{}", where, path.string(),
      runs.size() == 1 ? "only" : "newest", runs.front().string(),
      runs.size() == 1
          ? ""
          : "; to choose another, give its path, the newest first: " + listed(runs, 1)));
  return std::move(runs.front());
}

/// The commands whose arguments are runs, and what these must have.
std::optional<RunsWith> takes_runs(Command command) {
  switch (command) {
    case Command::Report:
      return RunsWith::Anything;
    case Command::Export:
    case Command::Average:
    case Command::Inspect:
    case Command::Predict:
      return RunsWith::Checkpoints;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<fs::path> runs_below(const fs::path& folder, RunsWith with) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (is_run(it->path(), with)) found.emplace_back(last_written(it->path()), it->path());
  std::sort(found.begin(), found.end(), std::greater<>());
  std::vector<fs::path> runs;
  runs.reserve(found.size());
  for (auto& [time, run] : found) runs.push_back(std::move(run));
  return runs;
}

std::vector<std::string> find_recorded_runs(CommandLine& line) {
  Patch& options = line.options;
  std::vector<std::string> notices;
  if (const Setting* const given = options.find("restore-path")) {
    // In a dialect it is the directory that the training was given.
    const bool takes_newest = options.find("dialect") != nullptr;
    Setting setting = *given;
    const std::string where = setting.where.substr(0, setting.where.find(' '));
    if (const auto run = meant_run(std::get<std::string>(setting.value), where,
                                   RunsWith::Checkpoints, takes_newest, notices)) {
      setting.value = run->string();
      options.set(*find_field("restore-path"), setting);
    }
  }
  const std::optional<RunsWith> with = takes_runs(line.command);
  if (!with) return notices;
  // The other arguments of a prediction are images, and so is the first one if an option names the
  // run.
  const bool predicts = line.command == Command::Predict;
  std::span<std::string> arguments = line.arguments;
  if (predicts)
    arguments =
        arguments.first(options.find("restore-path") != nullptr || arguments.empty() ? 0 : 1);
  for (std::string& argument : arguments)
    if (const auto run = meant_run(argument, "folder", *with, false, notices))
      argument = run->string();
  return notices;
}

}  // namespace millrace::cli
