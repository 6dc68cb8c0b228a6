#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mpirun.sh COMMAND..: runs a launcher of MPI, as root as well, and not in the folder others race for.
OMPI_MCA_orte_tmpdir_base=$(mktemp -d) || exit
trap 'rm -rf "$OMPI_MCA_orte_tmpdir_base"' EXIT
export OMPI_MCA_orte_tmpdir_base OMPI_MCA_rmaps_base_oversubscribe=1
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$@"
