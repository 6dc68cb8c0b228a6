#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts one rank per slot of a host file, by Open MPI's mpirun over SSH:
#
#   mpirun.sh HOSTFILE train --config ipu-resnet50-8devices --data-dir /data/imagenet
#
# A host file has one line per machine, such as "node1 slots=4". millrace and the data have the same
# paths everywhere. MILLRACE names the program (default: millrace), MPIRUN_OPTIONS is handed on.
set -euo pipefail
if (($# < 2)) || [[ ! -r $1 ]]; then
  echo "Usage: mpirun.sh HOSTFILE COMMAND OPTIONS..; the host file must be readable" >&2
  exit 2
fi
hosts=$1
shift
# Ranks pin themselves to cores. Variables that options come from are handed on, and NCCL's settings,
# which have to be equal on all ranks; NCCL_HOSTID is the name of one machine.
forward=()
mapfile -t settings < <(compgen -e NCCL_)
for name in DATA_DIR MILLRACE_RUN_DIR MILLRACE_MAX_ISA MILLRACE_MESSAGES "${settings[@]}"; do
  [[ $name != NCCL_HOSTID ]] || continue
  [[ -z ${!name-} ]] || forward+=(-x "$name")
done
# shellcheck disable=SC2086 # several words
exec mpirun --hostfile "$hosts" --bind-to none "${forward[@]}" ${MPIRUN_OPTIONS-} \
  "${MILLRACE:-millrace}" "$@"
