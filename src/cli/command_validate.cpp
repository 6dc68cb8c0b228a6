// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/open_run.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "train/agreement.hpp"
#include "train/kernel_rules.hpp"
#include "train/progress.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

using ByClass = std::span<const pipeline::ClassCounts>;

void print_json(const training::ValidationResult& result) {
  const Json json = Json::object({{"iteration", result.iteration},
                                  {"top1", result.top1()},
                                  {"top5", result.top5()},
                                  {"loss", result.loss},
                                  {"images", result.images},
                                  {"set_images", result.set_images}});
  fmt::print("{}\n", json.dump());
}

/// Text as a cell of a CSV file.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

/// The file of --per-class: a row for each class of each checkpoint, written again after each.
class ClassTable {
 public:
  /// `names` may be fewer than the classes.
  ClassTable(std::optional<std::string> file, std::vector<std::string> names)
      : file_(std::move(file)), names_(std::move(names)) {}

  /// Finds out whether the file can be written before anything is computed.
  void begin() const { write(); }
  void add(std::int64_t iteration, ByClass by_class) {
    for (std::size_t c = 0; c < by_class.size(); ++c)
      text_ +=
          fmt::format("{},{},{},{},{},{}\n", iteration, c, c < names_.size() ? cell(names_[c]) : "",
                      by_class[c].images, by_class[c].top1, by_class[c].top5);
    write();
  }

 private:
  void write() const {
    if (file_) io::write_file_atomically(*file_, text_);
  }

  std::optional<std::string> file_;
  std::vector<std::string> names_;
  std::string text_ = "iteration,class,name,images,top1,top5\n";
};

int validate(const Invocation& invocation, const comm::World& world, StartupWatch& watch) {
  const Patch& options = invocation.options;
  const OpenedRun run = training::open_validated_run(request_of(invocation), world);
  watch.end();  // the validation has its own watchdog
  if (must_launch(run.config, world)) return launch_ranks(run.config, invocation);
  ClassTable table(options.text("per-class"), run.config.data.class_names);
  training::FailTogether(world).lead([&] {
    table.begin();
    print_notices(invocation, notices_of(run, invocation));
  });
  const bool json = options.flag("json");
  const auto report = [&](const io::CheckpointHeader& header, training::ValidationResult result,
                          ByClass by_class) {
    if (world.rank() != 0) return;
    result.set_images = run.data.facts.validation_size;
    if (json) {
      print_json(result);
    } else {
      fmt::print("{}\n", training::format_line(result, header.epoch));
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      fail(ErrorKind::Io, "cannot write to standard output");
    table.add(result.iteration, by_class);
  };
  pin_rank(world, run.config);
  const device::Environment environment(run.config.threads,
                                        training::gpu_of(run.config, world.rank()));
  if (world.rank() == 0) print_lines(stderr, training::describe_kernel_rules(run.config));
  const std::filesystem::path path = options.text("restore-path").value_or("");
  const std::int64_t times = options.value<std::int64_t>("repeat");
  for (std::int64_t i = 0; i < times; ++i)
    training::validate(run.config, world, run.data.validation, path, report,
                       training::built_guests().files);
  return 0;
}

}  // namespace

int command_validate(const Invocation& invocation) {
  StartupWatch watch(invocation.options);
  const comm::World world;
  watch.follow(world);
  return run_on_all_ranks(world, invocation, [&] { return validate(invocation, world, watch); });
}

}  // namespace millrace::cli
