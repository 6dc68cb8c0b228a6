// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"

namespace millrace::report {
namespace {

namespace fs = std::filesystem;

/// The number of a member; NaN if there is none.
double number(const Json& object, std::string_view key) {
  const Json* const found = object.find(key);
  return found != nullptr && found->is_number() ? found->as_double()
                                                : std::numeric_limits<double>::quiet_NaN();
}

std::int64_t whole(const Json& object, std::string_view key) {
  const Json* const found = object.find(key);
  return found != nullptr && found->is_integer() ? found->as_int64() : 0;
}

std::optional<double> if_number(const Json& object, std::string_view key) {
  const double value = number(object, key);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::string text(const Json& object, std::string_view key) {
  const Json* const found = object.find(key);
  return found != nullptr && found->is_text() ? found->text() : "";
}

/// Adds a line of metrics.jsonl to the record; false if a run does not write such lines.
bool add_line(RunRecord& run, std::string_view line) {
  const std::optional<Json> parsed = Json::try_parse(line);
  if (!parsed || !parsed->is_object()) return false;
  const Json& json = *parsed;
  if (json.contains("schema")) {
    run.total_batch = whole(json, "total_batch");
    run.iterations = whole(json, "iterations");
    return true;
  }
  const Json* const iteration = json.find("iteration");
  if (iteration == nullptr || !iteration->is_integer()) return false;
  const std::int64_t at = iteration->as_int64();
  const double epoch = number(json, "epoch");
  if (json.contains("event")) {
    run.events.push_back(
        {at, text(json, "event"), if_number(json, "total_time"), if_number(json, "images_per_s")});
    if (json.contains("iterations")) run.iterations = whole(json, "iterations");
  }
  if (json.contains("train/loss"))
    run.training.push_back({.iteration = at,
                            .epoch = epoch,
                            .loss = number(json, "train/loss"),
                            .top1 = 100.0 * number(json, "train/top1"),
                            .rate = number(json, "lr"),
                            .images_per_second = number(json, "images_per_s"),
                            .loss_scale = number(json, "loss_scale"),
                            .skipped = whole(json, "skipped_updates")});
  if (std::isfinite(number(json, "val/top1")))
    run.validations.push_back({.iteration = at,
                               .epoch = epoch,
                               .loss = number(json, "val/loss"),
                               .top1 = 100.0 * number(json, "val/top1"),
                               .top5 = 100.0 * number(json, "val/top5"),
                               .name = text(json, "name"),
                               .images = whole(json, "images")});
  return true;
}

/// Calls `take` with each line of a file of the run. Notes a missing file, and what is not a line;
/// a running process may just be writing the last one.
void read_lines(RunRecord& run, const char* file, std::string_view without,
                const std::function<void(std::string_view, std::int64_t)>& take) {
  const fs::path path = run.directory / file;
  if (!fs::exists(path)) {
    run.notes.push_back(fmt::format("{} is missing: {}", file, without));
    return;
  }
  io::LineReader lines(path);
  while (const std::optional<std::string_view> line = lines.next()) take(*line, lines.lines());
  if (!lines.rest().empty() && run.state != RunState::Running)
    run.notes.push_back(fmt::format("{}: what follows line {} is incomplete or too long: left out",
                                    file, lines.lines()));
}

void read_metrics(RunRecord& run) {
  std::int64_t damaged = 0;
  std::int64_t first = 0;
  read_lines(run, "metrics.jsonl", "there are no curves",
             [&](std::string_view line, std::int64_t at) {
               if (!add_line(run, line) && damaged++ == 0) first = at;
             });
  if (damaged > 0)
    run.notes.push_back(fmt::format("metrics.jsonl: line {} is damaged{}: left out", first,
                                    damaged > 1 ? fmt::format(", and {} more", damaged - 1) : ""));
}

/// Adds a line of supervisor.jsonl; damaged ones are left out.
void add_supervised(RunRecord& run, std::string_view line) {
  const std::optional<Json> json = Json::try_parse(line);
  if (!json || !std::isfinite(number(*json, "time"))) return;
  SupervisorEvent event{.time = number(*json, "time"),
                        .event = text(*json, "event"),
                        .ranks = static_cast<int>(whole(*json, "ranks")),
                        .hosts = {},
                        .checkpoint = text(*json, "checkpoint"),
                        .what = text(*json, "what")};
  if (const Json* const hosts = json->find("hosts"); hosts != nullptr && hosts->is_list())
    for (const Json& host : hosts->items())
      if (host.is_text()) event.hosts.push_back(host.text());
  run.supervised.push_back(std::move(event));
}

/// What follows the beginning of a line, up to `end`; to the last letter without it.
std::string_view after(std::string_view beginning, std::string_view line, std::string_view end) {
  line.remove_prefix(beginning.size());
  return end.empty() ? line : line.substr(0, line.find(end));
}

/// The facts that only log.txt has. Each process writes them again, but one that trains nothing
/// measures no bubble.
void add_log_line(RunRecord& run, std::string_view line) {
  if (line.starts_with("Command line: ")) run.machine.clear();
  if (line.starts_with("step: ")) run.bubble.reset();
  for (const char* begin :
       {"Command line: ", "Device: ", "Kernels: ", "Memory: ", "Rank ", "Total Parameters: ",
        "Bad images: ", "Checkpoints: ", "Snapshots in memory: ", "Process peak: "})
    if (line.starts_with(begin)) run.machine.emplace_back(line);
  if (line.starts_with("Saved checkpoint to ")) ++run.checkpoints_written;
  if (line.starts_with("Saved trace to ")) run.trace = after("Saved trace to ", line, "");
  if (line.starts_with("Bubble: "))
    run.bubble = parse_number<double>(after("Bubble: ", line, " % measured"));
}

void find_trace(RunRecord& run) {
  std::error_code ignored;
  if (run.trace.extension() == ".svg") {
    run.notes.push_back(
        fmt::format("{}: a drawing; a page shows traces in JSON (--trace "
                    "FILE.json, --gc-profile IPU_PROFILE)",
                    run.trace.string()));
    run.trace.clear();
  }
  // The directory may have been moved with its trace, and paths may be relative.
  for (const fs::path& file :
       {run.trace, run.directory / run.trace.filename(), run.directory / "trace.json"})
    if (fs::is_regular_file(file, ignored)) {
      run.trace = file;
      return;
    }
  if (!run.trace.empty())
    run.notes.push_back(fmt::format("{}: the trace is no longer there", run.trace.string()));
  run.trace.clear();
}

void find_checkpoints(RunRecord& run) {
  std::error_code ignored;
  for (const fs::path& path : io::list_checkpoints(run.directory)) {
    SavedCheckpoint saved;
    const std::string name = path.filename().string();
    saved.iteration = parse_number<std::int64_t>(name.substr(name.find('-') + 1)).value_or(0);
    for (const fs::directory_entry& file : fs::directory_iterator(path, ignored))
      if (file.is_regular_file(ignored)) saved.bytes += file.file_size(ignored);
    run.checkpoints.push_back(saved);
  }
}

/// The last value of the column total_time.
std::optional<double> last_total_time(RunRecord& run) {
  std::optional<double> seconds;
  read_lines(run, "training.csv", "the time of the run is unknown while it goes on",
             [&](std::string_view line, std::int64_t) {
               const std::string_view cell = line.substr(line.rfind(',') + 1);
               if (const auto number = parse_number<double>(cell)) seconds = number;
             });
  return seconds;
}

bool is_held(const fs::path& directory) {
  const fs::path lock = directory / ".lock";
  std::error_code ignored;
  if (!fs::exists(lock, ignored)) return false;
  try {
    const io::UniqueFd file = io::open_file(lock, O_RDONLY);
    return ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  } catch (const Error&) {  // of somebody else's run; its events tell enough
    return false;
  }
}

/// Early versions did not say how a process ended.
RunState state_of(const RunRecord& run) {
  const std::string last = run.events.empty() ? "" : run.events.back().what;
  if (last == "finished" || (run.iterations > 0 && run.done() == run.iterations))
    return RunState::Finished;
  return last == "stopped" ? RunState::Stopped : RunState::Unfinished;
}

void require_run(const fs::path& directory) {
  io::require_recorded_directory(directory);
  if (!fs::exists(directory / "config.toml") && !fs::exists(directory / "metrics.jsonl") &&
      io::list_checkpoints(directory).empty())
    fail(ErrorKind::Usage,
         "{}: is not a run: it has neither config.toml nor metrics.jsonl, nor checkpoints: give "
         "the directory of a run",
         directory.string());
}

}  // namespace

std::int64_t RunRecord::done() const {
  std::int64_t most = 0;
  if (!training.empty()) most = training.back().iteration;
  if (!events.empty()) most = std::max(most, events.back().iteration);
  if (!checkpoints.empty()) most = std::max(most, checkpoints.back().iteration);
  return most;
}

const ValidationPoint* RunRecord::best() const {
  const ValidationPoint* const newest = last();
  const ValidationPoint* best = nullptr;
  for (const ValidationPoint& point : validations)
    if (point.name.empty() && point.images == newest->images &&
        (best == nullptr || point.top1 > best->top1))
      best = &point;
  return best;
}

const ValidationPoint* RunRecord::last() const {
  const ValidationPoint* last = nullptr;
  for (const ValidationPoint& point : validations)
    if (point.name.empty()) last = &point;
  return last;
}

std::optional<double> RunRecord::images_per_second() const {
  const std::int64_t trained = training.empty() ? 0 : training.back().iteration;
  for (auto event = events.rbegin(); event != events.rend() && event->iteration >= trained; ++event)
    if (event->images_per_second) return event->images_per_second;
  if (training.empty() || !std::isfinite(training.back().images_per_second)) return {};
  return training.back().images_per_second;
}

RunRecord read_run(const fs::path& directory) {
  require_run(directory);
  RunRecord run;
  run.directory = directory;
  const fs::path absolute = fs::weakly_canonical(directory);
  run.name = absolute.filename().string();
  if (is_held(directory)) run.state = RunState::Running;
  read_metrics(run);
  if (run.iterations < run.done()) run.iterations = 0;  // extended by an earlier version
  if (run.state != RunState::Running) run.state = state_of(run);
  read_lines(run, "log.txt", "what it says about machine, memory and bubble is missing",
             [&](std::string_view line, std::int64_t) { add_log_line(run, line); });
  if (fs::exists(directory / "supervisor.jsonl"))
    read_lines(run, "supervisor.jsonl", "",
               [&](std::string_view line, std::int64_t) { add_supervised(run, line); });
  run.seconds = last_total_time(run);
  if (!run.events.empty() && run.events.back().seconds) run.seconds = run.events.back().seconds;
  find_trace(run);
  find_checkpoints(run);
  return run;
}

}  // namespace millrace::report
