// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_runs.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "cli/open_run.hpp"
#include "comm/world.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "tools/bench/bench_machine.hpp"
#include "tools/bench/bench_output.hpp"
#include "tools/bench/bench_table.hpp"
#include "tools/bench/child_process.hpp"
#include "train/progress.hpp"

namespace millrace::cli {
namespace {

/// The options that make a list of runs.
constexpr std::array kLists = {"batch-sizes", "ranks", "precision"};

/// All values of an option as text; a single empty text if it was not given.
std::vector<std::string> values_of(const Patch& options, std::string_view name) {
  const Setting* const setting = options.find(name);
  if (setting == nullptr) return {""};
  std::vector<std::string> values = {to_string(setting->value)};
  for (const Value& other : setting->others) values.push_back(to_string(other));
  return values;
}

bool is_list(const Patch& options, std::string_view name) {
  const Setting* const setting = options.find(name);
  return setting != nullptr && !setting->others.empty();
}

/// What one of several runs is asked for. An empty text: whatever a single run would have.
struct Asked {
  std::string batch_size;
  std::string ranks;
  std::string precision;
};

std::vector<Asked> asked_runs(const Patch& options) {
  std::vector<Asked> runs;
  for (const std::string& batch : values_of(options, "batch-sizes"))
    for (const std::string& ranks : values_of(options, "ranks"))
      for (const std::string& precision : values_of(options, "precision"))
        runs.push_back({batch, ranks, precision});
  return runs;
}

std::string describe(const Asked& asked) {
  std::vector<std::string> parts;
  if (!asked.batch_size.empty()) parts.push_back("batch " + asked.batch_size);
  if (!asked.ranks.empty()) parts.push_back(asked.ranks + " rank(s)");
  if (!asked.precision.empty()) parts.push_back("precision " + asked.precision);
  return join(parts, ", ");
}

/// Replicas that so many ranks make room for. Errors: Usage.
std::int64_t replicas_for(std::int64_t ranks, const Patch& options) {
  const std::int64_t shards = options.integer("shards").value_or(1);
  if (ranks % shards != 0)
    fail(ErrorKind::Usage,
         "--ranks: {} processes cannot hold whole replicas of --shards {}: list multiples of it",
         ranks, shards);
  return ranks / shards;
}

/// The command line of one run: what was typed, and behind it what holds for this run only.
std::vector<std::string> words_of(const Invocation& invocation, const Asked& asked) {
  const Patch& options = invocation.options;
  std::vector<std::string> words = invocation.words;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  add("--batch-sizes", asked.batch_size);
  add("--precision", asked.precision);
  add("--ranks", asked.ranks);
  if (is_list(options, "ranks"))
    add("--replicas",
        std::to_string(replicas_for(parse_number<std::int64_t>(asked.ranks).value(), options)));
  words.insert(words.end(), {"--format", "json"});
  return words;
}

/// Errors: Usage for options that concern a single run.
void require_for_several(const Invocation& invocation) {
  const Patch& options = invocation.options;
  std::string listed;
  for (const char* name : kLists)
    if (listed.empty() && is_list(options, name)) listed = options.find(name)->where;
  const auto refuse = [&](const char* name, std::string_view why) {
    if (const Setting* const given = options.typed(name))
      fail(ErrorKind::Usage, "{} {}, but {} lists several: leave one of them out", given->where,
           why, listed);
  };
  for (const char* name :
       {"machine-file", "dataset-benchmark", "pipeline", "kernels", "display-every"})
    refuse(name, "shows a single run");
  for (const char* name : {"results-file", "log-filename"}) refuse(name, "writes a single run");
  if (is_list(options, "ranks")) refuse("replicas", "sets the replicas of a single run");
  if (comm::started_by_launcher())
    fail(ErrorKind::Usage,
         "{} lists several runs, each of which starts its own ranks: start millrace without mpirun",
         listed);
}

std::string describe_machine() {
  std::array<double, 1> load{};
  const std::string name = processor_name();
  std::string text = fmt::format("{}, {} core(s)", name.empty() ? "unknown processor" : name,
                                 this_machine().cores);
  if (::getloadavg(load.data(), 1) == 1)
    text += fmt::format(", load average {:.1f} before the first run", load[0]);
  return text;
}

/// Runs one after the other and passes on what they say, each line once.
class Runner {
 public:
  explicit Runner(const Invocation& invocation)
      : invocation_(invocation),
        console_(stderr, stderr, training::terminal_of(stderr), {}),
        runs_(asked_runs(invocation.options)) {
    if (is_quiet(invocation.options)) console_.quieten();
  }

  /// The rows of all runs; `code` becomes that of the first that failed.
  std::vector<report::BenchRow> rows(int& code) {
    std::vector<report::BenchRow> rows;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      console_.status(fmt::format("run {} of {}: {}", i + 1, runs_.size(), describe(runs_[i])),
                      process_seconds());
      rows.push_back(row_of(runs_[i], rows.empty() ? report::BenchRow{} : rows.front(), code));
      if (code != 0 && i == 0) break;
    }
    console_.clear_status();
    return rows;
  }

 private:
  report::BenchRow row_of(const Asked& asked, report::BenchRow row, int& code) {
    row.run.reset();
    std::string failure;
    const ChildEnd end = run_this_program(words_of(invocation_, asked),
                                          [&](const std::string& line) { hear(line, failure); });
    if (end.code == 0) {
      row.run = report::bench_run_of(Json::parse(end.output));
      row.batch_size = row.run->batch_size;
      row.ranks = row.run->ranks;
      row.precision = row.run->precision;
      return row;
    }
    if (!asked.batch_size.empty())
      row.batch_size = parse_number<std::int64_t>(asked.batch_size).value();
    if (!asked.ranks.empty()) row.ranks = parse_number<std::int64_t>(asked.ranks).value();
    if (!asked.precision.empty()) row.precision = asked.precision;
    row.failure = failure.empty() ? fmt::format("ended with code {}", end.code) : failure;
    console_.important(fmt::format("millrace: error: {}: {}", describe(asked), row.failure));
    if (code == 0) code = end.code;
    return row;
  }

  /// A line of a run. The load that it finds is in part that of the run before.
  void hear(const std::string& line, std::string& failure) {
    constexpr std::string_view kError = "millrace: error: ";
    if (line.starts_with(kError)) {
      failure = line.substr(kError.size());
      return;
    }
    if (!line.starts_with(kLoadNotice) && heard_.insert(line).second) console_.line(line);
  }

  const Invocation& invocation_;
  training::Console console_;
  std::vector<Asked> runs_;
  std::set<std::string> heard_;
};

}  // namespace

bool wants_several_runs(const Patch& options) {
  for (const char* name : kLists)
    if (is_list(options, name)) return true;
  return false;
}

int bench_several(const Invocation& invocation) {
  require_for_several(invocation);
  const BenchFormat format = bench_format(invocation.options);
  for (const Asked& asked : asked_runs(invocation.options)) (void)words_of(invocation, asked);
  warn_of_load();
  report::BenchTable table{.machine = describe_machine(), .rows = {}};
  int code = 0;
  table.rows = Runner(invocation).rows(code);
  if (!table.rows.front().run) return code;
  print_table(table, format);
  return code;
}

}  // namespace millrace::cli
