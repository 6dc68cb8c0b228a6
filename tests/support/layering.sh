#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# layering.sh ROOT: fails and lists the lines that break the layering of the sources below ROOT: a
# folder that includes a higher one, a value (schedule, program, plan) that includes what runs it,
# or names of a library outside the files that may use it.
set -euo pipefail
cd "$1"

# Each folder (its last name is the one in #include lines), and the folders or files it may include.
declare -A may_include=(
  [src/core]="core"
  [models]="core models"
  [src/run]="core models run pipeline io/atomic_file.hpp"
  [src/device]="core device"
  [src/comm]="core comm"
  [src/ops]="core device ops"
  [io/images]="core run io/images"
  [io/data]="core run io/images io/data io/atomic_file.hpp io/mixing.hpp"
  [io]="core run device models io/[a-z0-9_]*[.]hpp"
  [pipeline]="core device comm ops models io pipeline"
  [partition]="core models pipeline partition run"
  [src/train]="core run device comm ops models io pipeline partition train"
  [src/tools]="core run device comm ops models io pipeline partition train cli tools"
  [src/cli]="core run device comm ops models io pipeline partition train cli"
  [src/library]="core io models run train library millrace_version.hpp"
)

violations=0

# report MESSAGE: one violation for every line of grep's output on stdin.
report() {
  while IFS= read -r line; do
    printf '%s\n    %s\n' "$line" "$1"
    violations=$((violations + 1))
  done
}

# Comments are ignored.
search() {
  grep -rnE --include='*.hpp' --include='*.cpp' "$@" | grep -vE '^[^:]+:[0-9]+: *(//|\*)' || true
}

# own_files FOLDER: FOLDER, or what lies directly in it if folders below have rows of their own.
own_files() {
  if [[ $1 == io ]]; then printf '%s\n' io/*.hpp io/*.cpp; else echo "$1"; fi
}

for folder in src/*/ models/ partition/ pipeline/ io/images/ io/data/ io/; do
  folder=${folder%/}
  [[ -d $folder ]] || continue
  if [[ -z ${may_include[$folder]:-} ]]; then
    report "add what this folder may include to tests/support/layering.sh" <<<"$folder"
    continue
  fi
  mine=${may_include[$folder]}
  mapfile -t own < <(own_files "$folder")
  report "$folder may include only from: $mine" < <(
    search '^ *# *include "[^"/]+/' "${own[@]}" | grep -vE "\"(${mine// /|})[/\"]" || true)
done

# Schedules, programs, memory plans and partition plans are values: neither they nor what they
# include know devices, messages or kernels. The files are those of the target millrace_program.
pure() {
  sed -n '/^millrace_library(program/,/)$/p' pipeline/CMakeLists.txt | grep -oE '[a-z_/]+\.cpp' |
    sed 's#^#pipeline/#'
  find partition -name '*.cpp' 2>/dev/null || true
}
mapfile -t values < <(pure)
((${#values[@]} > 0)) || report "found no list of sources" <<<"pipeline/CMakeLists.txt"
for ((i = 0; i < ${#values[@]}; ++i)); do  # grows by what is included
  report "${values[i]} is a value or included by one: only from core models pipeline partition run" < <(
    search -H '^ *# *include "(device|comm|ops|io|train|cli)/' "${values[i]}")
  while IFS= read -r file; do
    [[ -f $file ]] || file=src/$file
    [[ -f $file && " ${values[*]} " != *" $file "* ]] && values+=("$file")
  done < <(sed -nE 's/^ *# *include "([^"]+)".*/\1/p' "${values[i]}")
done

# A tool includes no other tool.
for folder in src/tools/*/; do
  name=$(basename "$folder")
  [[ -n $(find "$folder" -name '*.?pp' -print -quit) ]] || continue
  report "a tool may not include another one" < <(
    search '^ *# *include "tools/' "$folder" | grep -v "\"tools/$name/" || true)
done

# only_in FILES PATTERN: PATTERN may appear only below FILES (an extended regular expression).
only_in() {
  local folders=()
  for folder in src models partition pipeline io; do
    [[ -d $folder ]] && folders+=("$folder")
  done
  report "only allowed in $1" < <(search "$2" "${folders[@]}" | grep -vE "^($1)" || true)
}

only_in 'src/comm/|src/device/' '<mpi\.h>|\bMPI_([A-Z][a-z]|COMM|REQUEST|SUCCESS|BYTE|INT|SUM|MAX)'
only_in 'io/hdf5\.|io/hdf5_driver\.|io/hdf5_handles\.|src/tools/weights/keras_file\.' '<hdf5(_hl)?\.h>|\bH5[A-Z]{1,2}[a-z_]+ *\(|\bh(id|size)_t\b|\bherr_t\b'
only_in 'io/images/(jpeg|png)\.cpp|src/tools/data/encoder\.cpp' '<(jpeglib|jerror|turbojpeg|png)\.h>|\b(jpeg|png)_[a-z_]+ *\('
only_in 'src/tools/onnx/' '<google/|\bgoogle::protobuf|\.pb\.h"'
only_in 'src/core/sha256\.cpp' '<openssl/|\bEVP_[A-Z]'
only_in 'src/core/crc32c\.cpp' '<isa-l'
only_in 'src/tools/weights/archive\.cpp' '<zip\.h>|\bzip_[a-z_]+ *\('
only_in 'src/ops/onednn/|src/device/' '\bdnnl\b|\bdnnl_|dnnl\.hpp'
only_in 'src/ops/(cudnn|cublas|cutlass)/|src/device/' '<cuda|\bcuda[A-Z]'
only_in 'src/ops/cudnn/|src/device/' '<cudnn|\bcudnn[A-Z]|\bCUDNN_'
only_in 'src/ops/cublas/' '<cublas|\bcublas[A-Z]|\bCUBLAS'
only_in 'src/ops/cutlass/' '<cutlass|\bcutlass::|\bcute::|\bCUTLASS_'
only_in 'src/comm/' '<nccl\.h>|\bnccl[A-Z]'
only_in 'src/device/' '<(hip|sycl)/|\bhip[A-Z]|\bsycl::'
# Only src/cli and the tools know how an option is spelled: others name fields of a run `like-this`, and
# whoever prints a message or a help text spells them.
report "name the field of the run \`like-this\`" < <(
  grep -rnE --include='*.hpp' --include='*.cpp' '(//|").*(^|[^A-Za-z0-9_`-])--[a-z][a-z0-9-]*([^A-Za-z0-9_(:-]|$)' \
    src models partition pipeline io | grep -vE '^src/(cli|tools)/' || true)
# Kernels run on devices without 64-bit floats (src/ops/accumulator.hpp).
mapfile -t kernels < <(grep -rlE 'KOKKOS_([A-Z_]*FUNCTION|LAMBDA)' src pipeline 2>/dev/null || true)
((${#kernels[@]} > 0)) || report "found no kernels" <<<"src"
report "kernels have no 64-bit floats: use Accumulator, or literals of float" < <(
  search -H '\bdouble\b|[^"A-Za-z0-9_.][0-9]+\.[0-9]*([^0-9fx.]|$)' "${kernels[@]}" | grep -vE '"[^"]*[0-9]\.[0-9][^"]*"' || true)

only_in 'src/(device|ops|train)/|pipeline/' '<Kokkos_|\bKokkos::|\bKOKKOS_'

if ((violations > 0)); then
  echo "$violations violations of the layering"
  exit 1
fi
