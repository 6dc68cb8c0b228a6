// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/exports.hpp"
#include "cli/prepare.hpp"
#include "io/checkpoint.hpp"

namespace millrace::cli {

int command_export(const Invocation& invocation) {
  const Options& options = invocation.options;
  const std::filesystem::path path = options.arguments.at(0);
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = io::open_newest(path, complaints);
  print_lines(stderr, complaints);
  const Exported done =
      export_checkpoint(checkpoint, export_format(options.value<std::string>("to")), options, path,
                        options.text("output").value_or(""));
  fmt::print("{}\n", done.line);
  print_lines(stderr, done.notes);
  return 0;
}

}  // namespace millrace::cli
