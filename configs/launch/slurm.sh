#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a training under Slurm that survives lost nodes, pre-emption and time limits:
#
#   sbatch --nodes 2-4 --ntasks-per-node 2 slurm.sh RUN_DIR train OPTIONS..
#
# Slurm gives a job no more nodes than the smallest number of them has tasks: for one rank a node, leave
# --ntasks-per-node out.
#
# Two minutes before its time limit the training saves a checkpoint and ends with code 75. The job is
# then requeued and continues from the checkpoint, on the nodes that it gets. So is a job whose ranks
# died, if it had saved something since its start. MILLRACE names the program (default: millrace).
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
set -m # the training gets its own process group, so that a signal to all reaches it only once

if (($# < 2)) || [[ $2 != train ]]; then
  echo "Usage: sbatch [OPTIONS OF SBATCH] slurm.sh RUN_DIR train OPTIONS.." >&2
  exit 2
fi
: "${SLURM_JOB_ID:?run this script with sbatch}"
run=$1
shift

stopped=
child=
# Asked before the training has begun, or can catch signals: there is nothing to save.
trap 'stopped=1; [[ -z $child ]] || kill -s USR1 "$child" 2>/dev/null' USR1 TERM

# Ranks on a node that Slurm has lost may still run, and end after --hang-timeout.
in_use() { [[ -z $stopped && -e $run/.lock ]] && ! flock --shared --nonblock "$run/.lock" true; }
for ((waited = 0; waited < 900 && ${SLURM_RESTART_COUNT:-0} > 0; waited += 5)); do
  in_use || break
  ((waited > 0)) || echo "slurm.sh: waiting for ranks of this job that still use $run" >&2
  sleep 5
done

# A killed writer leaves a hidden directory, which is not a checkpoint.
checkpoints() {
  find "$run/checkpoints" -mindepth 2 -maxdepth 2 -not -path '*/.ckpt-*' -name manifest.json 2>/dev/null | sort
}
saved=$(checkpoints)
words=("$@" --run-dir "$run")
if [[ -n $saved ]]; then
  words=(restore --restore-path "$run")
  [[ " $* " != *" --elastic "* ]] || words+=(--elastic) # with its snapshots in memory
fi

# Slurm's own default joins no tasks.
if [[ -z ${SLURM_MPI_TYPE-} && $(scontrol show config) =~ MpiDefault\ *=\ none &&
  $(srun --mpi=list 2>&1) == *pmix* ]]; then
  export SLURM_MPI_TYPE=pmix
fi

# Without --wait, ranks wait for one that was killed until --hang-timeout.
srun --wait=30 "${MILLRACE:-millrace}" "${words[@]}" &
child=$!
[[ -z $stopped ]] || kill -s USR1 "$child" 2>/dev/null
# Signals interrupt `wait`, not the training.
while :; do
  wait "$child"
  code=$?
  kill -0 "$child" 2>/dev/null || break
done
wait "$child" 2>/dev/null # a signal may have arrived just before the end
last=$?
((last == 127)) || code=$last
[[ -z $stopped ]] || ((code <= 128)) || code=75

# Slurm also stops a job that was cancelled, and one that it puts back itself, as it lost a node.
requeue() {
  local job
  job=$(scontrol show job "$SLURM_JOB_ID")
  if [[ $job == *Restarts=* && $job != *Restarts="${SLURM_RESTART_COUNT:-0} "* ]]; then
    echo "slurm.sh: Slurm has requeued the job itself" >&2
  elif [[ $job == *JobState=COMPLETING* && $job != *Reason=TimeLimit* ]]; then
    echo "slurm.sh: the job was cancelled: not requeued" >&2
  else
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
case $code in
  75) requeue ;;
  0 | 2 | 3 | 4 | 6 | 126 | 127 | 130) ;; # a restart would change nothing
  *)
    if [[ $(checkpoints) != "$saved" ]]; then
      echo "slurm.sh: the training ended with code $code: requeued, as it has saved a checkpoint since" >&2
      requeue
    else
      echo "slurm.sh: the training ended with code $code before it saved a checkpoint: not requeued" >&2
    fi
    ;;
esac
exit "$code"
