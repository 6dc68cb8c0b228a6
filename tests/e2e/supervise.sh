#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# supervise.sh MILLRACE: tests configs/launch/supervise.sh and slurm.sh, with stubs for Slurm's
# programs.
set -euo pipefail
millrace=$(realpath "$1")
launch=$(realpath "$(dirname "$0")/../../configs/launch")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_WAIT_POLICY=passive OMPI_MCA_orte_tmpdir_base=$work

failed() {
  echo "FAILED: $*"
  cat "$work"/*.log 2>/dev/null || true
  exit 1
}
# ends_with CODE COMMAND..
ends_with() {
  local wanted=$1 code=0
  shift
  "$@" >>"$work/output.log" 2>&1 || code=$?
  ((code == wanted)) || failed "'$*' ended with $code, not $wanted"
}
digest() { "$millrace" inspect "$1" --digest; }
# await FILE: waits until it exists, for at most half a minute.
await() {
  for _ in {1..600}; do
    compgen -G "$1" >/dev/null && return
    sleep 0.05
  done
  failed "$1 did not appear"
}

options=(--generated-data --dataset cifar-10 --model-size 8 --batch-size 8 --no-validation
  --checkpoint-every 20 --max-ckpts-to-keep 0 --iterations 300 --seed 5 --threads-per-device 1)

echo "== dies twice, is restored twice, and ends with the digest of an undisturbed run"
ends_with 0 "$millrace" train "${options[@]}" --run-dir straight
"$launch/supervise.sh" disturbed "$millrace" train "${options[@]}" >disturbed.log 2>&1 &
supervisor=$!
for newest in 20 100; do
  await "disturbed/checkpoints/ckpt-$newest"
  kill -KILL "$(head -n 1 disturbed/.lock)"
done
wait "$supervisor" || failed "the supervisor ended with $?"
[[ $(grep -c 'restart 1 of 10 from ckpt-' disturbed.log) == 2 ]] || failed "not two restarts"
[[ $(digest straight) == "$(digest disturbed)" ]] || failed "the digests differ"

echo "== a directory may have any name, and the same command continues its run"
odd='odd [1] x/run*[a]'
ends_with 75 "$launch/supervise.sh" "$odd" "$millrace" train "${options[@]}" --stop-after 2
ends_with 0 "$launch/supervise.sh" "$odd" "$millrace" train "${options[@]}"
[[ $(digest straight) == "$(digest "$odd")" ]] || failed "the digests differ"
ends_with 2 "$launch/supervise.sh" "$odd" "$millrace" train "${options[@]}" --batch-size 16
grep -q 'batch-size 16 would change the mathematics of the run' output.log || failed "nothing says why"

echo "== killed while it commits its first checkpoint: begun anew"
mkdir -p begun/checkpoints/.ckpt-0.tmp.1
touch begun/.lock begun/checkpoints/.ckpt-0.tmp.1/manifest.json
ends_with 0 "$launch/supervise.sh" begun "$millrace" train "${options[@]}"

echo "== permanent errors are not retried, other launchers are refused"
ends_with 2 "$launch/supervise.sh" wrong "$millrace" train --model-size 9
ends_with 2 "$launch/supervise.sh" wrong mpirun -n 2 "$millrace" train "${options[@]}"
grep -q "'mpirun -n': the word after the program" output.log || failed "nothing says why"

echo "== a request to stop is forwarded once, and the run is saved"
for signal in USR1 INT; do
  code=0
  # A shell makes its background processes ignore INT.
  env --default-signal=INT "$launch/supervise.sh" "asked-$signal" "$millrace" train "${options[@]}" --iterations 100000 \
    >"asked-$signal.log" 2>&1 &
  supervisor=$!
  await "asked-$signal/checkpoints/ckpt-20"
  kill -s "$signal" "$supervisor"
  wait "$supervisor" || code=$?
  [[ $code == $([[ $signal == INT ]] && echo 130 || echo 75) ]] || failed "$signal: code $code"
  "$millrace" inspect "asked-$signal" --verify >/dev/null || failed "$signal: not saved"
done

echo "== --elastic: a restore that keeps no snapshots tells that it goes on from one"
two=(--shards 2 --pipeline-splits b2/0 --elastic)
export MILLRACE_MEMORY_DIRECTORY=$work/memory
"$millrace" train "${options[@]}" "${two[@]}" --checkpoint-every 1000 --partner-every 5 \
  --run-dir kept >kept.log 2>&1 &
supervisor=$!
await 'memory/*/*/part-001.json'
kill -STOP "$supervisor"
kill -KILL "$(head -n 1 kept/.lock)"
kill -KILL "$supervisor"
wait "$supervisor" || true
ends_with 0 "$millrace" restore --restore-path kept --elastic --partner-every 0
grep -q 'elastic: going on from the snapshot after update' output.log || failed "nothing tells"
[[ ! -e memory ]] || failed "the directory of the snapshots is left"

echo "== --elastic: a program that is replaced starts no ranks, and says so"
cp "$millrace" own
./own train "${options[@]}" "${two[@]}" --iterations 100000 --run-dir replaced >replaced.log 2>&1 &
supervisor=$!
await "replaced/checkpoints/ckpt-20"
cp "$millrace" new
mv new own
kill -KILL "$(head -n 1 replaced/.lock)"
code=0
wait "$supervisor" || code=$?
[[ $code == 2 && $(grep -c 'elastic: lost\|elastic: the ranks' replaced.log) == 1 ]] || failed "code $code"
grep -qx "millrace: error: $work/own: was replaced or removed while it ran: .*" replaced.log ||
  failed "nothing says why"

echo "== Slurm: the job is requeued after a request to stop"
mkdir bin
cat >bin/srun <<'SCRIPT'
#!/usr/bin/env bash
export SLURM_STEP_NUM_TASKS=${TASKS-1}
while [[ $1 == -* ]]; do shift || exit; done
exec "$@"
SCRIPT
cat >bin/scontrol <<SCRIPT
#!/usr/bin/env bash
case \$1 in
  show) echo "MpiDefault = pmix JobState=\${STATE-RUNNING} Reason=None Requeue=1 Restarts=\${RESTARTS-0} BatchFlag=1" ;;
  *) echo "\$*" >>"$work/scontrol.txt" ;;
esac
SCRIPT
chmod +x bin/*
cp "$launch/slurm.sh" copied-by-slurm
code=0
export PATH="$work/bin:$PATH" SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0 MILLRACE="$millrace"
./copied-by-slurm queued \
  train "${options[@]}" --iterations 100000 >queued.log 2>&1 &
job=$!
await "queued/checkpoints/ckpt-20"
kill -s USR1 "$job"
wait "$job" || code=$?
[[ $code == 75 ]] || failed "the job ended with $code"
grep -qx 'requeue 7' scontrol.txt || failed "it was not requeued"
"$millrace" inspect queued --verify >/dev/null || failed "not saved"

echo "== Slurm: a job whose ranks died goes on if it has saved something, and ends otherwise"
./copied-by-slurm lost train "${options[@]}" --iterations 100000 >lost.log 2>&1 &
job=$!
await "lost/checkpoints/ckpt-20"
kill -KILL "$(head -n 1 lost/.lock)"
code=0
wait "$job" || code=$?
[[ $code == 137 && $(wc -l <scontrol.txt) == 2 ]] || failed "code $code; it was not requeued"
printf '#!/usr/bin/env bash\necho "$*" >>words.txt\nexit 7\n' >dies
chmod +x dies
MILLRACE=./dies ends_with 7 ./copied-by-slurm lost train "${options[@]}"
grep -qx 'restore --restore-path lost' words.txt || failed "it did not go on: $(cat words.txt)"
[[ $(wc -l <scontrol.txt) == 2 ]] || failed "a job that saved nothing was requeued"

echo "== Slurm: a job that was cancelled, or that Slurm has requeued itself, is not requeued"
for state in 'STATE=COMPLETING cancelled' 'RESTARTS=1 itself'; do
  env "${state% *}" ./copied-by-slurm lost train "${options[@]}" --iterations 100000 >ending.log 2>&1 &
  job=$!
  for _ in {1..600}; do ! grep -q '^Restoring training' ending.log || break; sleep 0.05; done
  kill -s TERM "$job"
  code=0
  wait "$job" || code=$?
  [[ $code == 75 && $(wc -l <scontrol.txt) == 2 ]] || failed "code $code; it was requeued"
  grep -q "^slurm.sh: .*${state#* }" ending.log || failed "nothing says why"
done

echo "== Slurm: ranks that are left of the job are awaited before it goes on"
flock --exclusive lost/.lock sh -c 'touch held; sleep 3' &
await held
SLURM_RESTART_COUNT=1 MILLRACE=./dies ends_with 7 ./copied-by-slurm lost train "${options[@]}"
grep -q 'slurm.sh: waiting for ranks of this job that still use lost' output.log || failed "it did not wait"

echo "== Slurm: tasks that MPI does not join end the job"
TASKS=2 ends_with 2 ./copied-by-slurm apart train "${options[@]}"
grep -q 'srun started 2 tasks, but did not join them' output.log || failed "nothing says why"
echo "all tests passed"
