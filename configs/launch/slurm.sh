#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a training under Slurm that survives pre-emption and time limits:
#
#   sbatch --nodes 4 --ntasks-per-node 2 slurm.sh RUN_DIR train OPTIONS..
#
# Two minutes before its time limit the training saves a checkpoint and ends with code 75. The job is
# then requeued and continues from the checkpoint. MILLRACE names the program (default: millrace).
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

if (($# < 2)) || [[ $2 != train ]]; then
  echo "Usage: sbatch [OPTIONS OF SBATCH] slurm.sh RUN_DIR train OPTIONS.." >&2
  exit 2
fi
# Slurm runs a copy of this script, so supervise.sh is found through the command of the job.
here=$(dirname "$(scontrol show job "${SLURM_JOB_ID:?run this script with sbatch}" |
  sed -n 's/^ *Command=\(.*\/slurm\.sh\).*/\1/p')")

run=$1
shift
"$here/supervise.sh" "$run" srun "${MILLRACE:-millrace}" "$@" &
supervisor=$!
trap 'kill -s USR1 "$supervisor" 2>/dev/null' USR1 TERM
# Signals interrupt `wait`, not the training.
while :; do
  wait "$supervisor"
  code=$?
  kill -0 "$supervisor" 2>/dev/null || break
done
wait "$supervisor" 2>/dev/null # a signal may have arrived just before the end
last=$?
((last == 127)) || code=$last

if ((code == 75)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
