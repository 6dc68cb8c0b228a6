#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# soak.sh MILLRACE [MINUTES]: trains on two ranks for MINUTES, with a checkpoint every minute; every
# ten minutes a rank is killed and the run restored. Prints one row per minute of values that must
# not grow: resident memory and descriptors of each rank, shared memory, temporary files, and the
# size of the run directory. Fails if the run cannot continue by itself or a value grows. Skipped
# without MINUTES and MILLRACE_SOAK_MINUTES.
set -euo pipefail

millrace=$1
minutes=${2:-${MILLRACE_SOAK_MINUTES:-}}
[[ -n $minutes ]] || { echo "skipped: set MILLRACE_SOAK_MINUTES"; exit 77; }
kill_every=${MILLRACE_SOAK_KILL_EVERY:-10}

work=$(mktemp -d)
job=
finish() {
  [[ -z $job ]] || kill -TERM "$job" 2>/dev/null || true
  [[ -z $job ]] || wait "$job" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

run=$work/run
"$millrace" data generate "$work/data" --train-images 640 --test-images 200 >"$work/output"

begin() {
  "$millrace" train --dataset cifar-10 --data-dir "$work/data" --model-size 8 --batch-size 32 \
    --gradients-to-accumulate 2 --iterations 100000000 --warmup-epochs 0 --threads-per-device 1 \
    --shards 2 --pipeline-splits b2/0/relu --checkpoint-every 1minutes --max-ckpts-to-keep 2 \
    --validation-mode none --log-freq 1000 --run-dir "$run" >>"$work/output" 2>&1 &
  job=$!
}

go_on() {
  "$millrace" restore --restore-path "$run" >>"$work/output" 2>&1 &
  job=$!
}

# The process of rank $1, or nothing.
rank_process() {
  local process
  for process in $(pgrep -f -- "$run" || true); do
    if tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then
      echo "$process"
      return
    fi
  done
}

resident_mb() { awk '/^VmRSS/ { printf "%.1f", $2 / 1024 }' "/proc/$1/status"; }
descriptors() { find "/proc/$1/fd" -mindepth 1 | wc -l; }
shared_mb() { du -sm /dev/shm | cut -f1; }
temporaries() { find /tmp -maxdepth 1 -name 'ompi.*' | wc -l; }
newest() {
  find "$run/checkpoints" -maxdepth 1 -name 'ckpt-*' -printf '%f\n' 2>/dev/null |
    sed 's/ckpt-//' | sort -n | tail -1
}

fail() {
  echo "soak.sh: $1" >&2
  tail -20 "$work/output" >&2
  exit 1
}

row() {
  local first second
  first=$(rank_process 0)
  second=$(rank_process 1)
  [[ -n $first && -n $second ]] || fail "a rank is gone"
  printf '%6s %8s %10s %10s %10s %6s %6s %8s %6s %8s\n' "$1" "$kills" "$(newest)" \
    "$(resident_mb "$first")" "$(resident_mb "$second")" "$(descriptors "$first")" \
    "$(descriptors "$second")" "$(shared_mb)" "$(temporaries)" "$(du -sm "$run" | cut -f1)"
}

kills=0
before=$(shared_mb)
printf '%6s %8s %10s %10s %10s %6s %6s %8s %6s %8s\n' minute kills saved 'rank 0 MB' 'rank 1 MB' \
  fds fds 'shm MB' ompi 'run MB'
begin
for ((minute = 1; minute <= minutes; ++minute)); do
  sleep 60
  kill -0 "$job" 2>/dev/null || fail "the run has ended"
  row "$minute" | tee -a "$work/table"
  if ((minute % kill_every == 0 && minute < minutes)); then
    kill -KILL "$(rank_process $((RANDOM % 2)))"
    wait "$job" || true
    kills=$((kills + 1))
    go_on
  fi
done
kill -TERM "$job"
code=0
wait "$job" || code=$?
job=
((code == 75)) || fail "the run ended with $code instead of 75"
"$millrace" inspect "$run" --verify
after=$(shared_mb)
((after <= before + 1)) || fail "shared memory grew from $before MB to $after MB"
# Memory and descriptors of rank 0 must not grow by more than a tenth from the second minute to the
# last one before the first kill.
awk -v every="$kill_every" '$1 > 1 && $1 <= every { if (!first) { first = $4; fds = $6 } last = $4; end = $6 }
  END { exit !(last <= 1.1 * first && end <= fds + 2) }' "$work/table" || fail "something grows"
