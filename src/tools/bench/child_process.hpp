// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace millrace::cli {

/// How a child process ended.
struct ChildEnd {
  int code = 0;        ///< its exit code, or kSignalled + the signal that ended it
  std::string output;  ///< what it wrote to standard output
};

/// Runs this program with these arguments and waits for it. Every line that it writes to standard
/// error goes to `on_message`, without its end. It does not outlive this process. Errors: Io.
[[nodiscard]] ChildEnd run_this_program(const std::vector<std::string>& words,
                                        const std::function<void(const std::string&)>& on_message);

}  // namespace millrace::cli
