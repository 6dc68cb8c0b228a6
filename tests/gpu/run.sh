#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves kernels, messages and laws on the GPU of this machine and measures them beside PyTorch, in at
# most eight minutes. Every step has its own limit, so that one that hangs does not cost the others.
# The table comes last.
# shellcheck disable=SC2317  # functions that another shell calls
set -euo pipefail
from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  cat <<'TEXT'
Usage: tests/gpu/run.sh [--dry-run] [--build DIR] [--cpu DIR] [--data DIR] [--out DIR] [STEP..]
       tests/gpu/run.sh --pack DIR [--build DIR]
  --dry-run    prints every step and its limit, runs nothing
  --build DIR  programs of the preset cuda (build/cuda)
  --cpu DIR    millrace for cores, for runs that move there and back (build/default)
  --data DIR   CIFAR-10 as binary files; without it, the step cifar is skipped (the others draw images)
  --out DIR    where outputs and table.txt go (a temporary folder)
  --pack DIR   copies the programs, stripped, and what a machine with CUDA does not have (libraries,
               Open MPI) to DIR: with --build DIR it runs there without anything being built
  STEP..       only these; --dry-run shows their names, and those of steps that run only when named
Folders are relative to the current one.
Exit code 1: a step failed or ran over its limit. 77: no NVIDIA driver here.
TEXT
}

dry=
build=build/cuda
cpu=build/default
data=
out=
pack=
only=()
while (($#)); do
  case $1 in
    --dry-run) dry=1 ;;
    --build | --cpu | --data | --out | --pack)
      [[ -n ${2-} ]] || { echo "$1 needs a folder" >&2; exit 2; }
      declare "${1#--}=$(cd "$from" && realpath -m -- "$2")"
      shift
      ;;
    -h | --help) usage && exit 0 ;;
    -*)
      echo "there is no option $1" >&2
      usage >&2
      exit 2
      ;;
    *) only+=("$1") ;;
  esac
  shift
done
[[ -z $pack ]] || exec tests/gpu/pack.sh "$build" "$pack"
# A packed build brings its own mpirun. cuDNN may come from PyTorch's packages.
mpirun=mpirun
[[ ! -x $build/mpirun ]] || mpirun=$build/mpirun
torch_libraries=$(python3 -c 'import nvidia, os
for root in nvidia.__path__:
    print(*(os.path.join(root, n, "lib") for n in ("cudnn", "cublas", "cu13")), sep=":")' 2>/dev/null || true)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${torch_libraries:+:$torch_libraries}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# What this pass over the steps does: it lists their names, prints them (dry), or runs them.
pass=names
failed=0
limits=0
names=()
unnamed=() # lines for the steps that a dry run leaves out

# wanted NAME: whether the step runs; one within only_if_named does not run by itself.
wanted() {
  if ((${#only[@]})); then [[ " ${only[*]} " == *" $1 "* ]]; else [[ -z ${by_name-} ]]; fi
}

# step NAME LIMIT COMMAND...: runs the command for at most LIMIT seconds. Its output is in $out/NAME.
# It is skipped where a tool that it calls by name (nvidia-smi, python3) is not installed.
step() {
  local name=$1 limit=$2 begin=$SECONDS rc=0 line
  shift 2
  names+=("$name")
  [[ $pass != names ]] || return 0
  line=$(printf '%-24s %4s s  %s' "$name" "$limit" "$*")
  if ! wanted "$name"; then
    [[ -z ${by_name-} ]] || unnamed+=("$line")
    return 0
  fi
  limits=$((limits + limit))
  if [[ $pass == dry ]]; then
    printf '%s\n' "$line"
    return
  fi
  if command -v "$1" >/dev/null || [[ $1 == */* ]]; then
    timeout --kill-after=0.5 "$limit" "$@" >"$out/$name" 2>&1 || rc=$?
  else
    echo "skipped: there is no $1 on PATH" >"$out/$name"
    rc=77
  fi
  local result=passed
  case $rc in
    0) ;;
    77) result=skipped ;;
    124 | 137) result='over its limit' ;;
    *) result="failed ($rc)" ;;
  esac
  ((rc == 0 || rc == 77)) || failed=1
  printf '%-24s %-15s %4d s  %s\n' "$name" "$result" $((SECONDS - begin)) \
    "$(grep -v '^$' "$out/$name" | tail -n 1 | cut -c 1-160)" | tee -a "$table"
}

# only_if_named STEP..: a step for which the eight minutes have no room.
only_if_named() {
  local by_name=1
  "$@"
}

# The functions below run in a shell of their own, under a limit.

# digests_agree RUN..: that the newest checkpoints of all runs have one digest.
digests_agree() {
  local first='' digest run
  for run in "$@"; do
    digest=$("$millrace" inspect "$run" --digest)
    [[ -n $first ]] || first=$digest
    [[ $digest == "$first" ]] || { echo "$run has another digest than $1: $digest, $first"; return 1; }
  done
  echo "$# layouts, one digest: $first"
}

# layouts NAME LAYOUTS OPTIONS..: trains in one stage and in the layouts RANKS:SCHEDULE, as ranks on
# one GPU, which NCCL refuses, and compares.
layouts() {
  local name=$1 layouts=$2 runs=() run layout
  shift 2
  export MILLRACE_MESSAGES=mpi
  run=$out/runs/$name-1
  "$millrace" train "$@" --gradients-to-accumulate 8 --run-dir "$run"
  runs+=("$run")
  for layout in $layouts; do
    run=$out/runs/$name-${layout/:/-}
    "$millrace" train "$@" --shards "${layout%:*}" --pipeline-depth 8 --pipeline-splits auto \
      --pipeline-schedule "${layout#*:}" --ranks "${layout%:*}" --run-dir "$run"
    runs+=("$run")
  done
  digests_agree "${runs[@]}"
}

# scaled OPTIONS..: float16 with a dynamic scale and wide or narrow masters learns its images.
scaled() {
  local precision run
  for precision in 16.32 16.16; do
    run=$out/runs/scaled-$precision
    "$millrace" train "$@" --precision "$precision" --half fp16 --loss-scaling dynamic --run-dir "$run"
    awk -F, -v precision="$precision" 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "loss_avg") at = i }
      NR == 2 { first = $at } END {
        printf "%s: loss %s, then %s\n", precision, first, $at; exit !($at + 0 < first + 0) }' "$run/training.csv"
  done
}

# moved OPTIONS..: a run of cores goes on here, and back there.
moved() {
  local run=$out/runs/moved
  [[ -x $cpu/millrace ]] || { echo "skipped: $cpu/millrace is missing (--cpu names another folder)"; return 77; }
  "$cpu/millrace" train "$@" --iterations 6 --stop-after 2 --run-dir "$run" || (($? == 75))
  "$millrace" restore --restore-path "$run" --stop-after 2 || (($? == 75))
  "$cpu/millrace" restore --restore-path "$run"
  "$cpu/millrace" validate --restore-path "$run"
}

# cifar: ResNet-20 in ten epochs, to the band of its recipe.
cifar() {
  [[ -n $data ]] || { echo 'skipped: --data names no CIFAR-10'; return 77; }
  "$millrace" train --config resnet20-cifar10-10epochs --data-dir "$data" --batch-size 128 \
    --run-dir "$out/runs/cifar"
  "$millrace" validate --restore-path "$out/runs/cifar" --json | tail -n 1 >"$out/cifar.json"
  awk 'match($0, /"top1": *[0-9.]+/) {
    top1 = substr($0, RSTART + 7, RLENGTH - 7); sub(/^[: ]+/, "", top1)
    printf "top-1 %.4f, band 0.87 to 0.92\n", top1; exit !(top1 >= 0.87 && top1 <= 0.92) }' "$out/cifar.json"
}

# sanitized TOOL SECONDS PROGRAM FILTER: runs tests in a mixed order under a tool of CUDA's sanitizer, as
# many as the time allows.
sanitized() {
  local tool=$1 seconds=$2 rc=0 file=$out/$1.log tests
  shift 2
  command -v compute-sanitizer >/dev/null || { echo 'skipped: there is no compute-sanitizer on PATH'; return 77; }
  GTEST_SHUFFLE=1 GTEST_RANDOM_SEED=1 timeout --kill-after=2 "$seconds" compute-sanitizer --tool "$tool" \
    --target-processes all --error-exitcode 1 "$@" >"$file" 2>&1 || rc=$?
  cat "$file"
  tests=$(grep -c '\[       OK' "$file") || true
  ((rc != 0)) || { echo "$tool: all $tests tests without an error"; return; }
  ! grep -m 1 -E '^=+ +(Error|Warning|Invalid)|\[  FAILED' "$file" || return 1
  ((rc == 124 && tests > 0)) || return "$rc"
  echo "$tool: $tests tests without an error; the others were not reached in $seconds s"
}

# in_shell COMMAND..: the command line for one of the functions above.
in_shell() { printf 'set -euo pipefail; %s' "$*"; }
# measured NAME LIMIT SCRIPT NETWORK BATCH OPTIONS..: a step with millrace's benchmark, which begins no
# round that would end after the limit.
measured() {
  local name=$1 limit=$2 script=$3 network=$4 batch=$5
  shift 5
  step "$name" "$limit" python3 -Bu "tests/gpu/$script.py" "$network" --batch "$batch" --millrace "$millrace" \
    --seconds $((limit - 3)) "$@"
}
# compared NAME LIMIT NETWORK BATCH OPTIONS..: beside PyTorch.
compared() {
  local name=$1 limit=$2
  shift 2
  measured "$name" "$limit" compare "$@" --ceilings "$out/ceilings"
}
# checked NAME LIMIT TOOL FILTER: a step with CUDA's sanitizer, with time for it to end. A test sets a
# shorter one.
checked() {
  step "$1" "$2" bash -c 'set -euo pipefail; sanitized "$@"' sanitized "$3" "${MILLRACE_SANITIZER_SECONDS:-$(($2 - 4))}" "$build/ops_test" "$4"
}
export -f digests_agree layouts scaled moved cifar sanitized

small='--dataset cifar-10 --generated-data --model-size 8 --batch-size 8 --iterations 3 --seed 3 --no-validation --threads-per-device 1'
all='2:Sequential 2:Grouped 2:Interleaved 2:GPipe 2:1F1B 2:Looped 2:Looped-ZB 2:ZB-H1 2:ZB-V 2:V-Min 2:V-Half 2:V-ZB 2:DualPipeV 2:auto 4:1F1B 4:ZB-H1'
steps() {
  step driver 3 nvidia-smi -q
  step doctor 8 "$millrace" doctor
  step ceilings 10 "$build/gpu_ceilings"
  step streaming 15 "$build/gpu_streaming"
  step device 7 "$build/device_test"
  step ops 36 "$build/ops_test" --gtest_filter='-*Frugal*:*Own*:ThreadCount*'
  step stages 12 "$build/stage_test"
  step two-ranks 10 env MILLRACE_TEST_RANKS=2 MILLRACE_MESSAGES=mpi "$mpirun" -np 2 "$build/numerics_test" --gtest_filter=TwoRanks.*
  # 20 start-ups, each of which makes up to four contexts on the GPU, one after the other.
  step layouts 66 bash -c "$(in_shell "layouts f32 '2:1F1B 4:ZB-H1' $small --precision 32.32; layouts b16 '$all' $small --precision 16.32")"
  step scaled 12 bash -c "$(in_shell "scaled --dataset cifar-10 --generated-data --model-size 8 --batch-size 32 --iterations 60 --log-freq 10 --no-validation --threads-per-device 1")"
  step moved 15 bash -c "$(in_shell "moved $small")"
  step cifar 28 bash -c "$(in_shell cifar)"
  checked memcheck 26 memcheck --gtest_filter='*Linear*/Point*:*Linear*/K3*KokkosBfloat16:Optimiser*:*Norm*:*Pool*:*Softmax*:*Depthwise*:*Drop*:*Images*'
  # Kernels of teams, whose threads share memory.
  checked racecheck 20 racecheck --gtest_filter='*Linear*/Point*:*Norm*:*Softmax*:*Depthwise*'
  measured two-stages 32 stages resnet50 64
  # The compiled mode of a network can take a minute; lines without it say that it was left out.
  compared resnet50-256 55 resnet50 256 --set-up 30
  compared resnet50-32 24 resnet50 32 --steps 50 --modes eager,graph
  compared resnext101-128 23 resnext101 128 --steps 20 --modes eager,graph
  compared efficientnet-128 20 efficientnet-b0 128 --modes eager,graph
  compared resnet20-128 22 resnet20 128 --steps 100 --set-up 12
  # With --allow-nondeterministic, cuDNN adds the sums of a batch norm while it convolves, in float16.
  only_if_named compared resnet50-float16 120 resnet50 256 --type float16 --set-up 60 --options=--allow-nondeterministic
  only_if_named compared resnet50-float16-ordered 120 resnet50 256 --type float16 --set-up 60
  only_if_named compared resnet50-32-compiled 120 resnet50 32 --steps 50 --set-up 60
  only_if_named compared resnext101-compiled 240 resnext101 128 --set-up 150
  only_if_named compared efficientnet-compiled 240 efficientnet-b0 128 --set-up 150
}

millrace=$build/millrace
steps
for name in ${only[@]+"${only[@]}"}; do
  [[ " ${names[*]} " == *" $name "* ]] && continue
  echo "there is no step $name, only ${names[*]}" >&2
  exit 2
done
if [[ -n $dry ]]; then
  out=${out:-OUT}
  pass=dry
  steps
  printf '%d s at most\n' "$limits"
  ((${#only[@]} > 0)) || printf 'only if named:\n%s\n' "$(printf '%s\n' "${unnamed[@]}")"
  ((${#only[@]} > 0 || limits <= 470)) || exit 1 # the rest is for steps that have to be killed
  exit 0
fi
if ! nvidia-smi >/dev/null 2>&1; then
  echo 'skipped: no NVIDIA driver here (--dry-run prints the steps)'
  exit 77
fi
out=${out:-$(mktemp -d)}
mkdir -p "$out/runs"
table=$out/table.txt
: >"$table"
export millrace cpu out data
pass=run
steps
printf '\n%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)"
cat "$table"
exit "$failed"
