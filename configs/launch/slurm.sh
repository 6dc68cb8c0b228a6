#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A training under Slurm that outlives pre-emptions and time limits:
#
#   sbatch --nodes 4 --ntasks-per-node 2 slurm.sh RUN_DIR train OPTIONS..
#
# Two minutes before the end of its time the training saves, ends with code 75, and the job is put back
# into the queue; there it goes on from the checkpoint. MILLRACE names the program (millrace).
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

if (($# < 2)) || [[ $2 != train ]]; then
  echo "Usage: sbatch [OPTIONS OF SBATCH] slurm.sh RUN_DIR train OPTIONS.." >&2
  exit 2
fi
# Slurm copies a job's script elsewhere, so its neighbour is found by the job's own command.
here=$(dirname "$(scontrol show job "${SLURM_JOB_ID:?this is a script for sbatch}" |
  sed -n 's/^ *Command=\(.*\/slurm\.sh\).*/\1/p')")

run=$1
shift
"$here/supervise.sh" "$run" srun "${MILLRACE:-millrace}" "$@" &
supervisor=$!
trap 'kill -s USR1 "$supervisor" 2>/dev/null' USR1 TERM
# Signals interrupt the waiting, not the training.
while :; do
  wait "$supervisor"
  code=$?
  kill -0 "$supervisor" 2>/dev/null || break
done
wait "$supervisor" 2>/dev/null # where a signal came just before its end
last=$?
((last == 127)) || code=$last

if ((code == 75)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
