// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/exports.hpp"
#include "cli/prepare.hpp"
#include "core/error.hpp"
#include "io/checkpoint.hpp"

namespace millrace::cli {
namespace {

/// The format to write. Errors: Usage, if --like chooses names for one that has millrace's own.
ExportFormat wanted_format(const Patch& options) {
  const std::string name = options.value<std::string>("to");
  const ExportFormat format = export_format(name);
  const Setting* const like = options.find("like");
  if (like != nullptr && format != ExportFormat::Safetensors)
    fail(ErrorKind::Usage,
         "{} {} has no effect with --to {}, which writes millrace's own names: leave it out, or "
         "give --to safetensors",
         like->where, to_string(like->value), name);
  return format;
}

}  // namespace

int command_export(const Invocation& invocation) {
  const Patch& options = invocation.options;
  const ExportFormat format = wanted_format(options);
  const std::filesystem::path path = options.arguments.at(0);
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = io::open_newest(path, complaints);
  print_lines(stderr, complaints);
  const Exported done =
      export_checkpoint(checkpoint, format, options, path, options.text("output").value_or(""));
  fmt::print("{}\n", done.line);
  if (!done.note.empty()) print_lines(stderr, {done.note});
  return 0;
}

}  // namespace millrace::cli
