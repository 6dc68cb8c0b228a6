#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves kernels, messages and laws on the GPU of this machine and measures them beside PyTorch: in four
# minutes (quick) or in eight (full). Every step has its own limit, so that one that hangs does not cost
# the others. Steps that measure nothing share the GPU; measurements have it alone. The table comes last.
# shellcheck disable=SC2317  # functions that another shell calls
set -euo pipefail
from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  cat <<'TEXT'
Usage: tests/gpu/run.sh [--dry-run] [--build DIR] [--cpu DIR] [--data DIR] [--out DIR] [quick | full | STEP]..
       tests/gpu/run.sh --pack FILE.tar.xz|DIR [--build DIR] [--cpu DIR]
  --dry-run    prints every step and its limit, runs nothing
  --build DIR  programs of the preset cuda (build/cuda)
  --cpu DIR    millrace for cores, for runs that move there and back (build/default)
  --data DIR   CIFAR-10 as binary files; without it, the step cifar is skipped (the others draw images)
  --out DIR    where outputs, table.txt and results.json go (a temporary folder)
  --pack FILE  one archive for a machine with CUDA and PyTorch: the programs, stripped, what such a machine does
               not have (libraries, Open MPI), this script, and with --cpu the program for cores. There:
               tar -xJf FILE.tar.xz && millrace-gpu/tests/gpu/run.sh quick
  --pack DIR   only the programs and their libraries, as a folder for --build
  quick        what decides: tests, digests of a few layouts, and four networks beside PyTorch, in four minutes
  full         more tests and layouts, sanitizers, where the time of each network goes; in eight minutes
  STEP         only these; --dry-run shows their names, and those of steps that run only when named, such as
               variants (tests/gpu/variants.toml)
Without groups and steps it runs full. Folders are relative to the current one.
Exit code 1: a step failed or ran over its limit. 77: no NVIDIA driver here.
TEXT
}

dry=
build=build/cuda
cpu=
data=
out=
pack=
asked=()
while (($#)); do
  case $1 in
    --dry-run) dry=1 ;;
    --build | --cpu | --data | --out | --pack)
      needed='a folder'
      [[ $1 != --pack ]] || needed='FILE.tar.xz or a folder'
      [[ -n ${2-} ]] || { echo "$1 needs $needed" >&2; exit 2; }
      declare "${1#--}=$(cd "$from" && realpath -m -- "$2")"
      shift
      ;;
    -h | --help) usage && exit 0 ;;
    -*)
      echo "there is no option $1" >&2
      usage >&2
      exit 2
      ;;
    *) asked+=("$1") ;;
  esac
  shift
done
[[ -z $pack ]] || exec tests/gpu/pack.sh "$build" "$pack" ${cpu:+"$cpu"}
cpu=${cpu:-build/default}
# A packed build brings its own mpirun. cuDNN, NCCL and CUPTI may come from PyTorch's packages.
mpirun=mpirun
[[ ! -x $build/mpirun ]] || mpirun=$build/mpirun
torch_libraries=$(timeout 3 python3 -c 'import nvidia, os
for root in nvidia.__path__:
    print(*(os.path.join(root, n, "lib") for n in ("cudnn", "cublas", "nccl", "cuda_cupti", "cu13")), sep=":")' 2>/dev/null |
  paste -sd :) || true
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${torch_libraries:+:$torch_libraries}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# What this pass over the steps does: it lists their names, prints them (dry), or runs them.
pass=names
limits=0  # of the steps of this pass, in sum
kills=0   # half seconds for steps that have to be killed
around=8  # seconds at most for what is no step: the libraries, the driver, the results
names=()
only=() # the steps to run, if not all of them

# step NAME LIMIT COMMAND...: runs the command for at most LIMIT seconds. Its output is in $out/NAME.
step() {
  local name=$1 limit=$2
  names+=("$name")
  [[ $pass != names ]] || return 0
  ((${#only[@]} == 0)) || [[ " ${only[*]} " == *" $name "* ]] || return 0
  if [[ -n ${together-} ]]; then
    ((limit <= longest)) || longest=$limit
  else
    limits=$((limits + limit))
    kills=$((kills + 1))
  fi
  if [[ $pass == dry ]]; then
    shift 2
    printf '%-24s %4s s%s  %s\n' "$name" "$limit" "${together:-  }" "$*"
  elif [[ -n ${together-} ]]; then
    run_step "$@" &
  else
    run_step "$@"
  fi
}

# run_step NAME LIMIT COMMAND...: and adds a line to the table. The step is skipped where a tool that it
# calls by name (nvidia-smi, python3) is not installed.
run_step() {
  local name=$1 limit=$2 begin=$SECONDS rc=0 result=passed said
  shift 2
  rm -f "$out/$name.json"
  if command -v "$1" >/dev/null || [[ $1 == */* ]]; then
    timeout --kill-after=0.5 "$limit" "$@" >"$out/$name" 2>&1 || rc=$?
  else
    echo "skipped: there is no $1 on PATH" >"$out/$name"
    rc=77
  fi
  case $rc in
    0) ;;
    77) result=skipped ;;
    124 | 137) result='over its limit' ;;
    *) result="failed ($rc)" ;;
  esac
  said=$(grep -v '^$' "$out/$name" | tail -n 1 | cut -c 1-160 | tr '\t\r' '  ') || true
  printf '%s\t%s\t%d\t%s\n' "$name" "$result" $((SECONDS - begin)) "$said" >>"$out/steps.tsv"
  printf '%-24s %-15s %4d s  %s\n' "$name" "$result" $((SECONDS - begin)) "$said" | tee -a "$table"
}

# side_by_side COMMAND..: the command's steps run at the same time, marked with | in a dry run. They last as
# long as the longest.
side_by_side() {
  local together=' |' longest=0
  "$@"
  limits=$((limits + longest))
  kills=$((kills + (longest > 0)))
  [[ $pass != run ]] || wait
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

# tested SECONDS PROCESSES PROGRAM OPTIONS..: runs a program's tests in a mixed order in several processes, as
# many as the time allows. A process in which no test began or ended in the second half of the time hangs.
tested() {
  local seconds=$1 processes=$2 log=$out/${3##*/}- running=() process rc late='' passed quiet
  local begin=$EPOCHSECONDS
  shift 2
  for ((process = 0; process < processes; ++process)); do
    GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$process GTEST_SHUFFLE=1 GTEST_RANDOM_SEED=1 \
      timeout --kill-after=1 "$seconds" "$@" >"$log$process.log" 2>&1 &
    running+=($!)
  done
  for ((process = 0; process < processes; ++process)); do
    rc=0
    wait "${running[process]}" || rc=$?
    ((rc != 0)) || continue
    quiet=$((begin + seconds - $(stat -c %Y "$log$process.log")))
    if ((rc != 124 && rc != 137)) || ! grep -q '\[       OK' "$log$process.log" || ((2 * quiet > seconds)); then
      grep '\[  FAILED' "$log$process.log" || true
      tail -n 3 "$log$process.log"
      echo "process $process of $processes: exit code $rc, its last output $quiet s before the end"
      return 1
    fi
    late="; the others were not reached in $seconds s"
  done
  passed=$(cat "$log"*.log | grep -c '\[       OK') || true
  echo "$passed tests passed$late"
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
# measured NAME LIMIT SCRIPT OPTIONS..: a step with millrace's benchmark, which begins nothing that would end
# after the limit.
measured() {
  local name=$1 limit=$2 script=$3
  shift 3
  step "$name" "$limit" python3 -Bu "tests/gpu/$script.py" "$@" --millrace "$millrace" --seconds $((limit - 3)) \
    --json "$out/$name.json"
}
# compared NAME LIMIT NETWORK BATCH OPTIONS..: beside PyTorch.
compared() {
  local name=$1 limit=$2 network=$3 batch=$4
  shift 4
  measured "$name" "$limit" compare "$network" --batch "$batch" --ceilings "$out/ceilings" "$@"
}
# checked NAME LIMIT TOOL FILTER: a step with CUDA's sanitizer, with time for it to end. A test sets a
# shorter one.
checked() {
  step "$1" "$2" bash -c 'set -euo pipefail; sanitized "$@"' sanitized "$3" "${MILLRACE_STEP_SECONDS:-$(($2 - 4))}" "$build/ops_test" "$4"
}
export -f digests_agree layouts scaled moved cifar tested sanitized

small='--dataset cifar-10 --generated-data --model-size 8 --batch-size 8 --iterations 3 --seed 3 --no-validation --threads-per-device 1'
few='2:1F1B 4:ZB-H1'
all='2:Sequential 2:Grouped 2:Interleaved 2:GPipe 2:1F1B 2:Looped 2:Looped-ZB 2:ZB-H1 2:ZB-V 2:V-Min 2:V-Half 2:V-ZB 2:DualPipeV 2:auto 4:1F1B 4:ZB-H1'

# checks LIMIT LAYOUTS: what proves that kernels and messages are right. Each process starts for some seconds. A
# test sets a shorter time.
checks() {
  local limit=$1 layouts=$2 tested='set -euo pipefail; tested "$@"'
  step driver 3 nvidia-smi -q
  step doctor 15 "$millrace" doctor
  step device 20 "$build/device_test"
  step ops "$limit" bash -c "$tested" tested "${MILLRACE_STEP_SECONDS:-$((limit - 3))}" 8 "$build/ops_test" --gtest_filter='-*Frugal*:*Own*:ThreadCount*'
  step stages "$limit" bash -c "$tested" tested "${MILLRACE_STEP_SECONDS:-$((limit - 3))}" 3 "$build/stage_test"
  step two-ranks 40 env MILLRACE_TEST_RANKS=2 MILLRACE_MESSAGES=mpi "$mpirun" -np 2 "$build/numerics_test" --gtest_filter=TwoRanks.*
  step layouts-f32 "$limit" bash -c "$(in_shell "layouts f32 '$few' $small --precision 32.32")"
  step layouts-b16 "$limit" bash -c "$(in_shell "layouts b16 '$layouts' $small --precision 16.32")"
  step scaled 40 bash -c "$(in_shell "scaled --dataset cifar-10 --generated-data --model-size 8 --batch-size 32 --iterations 60 --log-freq 10 --no-validation --threads-per-device 1")"
  step moved 40 bash -c "$(in_shell "moved $small")"
}

# all_checks LIMIT: those, and what takes longer.
all_checks() {
  checks "$1" "$all"
  step cifar "$1" bash -c "$(in_shell cifar)"
  checked memcheck 60 memcheck --gtest_filter='*Linear*/Point*:*Linear*/K3*KokkosBfloat16:Optimiser*:*Norm*:*Pool*:*Softmax*:*Depthwise*:*Drop*:*Images*'
  # Kernels of teams, whose threads share memory.
  checked racecheck 60 racecheck --gtest_filter='*Linear*/Point*:*Norm*:*Softmax*:*Depthwise*'
}

# networks LIMIT LIMIT LIMIT LIMIT LIMIT OPTIONS..: beside PyTorch's eager mode and its graphs.
networks() {
  local seconds=("${@:1:5}") new=(--variants tests/gpu/variants.toml --profile "$build/libgpu_kernel_times.so")
  shift 5
  compared resnet50-256 "${seconds[0]}" resnet50 256 --steps 20 --modes graph,eager "${new[@]}" "$@"
  compared resnet50-32 "${seconds[1]}" resnet50 32 --steps 50 --modes graph,eager "${new[@]}" "$@"
  compared resnext101-128 "${seconds[2]}" resnext101 128 --steps 20 --modes graph,eager "${new[@]}" "$@"
  compared efficientnet-128 "${seconds[3]}" efficientnet-b0 128 --modes graph,eager "${new[@]}" "$@"
  compared resnet20-128 "${seconds[4]}" resnet20 128 --steps 100 --modes graph,eager "${new[@]}" "$@"
}

quick() {
  side_by_side checks 44 "$few"
  step ceilings 10 "$build/gpu_ceilings"
  step streaming 8 "$build/gpu_streaming"
  networks 37 30 36 41 22 --rounds 1 --set-up 24
}

full() {
  side_by_side all_checks 110
  step ceilings 10 "$build/gpu_ceilings"
  step streaming 10 "$build/gpu_streaming"
  measured two-stages 32 stages resnet50 --batch 64
  networks 60 40 48 60 38 --set-up 30
  compared resnet20-compiled 40 resnet20 128 --steps 100 --modes compiled
}

# What has no room in the eight minutes. torch.compile needs more than 45 s for ResNet-50.
named() {
  measured variants 231 variants tests/gpu/variants.toml
  compared resnet50-compiled 150 resnet50 256 --modes compiled
  compared resnet50-32-compiled 150 resnet50 32 --steps 50 --modes compiled
  compared resnext101-compiled 240 resnext101 128 --modes compiled
  compared efficientnet-compiled 240 efficientnet-b0 128 --modes compiled
  # With --allow-nondeterministic, cuDNN adds the sums of a batch norm while it convolves, in float16.
  compared resnet50-float16 60 resnet50 256 --type float16 --modes graph,eager
  compared resnet50-float16-varying 60 resnet50 256 --type float16 --modes graph,eager --options=--allow-nondeterministic
}

# asked_for: the steps of all groups and names on the command line.
asked_for() {
  local group
  for group in "${groups[@]}"; do
    only=()
    "$group"
  done
  ((${#steps[@]} > 0)) || return 0
  only=("${steps[@]}")
  full
  named
  only=()
}

millrace=$build/millrace
full
named
groups=()
steps=()
for name in "${asked[@]}"; do
  if [[ -z $name || $name == *[[:space:]]* || " quick full ${names[*]} " != *" $name "* ]]; then
    echo "there is no step ${name@Q}, only quick, full and ${names[*]}" >&2
    exit 2
  fi
  case $name in
    quick | full) [[ " ${groups[*]} " == *" $name "* ]] || groups+=("$name") ;;
    *) steps+=("$name") ;;
  esac
done
((${#asked[@]} > 0)) || groups=(full)
if [[ -n $dry ]]; then
  out=${out:-OUT}
  pass=dry
  asked_for
  limits=$((limits + (kills + 1) / 2 + around))
  printf '%d s at most, %d of them to kill steps and around them\n' "$limits" $(((kills + 1) / 2 + around))
  most=$limits
  [[ ${groups[*]-} != quick || ${#steps[@]} -gt 0 ]] || most=240
  [[ ${groups[*]-} != full || ${#steps[@]} -gt 0 ]] || most=480
  ((limits <= most)) || exit 1
  ((${#asked[@]} > 0)) || { echo 'only if named:'; named; }
  exit 0
fi
if ! machine=$(timeout --kill-after=0.5 3 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null); then
  echo 'skipped: no NVIDIA driver here (--dry-run prints the steps)'
  exit 77
fi
out=${out:-$(mktemp -d)}
mkdir -p "$out/runs"
table=$out/table.txt
: >"$table"
: >"$out/steps.tsv"
printf '%s\n' "$machine" >"$out/machine"
export millrace cpu out data
pass=run
asked_for
printf '\n%s\n' "$(cat "$out/machine")"
cat "$table"
echo
! command -v python3 >/dev/null || timeout 2 python3 -B tests/gpu/results.py "$out"
! cut -f 2 "$out/steps.tsv" | grep -q '^failed\|^over'
