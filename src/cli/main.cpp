// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/this_machine.hpp"

namespace {

/// No file of a run may take the place of a standard stream that is closed. Output to a closed
/// stream still fails, messages to one are dropped.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0)
      static_cast<void>(::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY));
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  // A write beyond the file size limit then fails with an error, like one to a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
#ifdef __GLIBC__
  // Large blocks come from the system and go back to it at once. Otherwise each thread keeps some
  // freed memory, and the process grows beyond the prediction.
  constexpr int kLarge = 1 << 20;
  (void)mallopt(M_MMAP_THRESHOLD, kLarge);
#endif
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (millrace::cli::may_use_threads(words)) millrace::cli::wait_briefly(argv);
  return millrace::cli::run(words, millrace::cli::process_environment());
}
