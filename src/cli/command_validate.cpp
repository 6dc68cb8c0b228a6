// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/commands.hpp"
#include "cli/prepare.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "io/checkpoint.hpp"
#include "train/progress.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

void print_json(const train::ValidationResult& result) {
  const nlohmann::ordered_json json = {{"iteration", result.iteration},
                                       {"top1", result.top1()},
                                       {"top5", result.top5()},
                                       {"loss", result.loss},
                                       {"images", result.images}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

int command_validate(const Invocation& invocation) {
  const comm::World world;
  if (world.size() > 1)
    fail(ErrorKind::Usage, "millrace validate is one process, {} were started", world.size());
  const PreparedRun run = prepare_validation(invocation);
  const bool json = invocation.options.flag("json");
  for (const std::string& notice : run.notices) fmt::print(stderr, "{}\n", notice);
  const std::filesystem::path path = *invocation.options.text("restore-path");
  train::validate(run.config, world, run.data.validation, path,
                  [&](const io::CheckpointHeader& header, const train::ValidationResult& result) {
                    if (json) {
                      print_json(result);
                    } else {
                      fmt::print("{}\n", train::format_line(result, header.epoch));
                    }
                    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
                      fail(ErrorKind::Io, "standard output cannot be written");
                  });
  return 0;
}

}  // namespace millrace::cli
