// SPDX-License-Identifier: Apache-2.0
//
// Runs the program under test and captures its output, for tests of whole commands.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/file_bytes.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/test.hpp"

namespace millrace::test {

struct ProcessResult {
  int code = -1;       ///< exit code; 128 + signal when killed
  std::string output;  ///< captured output
};

/// What to capture: standard output and error together, or only output.
enum class Capture { Both, Output };

inline ProcessResult run_process(const std::string& program, const std::vector<std::string>& words,
                                 Capture capture = Capture::Both) {
  static const TemporaryDirectory folder;  // not the user's, for which others race as well
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};  // other processes may start meanwhile
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("DATA_DIR");
    setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
    setenv("OMPI_MCA_orte_tmpdir_base", folder.path().c_str(), 1);
    dup2(ends[1], STDOUT_FILENO);
    if (capture == Capture::Both) dup2(ends[1], STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  close(ends[1]);
  ProcessResult result;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    result.output.append(buffer, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace millrace::test
