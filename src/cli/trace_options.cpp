// SPDX-License-Identifier: Apache-2.0
#include "cli/trace_options.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

constexpr std::string_view kTraceInRun = "trace.json";

}  // namespace

void resolve_trace(const Options& options, train::TrainConfig& config) {
  std::optional<std::string> file = options.text("trace");
  // A name without a directory is placed in the run directory, which is not known yet.
  const std::string profile = options.text("gc-profile").value_or("NO_PROFILE");
  if (!file && profile != "NO_PROFILE") file = std::string(kTraceInRun);
  const std::optional<std::string> steps = options.text("profile-steps");
  if (!file) {
    if (steps)
      fail(ErrorKind::Usage,
           "--profile-steps has no effect here: it needs --trace FILE or --gc-profile");
    return;
  }
  config.trace = *file;
  // The first ten updates of this process, which may continue a run.
  config.trace_first = 0;
  config.trace_last = 10;
  if (!steps) return;
  const std::vector<std::string> pieces = split_list(*steps);
  const auto number = [](const std::string& text) {
    return parse_number<std::int64_t>(text).value_or(0);
  };
  const bool two = pieces.size() == 2;
  config.trace_first = two ? number(pieces[0]) : 0;
  config.trace_last = two ? number(pieces[1]) : 0;
  if (config.trace_first > config.iterations)
    fail(ErrorKind::Usage,
         "--profile-steps: the run has {} weight updates, but the trace would start at {}",
         config.iterations, config.trace_first);
  if (config.trace_first < 1 || config.trace_last < config.trace_first)
    fail(ErrorKind::Usage,
         "--profile-steps: '{}' is not the first and last weight update of a trace; example: 5,8",
         *steps);
}

}  // namespace millrace::cli
