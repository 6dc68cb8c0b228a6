// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/imported_tensors.hpp"
#include "cli/launch.hpp"
#include "cli/prepare.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "device/environment.hpp"
#include "io/checkpoint.hpp"
#include "io/onnx/onnx_file.hpp"
#include "models/initialise.hpp"
#include "models/registry.hpp"
#include "train/network_facts.hpp"
#include "train/progress.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

void print_json(const train::ValidationResult& result) {
  const Json json = Json::object({{"iteration", result.iteration},
                                  {"top1", result.top1()},
                                  {"top5", result.top5()},
                                  {"loss", result.loss},
                                  {"images", result.images}});
  fmt::print("{}\n", json.dump());
}

/// A checkpoint of initial weights in a directory that is removed with the object.
class InitialCheckpoint {
 public:
  explicit InitialCheckpoint(const train::TrainConfig& config)
      : directory_(std::filesystem::temp_directory_path() /
                   fmt::format("millrace-initial-{}", ::getpid())) {
    std::filesystem::create_directory(directory_);
    const models::Graph graph = models::build_model(config.model);
    std::vector<io::ImportedParameter> values;
    std::optional<io::OnnxFile> file;
    if (io::is_onnx(config.init_path)) file.emplace(config.init_path);
    for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
      const models::Parameter& parameter = graph.parameters[i];
      if (file) {
        values.push_back({parameter.name, file->values({static_cast<std::int32_t>(i)})});
        continue;
      }
      std::vector<float> start(static_cast<std::size_t>(parameter.elements()));
      models::initialise(parameter, config.seed, start);
      values.push_back({.name = parameter.name, .values = std::move(start)});
    }
    const ImportedTensors tensors(graph, std::move(values), config.optimiser.kind);
    io::CheckpointHeader header;
    header.model = graph.name;
    header.config_toml = config.resolved_toml;
    header.network = to_json(train::facts_of(config));
    header.environment = "initial weights";
    path_ = io::write_checkpoint(directory_, header, tensors.tensors());
  }
  ~InitialCheckpoint() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  InitialCheckpoint(const InitialCheckpoint&) = delete;
  InitialCheckpoint& operator=(const InitialCheckpoint&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path directory_;
  std::filesystem::path path_;
};

}  // namespace

int command_validate(const Invocation& invocation) {
  const comm::World world;
  if (world.size() > 1)
    return run_on_all_ranks(world, [&]() -> int {
      require_asked_alike(world, invocation);  // another rank may wait for a training
      world.fail_together();
      fail(ErrorKind::Usage, "millrace validate must run as one process, but {} were started",
           world.size());
    });
  const PreparedRun run = prepare_validation(invocation);
  const bool json = invocation.options.flag("json");
  print_notices(invocation.options, notices_of(run));
  std::optional<InitialCheckpoint> initial;
  if (!invocation.options.text("restore-path")) initial.emplace(run.config);
  const std::filesystem::path path =
      initial ? initial->path() : std::filesystem::path(*invocation.options.text("restore-path"));
  const auto report = [&](const io::CheckpointHeader& header,
                          const train::ValidationResult& result) {
    if (json) {
      print_json(result);
    } else {
      fmt::print("{}\n", train::format_line(result, header.epoch));
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      fail(ErrorKind::Io, "cannot write to standard output");
  };
  pin_rank(world, run.config);
  const device::Environment environment(run.config.threads,
                                        train::gpu_of(run.config, world.rank()));
  const std::int64_t times = invocation.options.value<std::int64_t>("repeat");
  for (std::int64_t i = 0; i < times; ++i)
    train::validate(run.config, world, run.data.validation, path, report);
  return 0;
}

}  // namespace millrace::cli
