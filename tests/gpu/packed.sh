#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the program of this name in bin/ of a packed folder (run.sh --pack), with the libraries and
# the Open MPI beside it. Only that program and what it starts get this environment: Python has
# libraries of its own.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OPAL_PREFIX=$here MILLRACE_MPIEXEC=$here/bin/mpirun
export OMPI_MCA_mca_base_param_files=$here/bin/openmpi-mca-params.conf
exec "$here/bin/${0##*/}" "$@"
