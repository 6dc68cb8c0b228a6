#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a training to its end: if it dies, it goes on from its newest checkpoint.
#
#   supervise.sh RUN_DIR [PROGRAM] train OPTIONS..
#
# An existing run continues. This is `train --elastic --run-dir RUN_DIR`, whose options apply.
set -euo pipefail

die() {
  printf 'supervise: %s\n' "$*" >&2
  exit 2
}
(($# >= 2)) || die "usage: supervise.sh RUN_DIR [PROGRAM] train OPTIONS.."
run=$1
program=millrace
[[ $2 == train ]] || { program=$2 && shift; }
[[ ${2-} == train ]] ||
  die "'$program ${2-}': the word after the program must be 'train'; it starts its ranks itself: --ranks N, --hosts FILE"
shift 2
exec "$program" train "$@" --elastic --run-dir "$run"
