#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs millrace on a worker of a cluster that TF_CONFIG describes. Start the same command on every
# worker: the first one starts all ranks over SSH, the others say so and end.
#
#   tf-config.sh worker0 worker1 -- train --distributed --replicas 4 OPTIONS..
#
# The index of this worker is the place of its host name in the list, or TASK_INDEX. A scheduler that
# sets TF_CONFIG itself, such as Kubeflow's TFJob, does not need this script.
set -euo pipefail
workers=()
while (($# > 0)) && [[ $1 != -- ]]; do
  workers+=("$1")
  shift
done
if ((${#workers[@]} == 0 || $# < 2)); then
  echo "Usage: tf-config.sh HOST.. -- train --distributed OPTIONS.." >&2
  exit 2
fi
shift
index=${TASK_INDEX-}
for ((i = 0; i < ${#workers[@]}; ++i)); do
  [[ -n $index || ${workers[i]} != "$(hostname)" && ${workers[i]} != "$(hostname -s)" ]] || index=$i
done
if [[ -z $index ]]; then
  echo "tf-config: this machine, $(hostname), is none of ${workers[*]}: set TASK_INDEX" >&2
  exit 2
fi
# The ports are those of TensorFlow's servers, which millrace has none of.
list=$(printf '"%s:2222", ' "${workers[@]}")
export TF_CONFIG="{\"cluster\": {\"worker\": [${list%, }]}, \"task\": {\"type\": \"worker\", \"index\": $index}}"
exec "${MILLRACE:-millrace}" "$@"
