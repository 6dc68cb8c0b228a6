#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a training to its end: whenever it dies, it is restored from its last good checkpoint, a bounded
# number of times.
set -uo pipefail
set -m # the training has a process group of its own: an interruption at the keyboard reaches it once

usage() {
  cat <<'TEXT'
Usage: supervise.sh [--restarts N] [--pause SECONDS] RUN_DIR COMMAND.. train OPTIONS..
  RUN_DIR      the run's directory; a run that is in it already goes on
  COMMAND      what starts millrace: millrace, mpirun -n 8 millrace, srun millrace, ..
  --restarts   restarts before it gives up (10)
  --pause      seconds before the first restart (10); each takes twice as long as the one before, up to
               ten minutes
Example: supervise.sh runs/rn50 millrace train --dataset imagenet --data-dir /data --shards 2

A wrong option (code 2), bad data (3), numbers that diverged (4) or checkpoints that are all damaged (6)
do not heal: it ends with their code. USR1, USR2, TERM, HUP and INT are passed on, and the training
saves; a training that was asked to stop (75, 130) is not restarted.
TEXT
}

say() { printf 'supervise: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 2
}
whole() { [[ $1 =~ ^[0-9]+$ ]] || die "'$1' is no whole number"; }

restarts=10
pause=10
while (($# > 0)); do
  case $1 in
    --restarts) whole "${2-}" && restarts=$2 && shift 2 ;;
    --pause) whole "${2-}" && pause=$2 && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    -*) die "unknown option $1; supervise.sh --help lists them" ;;
    *) break ;;
  esac
done
(($# >= 3)) || { usage >&2 && exit 2; }
run=$1
shift

# What stands before `train` starts a restored run as well.
starter=()
training=("$@" --run-dir "$run")
while (($# > 0)) && [[ $1 != train ]]; do
  starter+=("$1")
  shift
done
(($# > 0)) || die "the command has no word 'train'"

has_checkpoint() {
  [[ -n $(find "$run/checkpoints" -mindepth 2 -maxdepth 2 -name manifest.json -print -quit 2>/dev/null) ]]
}

child=
stopped=
pass_on() {
  stopped=$1
  [[ -z $child ]] || kill -s "$1" "$child" 2>/dev/null
}
for signal in USR1 USR2 TERM HUP INT; do
  # shellcheck disable=SC2064 # the name of today
  trap "pass_on $signal" "$signal"
done

# attempt COMMAND..: runs it to its end; signals interrupt the waiting, not the training.
attempt() {
  "$@" &
  child=$!
  local code
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  # A signal may have come between the end of the training and the last wait.
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
    2 | 3 | 4 | 6 | 126 | 127) say "code $code does not heal by itself" && exit "$code" ;;
    *) ;;
  esac
  # Asked to stop before the program could listen: it has nothing to save, and goes on later.
  [[ -z $stopped || $stopped == INT ]] || ((code <= 128)) || exit 75
  [[ -z $stopped ]] || exit "$code"
  ((count < restarts)) || { say "gives up after $restarts restarts" && exit "$code"; }
  say "the training ended with code $code: restart $((count + 1)) of $restarts in $pause s"
  sleep "$pause" &
  child=$!
  wait "$child"
  child=
  [[ -z $stopped ]] || exit 75
  pause=$((pause * 2 < 600 ? pause * 2 : 600))
done
