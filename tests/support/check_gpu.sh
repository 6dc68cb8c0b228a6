#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# That scripts/check-gpu refuses a folder without Kokkos and a Kokkos that was built for another device,
# before it asks CMake, and skips only where no folder is given.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# refuses KIND VARIABLE LINE SHOWN: with exit code 2 and one line, where Kokkos' file has LINE.
refuses() {
  local kind=$1 variable=$2 line=$3 shown=$4 rc=0 said expected
  printf '%s\n' "$line" >"$folder/KokkosConfigCommon.cmake"
  said=$(env "$variable=$folder" scripts/check-gpu "$kind" 2>&1) || rc=$?
  expected="check-gpu $kind: the Kokkos in $folder was built for $shown, not for ${kind^^}: set $variable to one that is installed with Kokkos_ENABLE_${kind^^}=ON"
  [[ $rc == 2 && $said == "$expected" ]] && return
  printf 'check-gpu %s, and %s: exit code %s\n%s\n' "$kind" "$line" "$rc" "$said"
  exit 1
}

refuses cuda MILLRACE_CUDA_KOKKOS 'set(Kokkos_DEVICES SERIAL;HIP)' 'SERIAL, HIP'
refuses cuda MILLRACE_CUDA_KOKKOS 'SET(Kokkos_DEVICES OPENMP)' OPENMP
refuses cuda MILLRACE_CUDA_KOKKOS 'set(Kokkos_DEVICES "OPENMP;SERIAL")' 'OPENMP, SERIAL'
refuses hip MILLRACE_HIP_KOKKOS 'set(Kokkos_DEVICES OPENMP;SERIAL;CUDA)' 'OPENMP, SERIAL, CUDA'

# ends CODE SAID VARIABLE=VALUE KIND
ends() {
  local code=$1 expected=$2 setting=$3 kind=$4 rc=0 said
  said=$(env -u MILLRACE_CUDA_KOKKOS -u MILLRACE_HIP_KOKKOS "$setting" scripts/check-gpu "$kind" 2>&1) || rc=$?
  [[ $rc == "$code" && $said == "check-gpu $kind: $expected" ]] && return
  printf 'check-gpu %s with %s: exit code %s\n%s\n' "$kind" "$setting" "$rc" "$said"
  exit 1
}

for pair in cuda:MILLRACE_CUDA_KOKKOS hip:MILLRACE_HIP_KOKKOS; do
  kind=${pair%:*} variable=${pair#*:}
  ends 77 "skipped, $variable names no Kokkos for it" OTHER=x "$kind"
  ends 77 "skipped, $variable names no Kokkos for it" "$variable=" "$kind"
  ends 2 "there is no Kokkos in /nonexist: set $variable to the folder that one is installed in" \
    "$variable=/nonexist" "$kind"
done
printf 'set(Kokkos_DEVICES HIP)\nset(Kokkos_CXX_COMPILER "/nonexist/hipcc")\n' >"$folder/KokkosConfigCommon.cmake"
ends 2 "there is no /nonexist/hipcc, with which the Kokkos in $folder was built" "MILLRACE_HIP_KOKKOS=$folder" hip
