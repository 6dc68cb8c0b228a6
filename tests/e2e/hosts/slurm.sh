#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slurm.sh MILLRACE: runs configs/launch/slurm.sh under Slurm, whose controller is on host 1 (hosts.sh), and
# whose nodes are hosts 2 to 4, as a user would. Runs whose node loses its power, whose first node's cable
# is cut, that are asked to stop, cancelled, or lose a rank, must continue on the nodes that are left and end
# with the bits of an undisturbed run; jobs that would fail again must end. Exits with 77 (skipped) where
# hosts.sh does, and without Slurm and MUNGE (on Debian: slurm-wlm and munge).
set -euo pipefail
millrace=$(realpath "$1")
script=$(realpath "$(dirname "$0")/../../../configs/launch/slurm.sh")
# shellcheck source=tests/e2e/hosts/hosts.sh
source "$(dirname "$0")/hosts.sh"
for program in slurmctld slurmd sbatch munged; do
  command -v "$program" >/dev/null || skip "needs $program"
done
make_hosts 4 10.79.0

# Nodes may have the time of one core, whatever Slurm believes. They share a disk, so each has a folder of
# its own in place of /tmp. A job that is requeued waits for as long as credentials are valid.
mkdir "$work"/{munge,state,spool,log}
chmod 755 "$work"
head -c 64 /dev/urandom >"$work/munge/key"
chmod 600 "$work/munge/key"
cat >"$work/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$net-1(10.79.0.1)
SlurmUser=root
AuthInfo=socket=$work/munge/socket,cred_expire=5
ProctrackType=proctrack/linuxproc
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
MessageTimeout=5
KillWait=5
SchedulerParameters=sched_interval=2
TmpFS=$work/tmp/%n
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
SlurmctldPidFile=$work/spool/controller.pid
SlurmdPidFile=$work/spool/%n.pid
SlurmctldLogFile=$work/log/controller
SlurmdLogFile=$work/log/%n
NodeName=$net-[2-4] NodeAddr=10.79.0.[2-4] CPUs=4
PartitionName=all Nodes=ALL Default=YES
END
echo 'CgroupPlugin=cgroup/v1' >"$work/cgroup.conf" # is not asked for anything, but must be named
export SLURM_CONF=$work/slurm.conf MILLRACE=$millrace OMPI_MCA_mpi_yield_when_idle=1
on 1 munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --num-threads=2 \
  --origin=10.79.0.1 --pid-file="$work/munge/pid" --log-file="$work/munge/log" --seed-file="$work/munge/seed"
on 1 slurmctld -i
for host in 2 3 4; do
  mkdir "$work/tmp/$net-$host" "$work/spool/$net-$host"
  on "$host" slurmd
done
# shellcheck disable=SC2034 # wait_for looks at it
job=$$

recipe=(train --generated-data --dataset cifar-10 --model-size 8 --batch-size 4 --threads-per-device 1
  --no-validation --gradients-to-accumulate 4 --shards 2 --pipeline-splits b2/0/relu --replicas 2
  --iterations 500 --log-freq 1 --checkpoint-every 50)
more=() # options of sbatch
submit() {  # NODES RUN_DIR OPTIONS..
  run=$2
  rm -f "$work/out"
  id=$(on 1 sbatch --parsable --output "$work/out" --nodes "$1" "${more[@]}" "$script" "$run" \
    "${recipe[@]}" "${@:3}")
}
of_job() { on 1 scontrol -o show job "$id" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
# STATE, the program's code and how often it was requeued.
ends_as() {
  for _ in $(seq 400); do
    [[ ! $(of_job JobState) =~ ^(COMPLETED|FAILED|CANCELLED|NODE_FAIL|TIMEOUT)$ ]] || break
    sleep 0.5
  done
  local got
  got="$(of_job JobState) $(of_job ExitCode | cut -d: -f1) $(of_job Restarts)"
  check "the job ends so" "$1" "$got"
  [[ $got == "$1" ]] || grep -v '^step:' "$work/out"
}
ranks() { check "over so many ranks" "$1" "$(sed -n 's/^ Ranks: //p' "$work/out" | xargs)"; }
update() { wait_for "^step: .*iteration: *$1," "$work/out"; }
check_bits() {
  check "with the bits of an undisturbed run" "$expected" "$("$millrace" inspect "$run" --digest)"
}
left() {
  for pid in $(for host in 2 3 4; do ip netns pids "$net-$host"; done); do
    [[ $(cat "/proc/$pid/comm" 2>/dev/null) != millrace ]] || echo "$pid"
  done
}

"$millrace" "${recipe[@]}" --ranks 1 --run-dir "$work/alone" >/dev/null
expected=$("$millrace" inspect "$work/alone" --digest)

echo "== as many nodes as there are"
OMPI_MCA_btl_tcp_if_include=eth9 submit 2-3 "$work/whole"
ends_as "COMPLETED 0 0"
ranks 3
check_bits

echo "== a node loses its power"
submit 2-3 "$work/power" --elastic
update '1..'
unplug 4
ip netns pids "$net-4" | xargs kill -9
ends_as "COMPLETED 0 1"
ranks "3 2"
check_bits
plug 4
on 4 slurmd

echo "== the first node's cable is cut, and its rank waits for others with the run directory in use"
submit 2-3 "$work/cable" --hang-timeout 45
update '1..'
unplug 2
ends_as "COMPLETED 0 1"
check "it waited for the rank" 1 "$(grep -c 'slurm.sh: waiting for ranks of this job' "$work/out")"
check_bits
plug 2

echo "== two ranks a node: asked to stop, cancelled, continued, and a rank is killed"
more=(--ntasks-per-node 2)
submit 2 "$work/a run [1]*" --elastic --partner-every 5
update '1..'
on 1 scancel --signal=USR1 --batch "$id"
wait_for 'Restoring training from' "$work/out"
update '2..'
check "requeued when asked to stop" 1 "$(of_job Restarts)"
on 1 scancel "$id"
ends_as "CANCELLED 75 1"
check "nothing is left running" "" "$(left)"
submit 2 "$run" --elastic --partner-every 5
update '3..'
kill -9 "$(left | tail -1)"
ends_as "COMPLETED 0 1"
ranks "4 4"
check_bits

echo "== what would fail again"
more=()
submit 2 "$work/wrong" --no-such-option
ends_as "FAILED 2 0"
SLURM_MPI_TYPE=none submit 2 "$work/apart"
ends_as "FAILED 2 0"
check "tasks that MPI does not join are refused" 1 "$(grep -c 'srun started 2 tasks, but did' "$work/out")"
check "and write nothing" "" "$(ls "$work/apart" 2>/dev/null)"
exit $((failures > 0))
