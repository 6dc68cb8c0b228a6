#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pack.sh BUILD DIR: copies what run.sh needs of a build to DIR, for a machine that has CUDA and
# nothing else of this: the programs, stripped, their libraries, and Open MPI. Each program has a
# script of its name in DIR that starts it (packed.sh).
set -euo pipefail
(($# == 2)) || { echo 'Usage: pack.sh BUILD DIR' >&2; exit 2; }
build=$1
to=$2
here=$(dirname "${BASH_SOURCE[0]}")
required=(millrace ops_test device_test stage_test numerics_test gpu_streaming)
optional=(gpu_ceilings) # only builds with cuDNN have it

# fail WHY: nothing can be packed.
fail() {
  printf 'pack.sh: %s\n' "$1" >&2
  exit 2
}

# libraries_of FILE..: those that do not come with the system or with CUDA.
libraries_of() {
  local listed system='/lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|/lib(cudnn|cublas|cudart|cuda|nvrtc)'
  listed=$(ldd "$@")
  if grep 'not found' <<<"$listed" | tr '\t' / | grep -vE "$system" >&2; then
    fail 'these libraries are missing here'
  fi
  awk '/=> \//{print $3}' <<<"$listed" | sort -u | grep -vE "$system"
}

# path_of NAME: a folder of the installed Open MPI.
path_of() { ompi_info --path "$1" --parsable | cut -d : -f 3; }

# pack_program FILE NAME
pack_program() {
  strip -o "$to/bin/$2" "$1"
  cp "$here/packed.sh" "$to/$2"
  packed+=("$to/bin/$2")
}

command -v ompi_info >/dev/null || fail 'only Open MPI can be packed, and there is no ompi_info on PATH'
for program in "${required[@]}"; do
  [[ -x $build/$program ]] || fail "$build/$program is missing: build it first"
done
mkdir -p "$to/bin" "$to/lib"
packed=()
for program in "${required[@]}"; do pack_program "$build/$program" "$program"; done
for program in "${optional[@]}"; do
  [[ ! -x $build/$program ]] || pack_program "$build/$program" "$program"
done
pack_program "$(command -v mpirun)" mpirun
# With OPAL_PREFIX, Open MPI looks for its components and messages below that folder as it was
# installed below its own.
prefix=$(path_of prefix)
for name in pkglibdir pkgdatadir; do
  from=$(path_of "$name")
  [[ $from == "$prefix"/* ]] || fail "Open MPI's $name, $from, is not in $prefix, so that it cannot be moved"
  mkdir -p "$to/${from#"$prefix"/}"
  cp -rL "$from/." "$to/${from#"$prefix"/}"
done
components=("$(path_of pkglibdir)"/*.so)
mapfile -t libraries < <(libraries_of "${packed[@]}" "${components[@]}")
cp -L "${libraries[@]}" "$to/lib/"
settings=$(path_of sysconfdir)/openmpi-mca-params.conf
[[ ! -r $settings ]] || cp -L "$settings" "$to/bin/"
printf 'packed %s into %s\n' "$(du -sh "$to" | cut -f 1)" "$to"
