// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>

#include <csignal>
#include <string>
#include <vector>

#include "cli/commands.hpp"

int main(int argc, char** argv) {
  // A write beyond the file size limit then fails with an error, like one to a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
#ifdef __GLIBC__
  // Large blocks come from the system and go back to it at once. Otherwise each thread keeps some
  // freed memory, and the process grows beyond the prediction.
  constexpr int kLarge = 1 << 20;
  (void)mallopt(M_MMAP_THRESHOLD, kLarge);
#endif
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return millrace::cli::run(words, millrace::cli::process_environment());
}
