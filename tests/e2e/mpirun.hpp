// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "millrace.hpp"

namespace millrace::test {

/// Words for env(1) that start mpirun.
inline const Words kMpirun = {"OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                              std::string(MILLRACE_MPIEXEC),
                              "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"};

}  // namespace millrace::test
