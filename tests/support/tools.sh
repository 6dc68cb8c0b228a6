#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools.sh CMAKE ROOT [TREE]: the engine stands without its tools. In a copy of the tree, in one build
# folder, so that the engine is compiled once:
#   with no tool, and with data and weights: compiles the program and the fast tests, runs these, and
#   tries what the other tools would do;
#   without each folder of src/tools in turn: configures with tests, and compiles the program.
# TREE is a folder for the copy that is kept and used again.
set -euo pipefail
cmake=$1
root=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=${3:-$work/tree}
build=$tree/build/ci
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

failed() {
  echo "FAILED: $*"
  tail -n 30 "$work"/log
  exit 1
}
configure() {  # TOOLS
  (cd "$tree" && "$cmake" --preset ci "-DMILLRACE_TOOLS=$1") >"$work/log" 2>&1 || failed "configuring with the tools '$1'"
}
compile() {  # TARGET..
  "$cmake" --build "$build" --target "$@" >"$work/log" 2>&1 || failed "compiling $*"
}
# refuses TEXT WORDS..: the program ends with 2 and one line that has this text.
refuses() {
  local text=$1 code=0
  shift
  "$build/millrace" "$@" >"$work/log" 2>&1 || code=$?
  [[ $code == 2 ]] || failed "$* ended with $code"
  grep -qF -- "$text" "$work/log" || failed "$* said something else"
  (($(wc -l <"$work/log") == 1)) || failed "$* said more than a line"
}
# What the tools are asked for that neither build has.
asks_for_others() {
  local small=(train --dataset cifar-10 --model-size 8 --synthetic-data --iterations 2 --batch-size 2)
  "$build/millrace" "${small[@]}" --no-logs --no-validation >"$work/log" 2>&1 || failed "training"
  refuses "see MILLRACE_TOOLS" train --dialect nvidia
  refuses "see MILLRACE_TOOLS" "${small[@]}" --enable-tensorboard --run-dir "$work/run"
  refuses "without the tool onnx: see MILLRACE_TOOLS" plan --dataset cifar-10 --model "$work/net.onnx"
  for command in bench predict report; do
    refuses "$command: this program was built without the tool $command: see MILLRACE_TOOLS" "$command" x
  done
}
asks_for_data_and_weights() {
  refuses "data: this program was built without the tool data: see MILLRACE_TOOLS" data generate x
  for command in import export; do
    refuses "$command: this program was built without the tool weights: see MILLRACE_TOOLS" "$command" x
  done
  refuses "without the tool weights: see MILLRACE_TOOLS" train --dataset cifar-10 --model-size 8 --synthetic-data \
    --iterations 2 --run-dir "$work/run" --export-dir "$work/export"
  [[ ! -e $work/run ]] || failed "a refused run left a directory"
}

mkdir -p "$tree"
# Files keep their times, so that what was compiled before is not compiled again.
find "$tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
(cd "$root" && tar c --exclude=./build --exclude=./.git .) | tar x -C "$tree"

mapfile -t folders < <(cd "$tree/src/tools" && printf '%s\n' */CMakeLists.txt | xargs -n1 dirname)
for tools in "" "data;weights"; do
  echo "== built with the tools '$tools'"
  configure "$tools"
  compile millrace fast_tests
  asks_for_others
  [[ -n $tools ]] || asks_for_data_and_weights
  ctest --test-dir "$build" -L '^fast$' -j "$(nproc)" >"$work/log" 2>&1 || failed "fast tests with the tools '$tools'"
  grep 'tests passed' "$work/log"
done

for folder in "${folders[@]}"; do
  echo "== without src/tools/$folder"
  mv "$tree/src/tools/$folder" "$work/away"
  configure all
  compile millrace
  refuses "unknown command" "no-$folder"
  mv "$work/away" "$tree/src/tools/$folder"
done
