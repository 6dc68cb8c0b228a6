// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "cli/commands.hpp"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return millrace::cli::run(words, millrace::cli::process_environment());
}
