#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a training to its end. If the training dies, it is restored from its last good checkpoint, up
# to a maximum number of times.
set -uo pipefail
set -m # the training gets its own process group, so that Ctrl-C reaches it only once

usage() {
  cat <<'TEXT'
Usage: supervise.sh [--restarts N] [--pause SECONDS] RUN_DIR COMMAND.. train OPTIONS..
  RUN_DIR      directory of the run; an existing run continues
  COMMAND      command that starts millrace: millrace, mpirun -n 8 millrace, srun millrace, ..
  --restarts   maximum number of restarts (10)
  --pause      seconds before the first restart (10); doubles with every restart, up to ten minutes
Example: supervise.sh runs/rn50 millrace train --dataset imagenet --data-dir /data --shards 2

A training that ends with a wrong option (code 2), bad data (3), diverged numbers (4) or only
damaged checkpoints (6) is not restarted, and the script exits with that code. USR1, USR2, TERM, HUP
and INT are passed on to the training, which saves a checkpoint and ends with code 75 or 130; it is
not restarted.
TEXT
}

say() { printf 'supervise: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 2
}
whole() { [[ $1 =~ ^[0-9]+$ ]] || die "'$1' is not a whole number"; }

restarts=10
pause=10
while (($# > 0)); do
  case $1 in
    --restarts) whole "${2-}" && restarts=$((10#$2)) && shift 2 ;;
    --pause) whole "${2-}" && pause=$((10#$2)) && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    -*) die "unknown option $1; supervise.sh --help lists them" ;;
    *) break ;;
  esac
done
(($# >= 3)) || { usage >&2 && exit 2; }
run=$1
shift

# The words before `train` also start a restored run.
starter=()
training=("$@" --run-dir "$run")
while (($# > 0)) && [[ $1 != train ]]; do
  starter+=("$1")
  shift
done
(($# > 0)) || die "the command does not contain the word 'train'"

# A killed writer leaves a hidden directory, which is not a checkpoint.
has_checkpoint() {
  [[ -n $(find "$run/checkpoints" -mindepth 2 -maxdepth 2 -not -path '*/.ckpt-*' -name manifest.json -print -quit 2>/dev/null) ]]
}

child=
stopped=
pass_on() {
  stopped=$1
  [[ -z $child ]] || kill -s "$1" "$child" 2>/dev/null
}
for signal in USR1 USR2 TERM HUP INT; do
  # shellcheck disable=SC2064 # expand the name now
  trap "pass_on $signal" "$signal"
done

# attempt COMMAND..: runs it to its end. Signals interrupt `wait`, not the training.
attempt() {
  "$@" &
  child=$!
  local code
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  # A signal may have arrived between the end of the training and the last wait.
  wait "$child" 2>/dev/null
  local last=$?
  ((last == 127)) || code=$last
  child=
  return "$code"
}

for ((count = 0; ; ++count)); do
  if has_checkpoint; then
    attempt "${starter[@]}" restore --restore-path "$run"
  else
    attempt "${training[@]}"
  fi
  code=$?
  case $code in
    0 | 75 | 130) exit "$code" ;;
    2 | 3 | 4 | 6 | 126 | 127) say "the training ended with code $code: not restarted" && exit "$code" ;;
    *) ;;
  esac
  # Asked to stop before the program could handle the signal: there is nothing to save yet.
  [[ -z $stopped || $stopped == INT ]] || ((code <= 128)) || exit 75
  [[ -z $stopped ]] || exit "$code"
  ((count < restarts)) || { say "giving up after $restarts restarts" && exit "$code"; }
  say "the training ended with code $code: restart $((count + 1)) of $restarts in $pause s"
  sleep "$pause" &
  child=$!
  wait "$child"
  child=
  [[ -z $stopped ]] || exit "$([[ $stopped == INT ]] && echo 130 || echo 75)"
  pause=$((pause * 2 < 600 ? pause * 2 : 600))
done
