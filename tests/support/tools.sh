#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools.sh CMAKE ROOT: the engine stands without its tools. Builds the program with none and with two
# of them and trains with it; then configures copies of the tree, each without one folder of src/tools.
set -euo pipefail
cmake=$1
root=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

failed() {
  echo "FAILED: $*"
  tail -n 30 "$work"/log
  exit 1
}
configure() {  # TREE BUILD TOOLS
  "$cmake" -S "$1" -B "$2" -G Ninja -DMILLRACE_TESTS=OFF -DMILLRACE_WERROR=ON "-DMILLRACE_TOOLS=$3" >"$work/log" 2>&1 ||
    failed "configuring with the tools '$3'"
}
# refuses TEXT WORDS..: the program ends with 2 and a line that has this text.
refuses() {
  local text=$1 code=0
  shift
  "$millrace" "$@" >"$work/log" 2>&1 || code=$?
  [[ $code == 2 ]] || failed "$* ended with $code"
  grep -qF -- "$text" "$work/log" || failed "$* said something else"
}

mapfile -t folders < <(cd "$root/src/tools" && printf '%s\n' */CMakeLists.txt | xargs -n1 dirname)
for tools in "" "data;report"; do
  echo "== built with the tools '$tools'"
  build=$work/build
  rm -rf "$build"
  configure "$root" "$build" "$tools"
  "$cmake" --build "$build" --target millrace >"$work/log" 2>&1 || failed "building with the tools '$tools'"
  millrace=$build/millrace
  "$millrace" train --dataset cifar-10 --model-size 8 --synthetic-data --iterations 2 --batch-size 2 --no-logs --no-validation >"$work/log" 2>&1 ||
    failed "training"
  refuses "see MILLRACE_TOOLS" train --dialect nvidia
  refuses "see MILLRACE_TOOLS" train --dataset cifar-10 --model-size 8 --synthetic-data --iterations 2 --enable-tensorboard \
    --run-dir "$work/run"
  refuses "without the tool onnx" plan --dataset cifar-10 --model "$work/net.onnx"
  refuses "without the tool weights" train --dataset cifar-10 --model-size 8 --synthetic-data --iterations 2 \
    --run-dir "$work/run" --export-dir "$work/export"
  [[ ! -e $work/run ]] || failed "a refused run left a directory"
done

for folder in "${folders[@]}"; do
  echo "== without src/tools/$folder"
  rm -rf "$work/tree" "$work/build"
  mkdir "$work/tree"
  (cd "$root" && tar c --exclude=./build --exclude=./.git .) | tar x -C "$work/tree"
  rm -r "$work/tree/src/tools/$folder"
  configure "$work/tree" "$work/build" all
done
