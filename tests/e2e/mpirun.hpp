// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "millrace.hpp"

namespace millrace::test {

/// Words for env(1) that start mpirun.
inline const Words kMpirun = {"OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                              std::string(MILLRACE_MPIEXEC),
                              "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"};

inline ProcessResult mpirun(int ranks, const Words& line, const Words& options = {}) {
  return run_process("/usr/bin/env", kMpirun + options + Words{"-np", std::to_string(ranks)} +
                                         Words{std::string(MILLRACE_BINARY)} + line);
}

}  // namespace millrace::test
