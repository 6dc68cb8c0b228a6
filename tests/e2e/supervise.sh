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
export OMP_WAIT_POLICY=passive

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
"$launch/supervise.sh" --pause 0 disturbed "$millrace" train "${options[@]}" >disturbed.log 2>&1 &
supervisor=$!
for newest in 20 100; do
  await "disturbed/checkpoints/ckpt-$newest"
  kill -KILL "$(head -n 1 disturbed/.lock)"
done
wait "$supervisor" || failed "the supervisor ended with $?"
[[ $(grep -c '^supervise: .*code 137: restart' disturbed.log) == 2 ]] || failed "not two restarts"
[[ $(digest straight) == "$(digest disturbed)" ]] || failed "the digests differ"

echo "== a directory may have any name"
odd='odd [1] x/run*[a]'
"$launch/supervise.sh" --pause 0 "$odd" "$millrace" train "${options[@]}" --stop-after 2 >odd.log 2>&1 || true
ends_with 0 "$launch/supervise.sh" --pause 0 "$odd" "$millrace" train "${options[@]}"

echo "== killed while it commits its first checkpoint: begun anew"
mkdir -p begun/checkpoints/.ckpt-0.tmp.1
touch begun/.lock begun/checkpoints/.ckpt-0.tmp.1/manifest.json
ends_with 0 "$launch/supervise.sh" --pause 0 begun "$millrace" train "${options[@]}"

echo "== asked to stop before the program can catch signals: code 75"
cat >deaf <<'SCRIPT'
#!/usr/bin/env bash
touch deaf.began
exec sleep 30
SCRIPT
chmod +x deaf
code=0
"$launch/supervise.sh" --pause 0 never ./deaf train >deaf.log 2>&1 &
supervisor=$!
await deaf.began
sleep 0.2
kill -s USR1 "$supervisor"
wait "$supervisor" || code=$?
[[ $code == 75 ]] || failed "asked early: code $code"

echo "== permanent errors are not retried"
ends_with 2 "$launch/supervise.sh" --pause 0 wrong "$millrace" train --model-size 9
grep -q 'code 2: not restarted' output.log || failed "the message is missing"

echo "== gives up after the given number of restarts"
cat >dies <<'SCRIPT'
#!/usr/bin/env bash
echo >>attempts
exit 7
SCRIPT
chmod +x dies
ends_with 7 "$launch/supervise.sh" --pause 0 --restarts 3 none ./dies train
[[ $(wc -l <attempts) == 4 ]] || failed "$(wc -l <attempts) attempts, not 4"

echo "== a request to stop is forwarded once, and the run is saved"
for signal in USR1 INT; do
  code=0
  # A shell makes its background processes ignore INT.
  env --default-signal=INT "$launch/supervise.sh" --pause 0 "asked-$signal" "$millrace" train "${options[@]}" --iterations 100000 \
    >"asked-$signal.log" 2>&1 &
  supervisor=$!
  await "asked-$signal/checkpoints/ckpt-20"
  kill -s "$signal" "$supervisor"
  wait "$supervisor" || code=$?
  [[ $code == $([[ $signal == INT ]] && echo 130 || echo 75) ]] || failed "$signal: code $code"
  "$millrace" inspect "asked-$signal" --verify >/dev/null || failed "$signal: not saved"
done

echo "== Slurm: the job is requeued after a request to stop"
mkdir bin
cat >bin/srun <<'SCRIPT'
#!/usr/bin/env bash
export SLURM_STEP_NUM_TASKS=${TASKS-1}
exec "$@"
SCRIPT
cat >bin/scontrol <<SCRIPT
#!/usr/bin/env bash
echo "\$*" >>"$work/scontrol.txt"
echo "JobId=7 JobName=train"
echo "   Command=$launch/slurm.sh asked train"
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

echo "== Slurm: tasks that MPI does not join end the job"
TASKS=2 ends_with 2 ./copied-by-slurm apart train "${options[@]}"
grep -q 'srun started 2 tasks, but did not join them' output.log || failed "nothing says why"
echo "all tests passed"
