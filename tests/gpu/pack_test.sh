#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pack_test.sh BUILD: that ranks start from a packed folder on a machine without Open MPI, and what is in an
# archive. Where the system allows it, the installed Open MPI is hidden by empty files and folders in a
# mount namespace.
set -euo pipefail
build=$(realpath "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
unset MILLRACE_MPIEXEC OPAL_PREFIX

failed() {
  printf 'FAILED: %s\n' "$*"
  exit 1
}

# hide_open_mpi: everything of it that pack.sh could have forgotten.
hide_open_mpi() {
  local path
  : >"$work/nothing"
  mkdir "$work/empty"
  for path in "${installed[@]}"; do
    if [[ -d $path ]]; then
      mount --bind "$work/empty" "$path"
    elif [[ -e $path ]]; then
      mount --bind "$work/nothing" "$path"
    fi
  done
  ! mpirun --version >/dev/null 2>&1 || failed 'the installed mpirun still runs'
  ! "$build/millrace" --version >/dev/null 2>&1 || failed 'the program of the build still finds its MPI'
}

# installed_paths: one a line.
installed_paths() {
  local name
  for name in pkglibdir pkgdatadir sysconfdir; do ompi_info --path "$name" --parsable | cut -d : -f 3; done
  for name in mpirun mpiexec orted; do
    name=$(command -v "$name") && realpath "$name"
  done
  ldd "$build/millrace" "$(ompi_info --path pkglibdir --parsable | cut -d : -f 3)"/*.so |
    awk '/\/lib(mpi|open-rte|open-pal|pmix)\.so/{print $3}' | sort -u | xargs realpath | sort -u |
    while read -r name; do
      printf '%s\n' "$name"
      [[ $name != */libpmix.so* ]] || printf '%s\n' "$(dirname "$name")/pmix"
    done
}

# starts_ranks: as run.sh does. The current folder must not matter.
starts_ranks() {
  local run said small
  cd /
  said=$("$packed/millrace" doctor)
  grep -qxE "launcher +$packed/bin/mpirun" <<<"$said" || failed "doctor names another launcher: $said"
  small='train --dataset cifar-10 --generated-data --model-size 8 --batch-size 4 --iterations 2 --seed 3 --no-validation --threads-per-device 1'
  # shellcheck disable=SC2086 # several words
  "$packed/millrace" $small --gradients-to-accumulate 4 --run-dir "$work/one" >"$work/log" 2>&1 ||
    failed "one rank: $(tail -n 20 "$work/log")"
  # shellcheck disable=SC2086
  "$packed/millrace" $small --shards 2 --pipeline-depth 4 --pipeline-splits auto --ranks 2 --run-dir "$work/two" >"$work/log" 2>&1 ||
    failed "two ranks: $(tail -n 20 "$work/log")"
  grep -q '^Starting 2 ranks' "$work/log" || failed 'two ranks were not started'
  for run in one two; do "$packed/millrace" inspect "$work/$run" --digest >"$work/$run.digest"; done
  cmp "$work/one.digest" "$work/two.digest" || failed 'two ranks give other bits than one'
  said=$("$packed/mpirun" -np 2 "$packed/millrace" doctor 2>&1) || failed "two ranks of mpirun: $said"
  grep -q '^rank 1 ' <<<"$said" || failed "mpirun started no second rank: $said"
}

# archives: of small programs in place of a build for CUDA, whose NCCL stays out, and of Open MPI.
archives() {
  local fake="$work/build" file="$work/gpu.tar.xz" listed name said PATH=$work/mpi/bin:$PATH
  mkdir -p "$fake" "$work/mpi"/{bin,lib/openmpi,share/openmpi,etc}
  "$compiler" -shared -fPIC -x c++ -o "$fake/libnccl.so.2" -Wl,-soname,libnccl.so.2 - <<<'int nccl() { return 0; }'
  "$compiler" -x c++ -o "$fake/millrace" - -x none "$fake/libnccl.so.2" -Wl,-rpath,"$fake" <<<'int nccl(); int main() { return nccl(); }'
  for name in ops_test device_test stage_test numerics_test gpu_streaming gpu_ceilings; do cp "$fake/millrace" "$fake/$name"; done
  cp "$fake/millrace" "$work/mpi/bin/mpirun"
  cp "$fake/libnccl.so.2" "$work/mpi/lib/openmpi/mca_stand_in.so"
  cp "$fake/libnccl.so.2" "$work/mpi/lib/openmpi/mca_pml_ucx.so"
  # shellcheck disable=SC2016 # whoever runs the script expands that
  cat >"$work/mpi/bin/ompi_info" <<<'#!/bin/sh
root=$(dirname "$(dirname "$0")")
case $2 in prefix) ;; sysconfdir) root=$root/etc ;; pkglibdir) root=$root/lib/openmpi ;; *) root=$root/share/openmpi ;; esac
echo "path:$2:$root"'
  chmod +x "$work/mpi/bin/ompi_info"
  head -c 2000000 /dev/urandom >"$work/mpi/share/openmpi/help.txt"
  echo library >"$fake/libgpu_kernel_times.so"
  "$here/run.sh" --build "$fake" --cpu "$fake" --pack "$file" || failed 'nothing was packed'
  listed=$(tar -tJf "$file")
  for name in build/cuda/{millrace,mpirun,bin/ops_test,bin/gpu_ceilings,lib/openmpi/mca_stand_in.so,libgpu_kernel_times.so} build/default/millrace \
    tests/gpu/{run.sh,compare.py,results.py,variants.toml} tests/support/alike.py LICENSE; do
    grep -qx "millrace-gpu/$name" <<<"$listed" || failed "the archive has no $name"
  done
  ! grep -E 'lib(nccl|cudnn|cublas|cudart)' <<<"$listed" || failed 'the archive has libraries that PyTorch brings'
  ! grep mca_pml_ucx <<<"$listed" || failed 'the archive has networks between machines'
  tar -xJf "$file" -C "$work"
  said=$("$work/millrace-gpu/tests/gpu/run.sh" --dry-run quick) || failed "run.sh of the archive: $said"
  grep -q ' build/cuda/ops_test ' <<<"$said" || failed "run.sh of the archive looks elsewhere: $said"
  (cd "$work/millrace-gpu/tests/gpu" && python3 -B -c 'import compare, results, stages, variants') || failed 'a script is missing'
  rm "$file"
  ! said=$(MILLRACE_PACK_MB=1 "$here/run.sh" --build "$fake" --pack "$file" 2>&1) || failed 'a large archive was made'
  grep -q 'MB, more than 1;' <<<"$said" || failed "why there is no archive: $said"
  [[ ! -e $file && ! -e $file.new ]] || failed 'a large archive was left'
}

if [[ ${2-} != hidden ]]; then
  command -v ompi_info >/dev/null || { echo 'skipped: Open MPI is not installed'; exit 77; }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && "$here/run.sh" --build "$(realpath --relative-to=. "$build")" --pack "pack age")
  compiler=${CXX:-c++}
  if command -v "$compiler" python3 >/dev/null; then archives; else echo 'archives are not tested: no compiler or Python'; fi
  installed_paths >"$work/installed"
  if unshare -m true 2>/dev/null; then
    unshare -m "${BASH_SOURCE[0]}" "$build" hidden "$work"
  elif unshare -rm true 2>/dev/null; then
    unshare -rm "${BASH_SOURCE[0]}" "$build" hidden "$work"
  else
    echo 'this system hides nothing: the installed Open MPI is in reach'
    packed="$work/pack age"
    starts_ranks
  fi
  echo 'ranks start from a packed folder'
  exit
fi
work=$3
packed="$work/pack age"
mapfile -t installed <"$work/installed"
hide_open_mpi
starts_ranks
echo "with $(printf '%s ' "${installed[@]}")hidden"
