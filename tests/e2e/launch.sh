#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# launch.sh MILLRACE: runs the launch files of configs/launch as far as one machine can.
# tests/e2e/supervise.sh has those that restart a run.
set -euo pipefail
MILLRACE=$(realpath "$1")
launch=$(realpath "$(dirname "$0")/../../configs/launch")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export MILLRACE OMP_WAIT_POLICY=passive OMPI_MCA_orte_tmpdir_base=$work

failed() {
  echo "FAILED: $*"
  cat "$work"/*.log 2>/dev/null || true
  exit 1
}
refused() { # refused TEXT COMMAND..
  local text=$1 code=0
  shift
  "$@" >refused.log 2>&1 || code=$?
  if [[ $code != 2 ]] || ! grep -q "$text" refused.log; then failed "'$*' ended with $code"; fi
}
tiny=(--synthetic-data --dataset cifar-10 --model-size 8 --batch-size 4 --pipeline-depth 2
  --no-validation --no-logs --iterations 2 --threads-per-device 1)

echo "== mpirun and a host file"
echo 'localhost slots=2' >hosts
"$launch/mpirun.sh" hosts train "${tiny[@]}" --shards 2 --pipeline-splits b2/0 >mpirun.log 2>&1 ||
  failed "mpirun.sh"
grep -q '^Rank 1: ' mpirun.log || failed "not two ranks"
refused Usage "$launch/mpirun.sh" missing train
mkdir bin
printf '#!/bin/sh\necho "$@"\n' >bin/mpirun # says what the other machines would get
chmod +x bin/mpirun
handed=$(env PATH="$work/bin:$PATH" DATA_DIR=/data NCCL_DEBUG=INFO NCCL_HOSTID=here NCCL_ALGO=Ring \
  "$launch/mpirun.sh" hosts train)
for name in DATA_DIR NCCL_DEBUG NCCL_ALGO; do
  [[ $handed == *"-x $name "* ]] || failed "mpirun.sh does not hand on $name"
done
[[ $handed != *NCCL_HOSTID* ]] || failed "mpirun.sh hands on the name of this machine"

echo "== TF_CONFIG"
"$launch/tf-config.sh" other "$(hostname)" -- train "${tiny[@]}" --distributed --replicas 1 \
  >tf.log 2>&1 || failed "tf-config.sh"
grep -q 'task 1\|task 0' tf.log || failed "the second worker does not say what it waits for"
refused 'set TASK_INDEX' "$launch/tf-config.sh" nobody-a nobody-b -- train
refused Usage "$launch/tf-config.sh" a b train

echo "== Kubernetes"
if python3 -c 'import yaml' 2>/dev/null; then
  mapfile -t line < <(python3 - "$launch/mpijob.yaml" <<'PYTHON'
import sys, yaml
job = yaml.safe_load(open(sys.argv[1]))
assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
roles = job["spec"]["mpiReplicaSpecs"]
launcher = roles["Launcher"]["template"]["spec"]["containers"][0]
words = launcher["command"] + launcher["args"]
assert words[0] == "millrace" and "ipu-resnet50-8devices" in words
assert roles["Worker"]["replicas"] * job["spec"]["slotsPerWorker"] == 8
with open("hostfile", "w") as hosts:
    for worker in range(roles["Worker"]["replicas"]):
        print(f"worker-{worker} slots={job['spec']['slotsPerWorker']}", file=hosts)
stand_ins = {"/etc/mpi/hostfile": "hostfile", "/runs/resnet50": "run"}
print("\n".join(stand_ins.get(word, word) for word in words[1:]))
PYTHON
  )
  [[ ${line[0]-} == train ]] || failed "the job does not train"
  "$MILLRACE" "${line[@]}" --smoke --compile-only >job.log 2>&1 || failed "the command of the job"
  grep -q '2 stages' job.log || failed "the job has other stages"
else
  echo "skipped: python3-yaml is not installed"
fi
echo "all tests passed"
