// SPDX-License-Identifier: Apache-2.0
#include "cli/open_run.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "cli/cluster.hpp"
#include "cli/command_line.hpp"
#include "cli/launch.hpp"
#include "cli/smoke.hpp"
#include "core/clock.hpp"
#include "core/text.hpp"
#include "train/agreement.hpp"
#include "train/progress.hpp"

namespace millrace::cli {

void drop_length(Patch& options) {
  for (const char* name :
       {"epochs", "max-iterations", "warmup", "warmup-epochs", "warmup-iterations", "lr-horizon",
        "lr-horizon-epochs", "no-validation", "epochs-between-evals", "iterations-between-evals",
        "valid-batch-size", "max-eval-steps"})
    options.erase(name);
}

void print_lines(std::FILE* out, const std::vector<std::string>& lines) {
  for (const std::string& line : lines)
    fmt::print(out, "{}\n", printable(respelled(line, Patch())));
}

void print_notices(const Invocation& invocation, const std::vector<std::string>& lines) {
  print_lines(stderr, respelled(lines, invocation.options, invocation.spellings));
  if (verbosity_of(invocation.options) == run::Verbosity::Verbose)
    print_lines(stderr, environment_lines());
}

std::vector<std::string> notices_of(const OpenedRun& run, const Invocation& invocation) {
  std::vector<std::string> lines = run.notices;
  lines.insert(lines.end(), run.layout.notices.begin(), run.layout.notices.end());
  return respelled(std::move(lines), run.options, invocation.spellings);
}

io::ProgressCallback progress_line(std::string what, bool quiet) {
  if (quiet || !training::terminal_of(stderr).rewrites_lines) return {};
  return [what = std::move(what), timer = Timer()](const io::Progress& progress) {
    const double share = progress.total == 0 ? 1.0
                                             : static_cast<double>(progress.done) /
                                                   static_cast<double>(progress.total);
    const bool ends = progress.done >= progress.total;
    const std::string left =
        ends || share == 0.0
            ? ""
            : fmt::format("  ETA {}", human_seconds(timer.seconds() * (1.0 / share - 1.0)));
    fmt::print(stderr, "\r{}: {:.0f} %{}\033[K{}", what, 100.0 * share, left,
               ends ? "\r\033[K" : "");
    std::fflush(stderr);
  };
}

training::DataReports reports_on(const Patch& options) {
  const auto print = [](const std::string& line) { fmt::print(stderr, "{}\n", printable(line)); };
  return {
      .tell = print, .bad_image = print, .progress = [quiet = is_quiet(options)](std::string what) {
        return progress_line(std::move(what), quiet);
      }};
}

training::RunRequest request_of(const Invocation& invocation) {
  return {.command = invocation.command,
          .options = invocation.options,
          .notices = invocation.notices,
          .for_images = invocation.for_images,
          .reports = reports_on(invocation.options)};
}

training::RunRequest request_of_new(const Invocation& invocation, const comm::World& world) {
  training::RunRequest request = request_of(invocation);
  training::FailTogether(world).run([&] {
    const auto cluster = cluster_of(invocation.options, invocation.environment);
    request.options = for_all_workers(invocation.options, cluster);
    if (invocation.for_images)
      request.for_images = [of = invocation.for_images, cluster](std::int64_t images) {
        return for_all_workers(of(images), cluster);
      };
    if (request.options.flag("smoke"))
      request.reduce = smoke_options;
    else if (request.options.flag("distributed") && !invocation.environment("TF_CONFIG"))
      request.notices.emplace_back(
          "--distributed without TF_CONFIG: all ranks run on this machine");
  });
  return request;
}

}  // namespace millrace::cli
