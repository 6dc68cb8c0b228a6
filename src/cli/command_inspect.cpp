// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/open_run.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "io/checkpoint.hpp"

namespace millrace::cli {
namespace {

/// Files and tensors that cannot be read; if all can be, values that no network can compute with.
std::vector<std::string> all_complaints(const std::filesystem::path& checkpoint) {
  std::vector<std::string> complaints = io::verify(checkpoint);
  if (!complaints.empty()) return complaints;
  try {
    return io::bad_values(io::CheckpointReader(checkpoint));
  } catch (const Error& error) {  // it was removed after it was verified
    if (error.kind() != ErrorKind::Checkpoint) throw;
    return {error.what()};
  }
}

/// Checks every checkpoint below `path`; lists all problems before it fails.
void verify_all(const std::filesystem::path& path) {
  const std::vector<std::filesystem::path> checkpoints = io::list_checkpoints(path);
  if (checkpoints.empty())
    fail(ErrorKind::Checkpoint,
         "{}: contains no checkpoint: give a checkpoint, or the directory of a run with one",
         path.string());
  std::size_t damaged = 0;
  for (const std::filesystem::path& checkpoint : checkpoints) {
    const std::vector<std::string> complaints = all_complaints(checkpoint);
    // The training that owns it may have removed it meanwhile; that is not damage.
    if (!complaints.empty() && !std::filesystem::exists(checkpoint)) continue;
    print_lines(stderr, complaints);
    if (!complaints.empty()) ++damaged;
  }
  if (damaged > 0)
    fail(ErrorKind::Checkpoint, "{}: {} of {} checkpoints damaged: {}", path.string(), damaged,
         checkpoints.size(),
         damaged < checkpoints.size() ? "restore uses the newest valid one"
                                      : "none can be restored");
}

}  // namespace

int command_inspect(const Invocation& invocation) {
  const Patch& options = invocation.options;
  const std::filesystem::path path = invocation.arguments.at(0);
  if (options.flag("verify")) verify_all(path);

  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = io::open_newest(path, complaints);
  print_lines(stderr, complaints);

  if (options.flag("json")) {
    Json json = Json::parse(io::describe_json(checkpoint));
    if (options.flag("verify")) json.set("verified", true);
    if (options.flag("digest")) json.set("digest", io::digest(checkpoint));
    fmt::print("{}\n", json.dump(2));
  } else if (options.flag("digest")) {
    fmt::print("{}\n", io::digest(checkpoint));
  } else {
    fmt::print("{}\n", io::describe(checkpoint));
    if (options.flag("verify")) fmt::print("verified: every tensor reads back\n");
  }
  return 0;
}

}  // namespace millrace::cli
