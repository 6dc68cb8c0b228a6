// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>

#include <csignal>
#include <string>
#include <vector>

#include "cli/commands.hpp"

int main(int argc, char** argv) {
  // A file beyond the size limit then fails like one on a full disk, with a message.
  std::signal(SIGXFSZ, SIG_IGN);
#ifdef __GLIBC__
  // Large blocks come from the system and go back to it at once. Otherwise each thread keeps some
  // of what it has freed, and the process grows beyond what is predicted.
  constexpr int kLarge = 1 << 20;
  (void)mallopt(M_MMAP_THRESHOLD, kLarge);
#endif
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return millrace::cli::run(words, millrace::cli::process_environment());
}
