#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pack.sh BUILD TO [CPU]: copies what run.sh needs of a build to the folder TO, for a machine that has
# CUDA and nothing else of this: the programs, stripped, their libraries, and Open MPI. Each program
# has a script of its name in TO that starts it (packed.sh). cuDNN, cuBLAS and NCCL are not packed:
# PyTorch's packages have them.
#
# TO.tar.xz becomes one archive of these, of the program for cores in the build CPU, and of the scripts,
# as millrace-gpu/, which needs nothing else. One of more than 25 MB (MILLRACE_PACK_MB) is refused.
set -euo pipefail
(($# == 2 || $# == 3)) || { echo 'Usage: pack.sh BUILD DIR|FILE.tar.xz [CPU]' >&2; exit 2; }
build=$1
target=$2
cpu=${3-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
required=(millrace ops_test device_test stage_test numerics_test gpu_streaming)
optional=(gpu_ceilings) # only builds with cuDNN have it
mb=${MILLRACE_PACK_MB:-25}

# fail WHY: nothing can be packed.
fail() {
  printf 'pack.sh: %s\n' "$1" >&2
  exit 2
}

[[ $mb =~ ^[1-9][0-9]{0,5}$ ]] || fail "MILLRACE_PACK_MB is '$mb': set it to a number of megabytes, such as 25"
most=$((mb * 1000000))
case $target in
  *.tar.xz)
    { [[ ! -d $target ]] && : >"$target.new" && rm "$target.new"; } 2>/dev/null ||
      fail "$target cannot be written: name a file in a folder that exists" ;;
  *.tar | *.tar.* | *.t[bgx]z | *.xz | *.gz | *.zip) fail "$target is no folder, and archives are FILE.tar.xz" ;;
  *) { mkdir -p "$target" && [[ -w $target ]]; } 2>/dev/null || fail "$target cannot be written: name a folder" ;;
esac

# libraries_of FILE..: those that do not come with the system, CUDA or PyTorch.
libraries_of() {
  local listed system='/lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|/lib(cudnn|cublas|cudart|cuda|nvrtc|nccl)'
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

# pack_build BUILD TO PROGRAM..: the programs with what they need.
pack_build() {
  local from=$1 to=$2 packed=() program prefix name folder components libraries settings
  shift 2
  for program in "$@"; do
    [[ -x $from/$program ]] || fail "$from/$program is missing: build it first"
  done
  mkdir -p "$to/bin" "$to/lib"
  for program in "$@"; do pack_program "$from/$program" "$program"; done
  for program in "${optional[@]}"; do
    [[ ! -x $from/$program ]] || pack_program "$from/$program" "$program"
  done
  [[ ! -e $from/libgpu_kernel_times.so ]] || cp "$from/libgpu_kernel_times.so" "$to/"
  pack_program "$(command -v mpirun)" mpirun
  # With OPAL_PREFIX, Open MPI looks for its components and messages below that folder as it was
  # installed below its own.
  prefix=$(path_of prefix)
  for name in pkglibdir pkgdatadir; do
    folder=$(path_of "$name")
    [[ $folder == "$prefix"/* ]] || fail "Open MPI's $name, $folder, is not in $prefix, so that it cannot be moved"
    mkdir -p "$to/${folder#"$prefix"/}"
    cp -rL "$folder/." "$to/${folder#"$prefix"/}"
  done
  folder=$(path_of pkglibdir)
  folder=$to/${folder#"$prefix"/}
  # Networks between machines, and OpenSHMEM: with their libraries, megabytes.
  rm -f "$folder"/mca_*_{ucx,ofi,psm,psm2,openib,usnic,uct,portals4}.so "$folder"/mca_{atomic,memheap,scoll,spml,sshmem}_*.so
  components=("$folder"/*.so)
  mapfile -t libraries < <(libraries_of "${packed[@]}" "${components[@]}")
  ((${#libraries[@]} == 0)) || cp -L "${libraries[@]}" "$to/lib/"
  settings=$(path_of sysconfdir)/openmpi-mca-params.conf
  [[ ! -r $settings ]] || cp -L "$settings" "$to/bin/"
}

# archive FOLDER FILE: what two builds have in common counts once: the dictionary holds all, up to 256 MiB.
archive() {
  local folder=$1 file=$2 mib size
  mib=$(($(du -sm --apparent-size "$folder" | cut -f 1) + 1))
  ((mib <= 256)) || mib=256
  tar -C "$(dirname "$folder")" --sort=name --owner=0 --group=0 -c "$(basename "$folder")" |
    xz --threads=1 --x86 --lzma2=preset=9,dict="${mib}MiB" >"$file.new"
  size=$(stat -c %s "$file.new")
  if ((size > most)); then
    rm "$file.new"
    find "$folder" -type f -printf '%s %P\n' | sort -rn | head -n 8 >&2
    fail "the archive has $((size / 1000000)) MB, more than $((most / 1000000)); above are its largest files.
A build for cores without oneDNN (-DMILLRACE_ONEDNN=OFF) is small"
  fi
  mv "$file.new" "$file"
}

command -v ompi_info >/dev/null || fail 'only Open MPI can be packed, and there is no ompi_info on PATH'
if [[ $target != *.tar.xz ]]; then
  pack_build "$build" "$target" "${required[@]}"
  printf 'packed %s into %s\n' "$(du -sh "$target" | cut -f 1)" "$target"
  exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work" "$target.new"' EXIT
root=$work/millrace-gpu
mkdir -p "$root/tests/gpu" "$root/tests/support" "$root/configs"
pack_build "$build" "$root/build/cuda" "${required[@]}"
[[ -z $cpu ]] || pack_build "$cpu" "$root/build/default" millrace
cp "$here"/{run.sh,variants.toml,compare.py,measure.py,profile_kernels.py,results.py,stages.py,variants.py} "$root/tests/gpu/"
cp "$here/../support/alike.py" "$root/tests/support/"
cp "$here/../../configs/resnet20-cifar10-10epochs.toml" "$root/configs/"
cp "$here/../../LICENSE" "$root/"
archive "$root" "$target"
printf 'packed %s into %s of %s kB\n' "$(du -sh "$root" | cut -f 1)" "$target" $(($(stat -c %s "$target") / 1000))
