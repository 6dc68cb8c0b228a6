// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>
#include <vector>

#include "cli/commands.hpp"

int main(int argc, char** argv) {
  // A file beyond the size limit then fails like one on a full disk, with a message.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return millrace::cli::run(words, millrace::cli::process_environment());
}
